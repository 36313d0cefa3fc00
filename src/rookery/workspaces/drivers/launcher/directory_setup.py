"""The setup of a workspace's directory before a start.

`home/` and `run/` are untrusted: the workspace may have created links to files of the server in them. Therefore files
are written through an open directory and under new names, which no link can redirect.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from rookery.workspaces.drivers.launcher import template_archive, tree_removal

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOG_TAIL = 2000


class File(NamedTuple):
    """A file for `run/`."""

    name: str
    content: bytes
    mode: int


def fill(directory: Path, files: list[File], archive: bytes | None, *, owner: int | None) -> None:
    """Make missing directories, and write the files of this boot.

    A new home is filled under a temporary name and then renamed, so that it is always complete.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    home, run_dir = directory / "home", directory / "run"
    if not home.exists():
        fresh = directory / "home.new"
        tree_removal.remove(fresh)
        fresh.mkdir(mode=0o700)
        if archive:
            template_archive.unpack(archive, fresh, owner=owner)
        if owner is not None:
            os.chown(fresh, owner, owner)
        fresh.rename(home)
    if not run_dir.is_dir() or run_dir.is_symlink():
        run_dir.mkdir(mode=0o700)
    if owner is not None:
        # The home is the last: its owner shows that everything was changed.
        change_owner(run_dir, owner)
        if home.lstat().st_uid != owner:
            change_owner(home, owner)
    _restore_permissions(home)
    _restore_permissions(run_dir)
    run = os.open(run_dir, _OPEN_DIRECTORY)
    try:
        _remove_stale_files(run)
        for file in files:
            _write(run, file.name, file.content, mode=file.mode, owner=owner)
    finally:
        os.close(run)


def change_owner(top: Path, owner: int) -> None:
    """Change the owner of a tree. Links are not followed. No process of the workspace may run meanwhile.

    Only one directory is open at a time, because a tree may be deeper than the limit of open files. The top is changed
    last, so an incomplete change is visible and repeated.
    """
    at = os.open(top, _OPEN_DIRECTORY)
    try:
        device = os.fstat(at).st_dev
        below = [_change_owner_of_entries(at, owner, device)]
        while below:
            if below[-1]:
                inner = os.open(below[-1].pop(), _OPEN_DIRECTORY, dir_fd=at)
                below.append(_change_owner_of_entries(inner, owner, device))
            else:
                below.pop()
                if not below:
                    break
                inner = os.open("..", _OPEN_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        os.fchown(at, owner, owner)
    finally:
        os.close(at)


def _change_owner_of_entries(directory: int, owner: int, device: int) -> list[str]:
    """Change the owner of the entries of a directory. Return the subdirectories."""
    directories = []
    for name in os.listdir(directory):
        os.chown(name, owner, owner, dir_fd=directory, follow_symlinks=False)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
            directories.append(name)
    return directories


def _restore_permissions(directory: Path) -> None:
    """Restore the permissions of a directory. Without them, the workspace could not be started."""
    mode = directory.stat().st_mode
    if mode & 0o700 != 0o700:
        directory.chmod(stat.S_IMODE(mode) | 0o700)


def _remove_stale_files(run: int) -> None:
    """Remove `agent.json` and all entries that are not regular files. A pipe would block the agent forever.

    Other files are kept, such as the journal of the agent.
    """
    for name in os.listdir(run):
        found = os.stat(name, dir_fd=run, follow_symlinks=False)
        if name == "agent.json" or not stat.S_ISREG(found.st_mode):
            _remove(run, name)
        elif found.st_mode & 0o600 != 0o600:
            os.chmod(name, stat.S_IMODE(found.st_mode) | 0o600, dir_fd=run)


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
    """Remove an entry of any kind. The workspace may have created a directory with that name."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        tree_removal.remove_at(directory, name)
    else:
        os.unlink(name, dir_fd=directory)


def tail(path: Path, limit: int = LOG_TAIL) -> str:
    """Return the end of a log file. Never call this for a file that a workspace can replace."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
