"""The directory of one local workspace, and how it is filled before a start.

`home/` and `run/` belong to the workspace, which may have put anything there, links to the server's files above all.
So the server writes into them only by an open directory and a fresh name, and never reads them but as they say here.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec

from rookery.workspaces.drivers import archives
from rookery.workspaces.drivers.protocol import DriverError, WorkspaceSpec

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Layout(msgspec.Struct, frozen=True):
    """Where the files of a workspace are. `directory` is entered by the server alone."""

    directory: Path

    @classmethod
    def of(cls, data_dir: Path, workspace_id: str) -> Layout:
        if _ID.fullmatch(workspace_id) is None:
            raise DriverError("invalid_workspace", f"{workspace_id!r:.80} is not the id of a workspace.")
        return cls(data_dir / "workspaces" / workspace_id)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def socket(self) -> Path:
        return self.run / "agent.sock"

    @property
    def record(self) -> Path:
        return self.directory / "sandbox.json"

    @property
    def log(self) -> Path:
        return self.directory / "sandbox.log"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"


class Inside(msgspec.Struct, frozen=True):
    """The same places as the agent sees them."""

    home: str
    run: str

    def expand(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return path


def prepare(layout: Layout, ws: WorkspaceSpec, inside: Inside, *, owner: int | None, bwrap: str | None) -> None:
    """Make what is missing, and write token, settings and scripts of this generation.

    A home is filled beside its place and then moved there: it is never seen half filled.
    """
    layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not layout.home.exists():
        fresh = layout.directory / "home.new"
        archives.discard(fresh)
        fresh.mkdir(mode=0o700)
        if ws.files:
            archives.unpack(ws.files, fresh, owner=owner)
        if owner is not None:
            os.chown(fresh, owner, owner)
        fresh.rename(layout.home)
    if not layout.run.is_dir() or layout.run.is_symlink():
        layout.run.mkdir(mode=0o700)
        if owner is not None:
            os.chown(layout.run, owner, owner)
    run = os.open(layout.run, _OPEN_DIRECTORY)
    try:
        for stale in ("agent.sock", "agent.json"):
            _remove(run, stale)
        for name, content, mode in _files(ws, inside, bwrap=bwrap):
            _write(run, name, content, mode=mode, owner=owner)
    finally:
        os.close(run)


def _files(ws: WorkspaceSpec, inside: Inside, *, bwrap: str | None) -> list[tuple[str, bytes, int]]:
    files = [
        ("token", ws.token.encode(), 0o600),
        ("config.json", json.dumps(agent_config(ws, inside, bwrap=bwrap)).encode(), 0o600),
    ]
    for name, script in (("startup.sh", ws.startup), ("shutdown.sh", ws.shutdown)):
        if script is not None:
            files.append((name, script.text.encode(), 0o700))
    return files


def agent_config(ws: WorkspaceSpec, inside: Inside, *, bwrap: str | None) -> dict[str, Any]:
    """What the agent reads at its start: `config.json`."""
    return {
        "generation": ws.generation,
        "directory": inside.expand(ws.directory),
        "home": inside.home,
        "env": ws.env,
        "parameters": ws.parameters,
        "startup": {
            "script": f"{inside.run}/startup.sh" if ws.startup else None,
            "timeout_s": ws.startup.timeout_s if ws.startup else 600,
        },
        "shutdown": {
            "script": f"{inside.run}/shutdown.sh" if ws.shutdown else None,
            "timeout_s": ws.shutdown.timeout_s if ws.shutdown else 60,
        },
        "context_sources": list(ws.context_sources),
        "limits": {"disk_mb": ws.limits.disk_mb},
        "plan_dir": None,
        "nested": ws.sandbox.nested and bwrap is not None,
        "bwrap": bwrap if ws.sandbox.nested else None,
    }


def _write(directory: int, name: str, content: bytes, *, mode: int, owner: int | None) -> None:
    fresh = f".{name}.new"
    _remove(directory, fresh)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, mode, dir_fd=directory)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, owner, owner)
    try:
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except (IsADirectoryError, FileExistsError):
        _remove(directory, name)
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)


def _remove(directory: int, name: str) -> None:
    """Whatever it is: the workspace may have made a directory of that name, with something in it."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        archives.discard_at(directory, name)
    else:
        os.unlink(name, dir_fd=directory)


def tail(path: Path, limit: int = 2000) -> str:
    """The end of a log that the server keeps itself; never of a file that a workspace may replace."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
