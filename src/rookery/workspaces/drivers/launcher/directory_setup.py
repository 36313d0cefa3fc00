"""Setup of a workspace's directory before a start.

`home/` and `run/` belong to the workspace, which may have put anything there, for example links to the server's files.
So they are only written through an open directory and with fresh names.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from rookery.workspaces.drivers.launcher import archives

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class File(NamedTuple):
    """A file for `run/`."""

    name: str
    content: bytes
    mode: int


def fill(directory: Path, files: list[File], archive: bytes | None, *, owner: int | None) -> None:
    """Make missing directories, and write the files of this boot.

    A home is filled under a temporary name and then moved, so a partially filled one is never visible.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    home, run_dir = directory / "home", directory / "run"
    if not home.exists():
        fresh = directory / "home.new"
        archives.discard(fresh)
        fresh.mkdir(mode=0o700)
        if archive:
            archives.unpack(archive, fresh, owner=owner)
        if owner is not None:
            os.chown(fresh, owner, owner)
        fresh.rename(home)
    if not run_dir.is_dir() or run_dir.is_symlink():
        run_dir.mkdir(mode=0o700)
    if owner is not None:
        # The home last: its owner shows whether all of it was handed over.
        give(run_dir, owner)
        if home.lstat().st_uid != owner:
            give(home, owner)
    _let_in(home)
    _let_in(run_dir)
    run = os.open(run_dir, _OPEN_DIRECTORY)
    try:
        _tidy(run)
        for file in files:
            _write(run, file.name, file.content, mode=file.mode, owner=owner)
    finally:
        os.close(run)


def give(top: Path, owner: int) -> None:
    """Give a whole tree to another user; links are given, not followed. No process of the workspace runs meanwhile.

    One directory is open at a time: a tree may be deeper than the limit of open files. The top comes last, so that a
    partially given tree still belongs to its old owner.
    """
    at = os.open(top, _OPEN_DIRECTORY)
    try:
        device = os.fstat(at).st_dev
        below = [_give_entries(at, owner, device)]
        while below:
            if below[-1]:
                inner = os.open(below[-1].pop(), _OPEN_DIRECTORY, dir_fd=at)
                below.append(_give_entries(inner, owner, device))
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


def _give_entries(directory: int, owner: int, device: int) -> list[str]:
    """Give the entries of a directory, and return its subdirectories."""
    directories = []
    for name in os.listdir(directory):
        os.chown(name, owner, owner, dir_fd=directory, follow_symlinks=False)
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
            directories.append(name)
    return directories


def _let_in(directory: Path) -> None:
    """Restore permissions of a directory. A command may have removed them, and no start would ever work again."""
    mode = directory.stat().st_mode
    if mode & 0o700 != 0o700:
        directory.chmod(stat.S_IMODE(mode) | 0o700)


def _tidy(run: int) -> None:
    """Remove the old `agent.json` and everything that is not a regular file, because a pipe would block the agent
    forever. Other files stay: the agent continues its journal.
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
    """Remove an entry of any kind: the workspace may have made a directory of that name that is not empty."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        archives.discard_at(directory, name)
    else:
        os.unlink(name, dir_fd=directory)
