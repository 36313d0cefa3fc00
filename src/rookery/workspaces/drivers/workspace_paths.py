"""The paths of one workspace on the machine and in the sandbox, and the files of its directory `run/`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rookery.workspaces.drivers.driver_interface import DriverError, WorkspaceSpec
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.launcher.directory_setup import File

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_id(workspace_id: str) -> None:
    """Raise `DriverError` unless the id is safe as the name of a directory."""
    if _ID.fullmatch(workspace_id) is None:
        raise DriverError("invalid_workspace", f"{workspace_id!r:.80} is not the id of a workspace.")


class Layout(msgspec.Struct, frozen=True):
    """The paths of a workspace on the machine. Only the server may enter `directory`."""

    directory: Path

    @classmethod
    def of(cls, data_dir: Path, workspace_id: str) -> Layout:
        check_id(workspace_id)
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
    def egress(self) -> Path:
        """The directory of the egress socket, bound read-only into a sandbox that uses the proxy."""
        return self.directory / "egress"

    @property
    def egress_socket(self) -> Path:
        return self.egress / "egress.sock"

    @property
    def egress_lock(self) -> Path:
        return self.directory / "egress.lock"

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
    """The paths of a workspace as the agent sees them."""

    home: str
    run: str

    def expand(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return path


def files_of(
    ws: WorkspaceSpec,
    inside: Inside,
    *,
    is_confined: bool,
    bwrap: str | None,
    egress: Mapping[str, Any] | None = None,
) -> list[File]:
    """Return the files of `run/`: the token, `config.json` and the scripts of this boot.

    The environment of an unconfined workspace gets a mark, by which a stop finds its processes.
    """
    if not is_confined:
        mark = sandbox_processes.mark(ws.id, ws.generation)
        ws = msgspec.structs.replace(ws, env={**ws.env, sandbox_processes.MARK_VARIABLE: mark})
    files = [
        File("token", ws.token.encode(), 0o600),
        File("config.json", json.dumps(agent_config(ws, inside, bwrap=bwrap, egress=egress)).encode(), 0o600),
    ]
    for name, script in (("startup.sh", ws.startup), ("shutdown.sh", ws.shutdown)):
        if script is not None:
            files.append(File(name, script.text.encode(), 0o700))
    return files


def agent_config(
    ws: WorkspaceSpec, inside: Inside, *, bwrap: str | None, egress: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of `config.json`, which the agent reads when it starts."""
    return {
        "generation": ws.generation,
        "directory": inside.expand(ws.directory),
        "home": inside.home,
        "env": ws.env,
        "parameters": ws.parameters,
        # Only the names are written. The values are sent to the running agent, and are never on disk.
        "secrets": sorted(ws.secrets),
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
        "egress": egress,
    }
