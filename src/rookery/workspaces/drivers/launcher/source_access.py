"""Access for an unprivileged user to the bind sources of a sandbox in directories that only root may enter.

A server that runs as root keeps its data in such directories. In its own mount namespace, the launcher covers the first
of them with an empty directory, and binds the sources at the same paths in it. Nothing else of it is visible.
"""

from __future__ import annotations

import ctypes
import os
import stat

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18


def make_reachable(sources: list[str], uid: int) -> None:
    """Make the sources accessible. Call this as root, before the privileges are dropped."""
    hidden = {path: barrier for path in sources if (barrier := _barrier(path, uid)) is not None}
    if not hidden:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _call(libc.unshare, CLONE_NEWNS)
        _mount(libc, None, "/", None, MS_REC | MS_PRIVATE, None)
    except OSError as error:
        first = next(iter(hidden.values()))
        raise LaunchError(
            f"user {uid} may not enter {first}, and this machine allows no mounts that would make it accessible "
            f"({error.strerror}). Put data_dir below directories that every user may enter.",
            "driver_unavailable",
        ) from error
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in hidden}
    # Outer directories come first, because they cover the inner ones.
    for barrier in sorted(set(hidden.values())):
        if os.path.isdir(barrier):
            _mount(libc, "rookery", barrier, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    for path, descriptor in held.items():
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(path, mode=0o755, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        _mount(libc, f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC, None)
        os.close(descriptor)


def _barrier(path: str, uid: int) -> str | None:
    """Return the first directory above `path` that this user may not enter. The user has only its own group."""
    parent = ""
    for part in os.path.dirname(os.path.realpath(path)).split("/"):
        parent = f"{parent.rstrip('/')}/{part}"
        found = os.stat(parent)
        bit = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid == uid else stat.S_IXOTH
        if not found.st_mode & bit:
            return parent
    return None


def _mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _call(libc.mount, texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def _call(function: object, *arguments: object) -> None:
    if function(*arguments) != 0:  # type: ignore[operator]
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
