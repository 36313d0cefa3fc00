"""Removal of directory trees that a workspace has written.

A tree is untrusted: it may have directories without permissions, and may be deeper than the limit of open files.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: Path) -> None:
    """Remove a file or a tree, if it exists. Links are removed, not followed."""
    try:
        parent = os.open(path.parent, _OPEN_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        remove_at(parent, path.name)
    finally:
        os.close(parent)


def remove_at(parent: int, name: str) -> None:
    """Remove an entry of an open directory.

    Nested directories are first moved up to the top level. Therefore a deep tree needs neither recursion nor many open
    files.
    """
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    top = _enter(parent, name, found)
    try:
        while _empty_one_level(top, found.st_dev):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty_one_level(top: int, device: int) -> bool:
    """Remove the files in `top`, and move the content of its directories up. Return False if it was empty."""
    names = os.listdir(top)
    for name in names:
        found = os.stat(name, dir_fd=top, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=top)
            continue
        if found.st_dev != device:
            raise OSError(18, "another filesystem is mounted there", name)
        inner = _enter(top, name, found)
        try:
            for below in os.listdir(inner):
                if stat.S_ISDIR((below_is := os.stat(below, dir_fd=inner, follow_symlinks=False)).st_mode):
                    os.close(_enter(inner, below, below_is))
                    # A random name, which no other entry can have.
                    os.rename(below, f".{secrets.token_hex(16)}", src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(below, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    return bool(names)


def _enter(parent: int, name: str, found: os.stat_result) -> int:
    """Open a directory. Restore the permissions of its owner if they are missing."""
    if found.st_mode & 0o700 != 0o700:
        # No process of the workspace is running, so the directory cannot be replaced meanwhile.
        os.chmod(f"/proc/self/fd/{parent}/{name}", 0o700)
    return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
