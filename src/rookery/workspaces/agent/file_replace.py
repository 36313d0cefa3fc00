"""Atomic file replacement: new content is written to a temporary file beside its target, then renamed over it.

Several files can be replaced together: if one rename fails, the files that were renamed before are restored. Every
system call uses a handle of the file's directory, so a link that appears in the path cannot redirect a write. The
functions block, so they run in a thread. The caller holds the locks of the paths.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rookery.workspaces.agent import directory_handles, paths
from rookery.workspaces.agent.errors import AgentError

NEW_FILE_MODE = 0o644
_NAME_BYTES = 200

# Renames the first name to the second within the directory of a handle.
Rename = Callable[[int, str, str], None]


class Version(NamedTuple):
    """The version of a file when it was read. A write by another program changes at least one field."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Staged(NamedTuple):
    """A temporary file beside its target. `version` is None for a file that was not read before.

    `folder` is the handle of the directory that holds both. `commit` and `discard` close it.
    """

    target: str
    folder: int
    name: str
    temporary: str
    version: Version | None
    is_new: bool


def version_of(status: os.stat_result) -> Version:
    return Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def stage(target: str, data: bytes, *, version: Version | None = None) -> Staged:
    """Write the content to a temporary file with the mode of the target. Make missing parent directories.

    `target` is a real path. A symbolic link in it is refused.
    """
    folder_path, name = os.path.split(target)
    try:
        folder = directory_handles.open_directory(folder_path, create=True)
    except OSError as error:
        raise paths.refusal(error, target) from error
    try:
        return _stage(folder, name, target, data, version)
    except BaseException:
        os.close(folder)
        raise


def _stage(folder: int, name: str, target: str, data: bytes, version: Version | None) -> Staged:
    mode = _mode(folder, name, target)
    temporary = _temporary_name(name)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise paths.refusal(error, target) from error
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
            os.fchmod(descriptor, NEW_FILE_MODE if mode is None else mode)
            os.fsync(descriptor)
    except OSError as error:
        _unlink(folder, temporary)
        raise paths.refusal(error, target) from error
    return Staged(target, folder, name, temporary, version, is_new=mode is None)


def _mode(folder: int, name: str, target: str) -> int | None:
    """Return the mode of the file to replace, or None if it does not exist. Raise if it may not be written."""
    try:
        status = os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise paths.refusal(error, target) from error
    if stat.S_ISLNK(status.st_mode):
        raise directory_handles.changed(target)
    paths.require_regular(status.st_mode, target)
    # A rename needs write permission for the directory only, but a read-only file must not be replaced.
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise AgentError(403, "forbidden", f"{target} cannot be written: permission denied.")
    return stat.S_IMODE(status.st_mode)


def check_unchanged(staged: Sequence[Staged]) -> None:
    """Raise 409 if a file has changed since it was read."""
    for one in staged:
        if one.version is None:
            continue
        try:
            now: Version | None = version_of(os.stat(one.name, dir_fd=one.folder, follow_symlinks=False))
        except OSError:
            now = None
        if now != one.version:
            message = f"{one.target} changed on disk while it was edited. Nothing was changed; read it and try again."
            raise AgentError(409, directory_handles.CHANGED, message)


def replace(folder: int, name: str, target: str) -> None:
    os.replace(name, target, src_dir_fd=folder, dst_dir_fd=folder)


def commit(staged: Sequence[Staged], *, rename: Rename = replace) -> None:
    """Rename all temporary files over their targets. After a failure restore the originals."""
    originals: list[tuple[Staged, str]] = []
    unrestored: list[tuple[Staged, str]] = []
    done = 0
    try:
        # A single rename is atomic. Only several renames need a rollback.
        for one in staged if len(staged) > 1 else ():
            originals.append((one, _keep_original(one)))  # noqa: PERF401 - after a failure, those made so far are removed
        for one in staged:
            rename(one.folder, one.temporary, one.name)
            done += 1
    except OSError as error:
        unrestored = [pair for pair in originals[:done] if not _restore(*pair)]
        raise _not_committed(error, staged[done].target, unrestored) from error
    finally:
        for one, original in originals:
            if (one, original) not in unrestored:
                _unlink(one.folder, original)
        discard(staged[done:])
        for one in staged[:done]:
            os.close(one.folder)


def _not_committed(error: OSError, failing: str, unrestored: Sequence[tuple[Staged, str]]) -> AgentError:
    refused = paths.refusal(error, failing)
    if unrestored:
        places = ", ".join(
            f"{one.target} (its original is {os.path.join(os.path.dirname(one.target), original)})"
            for one, original in unrestored
        )
        return AgentError(500, "half_written", f"{refused.message} Not restored: {places}.")
    return AgentError(refused.status, refused.code, f"{refused.message} Nothing was changed.")


def discard(staged: Sequence[Staged]) -> None:
    """Remove the staged files and close the directory handles."""
    for one in staged:
        _unlink(one.folder, one.temporary)
        os.close(one.folder)


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _keep_original(one: Staged) -> str:
    """Link the original under a second name, so that it survives the rename. Copy it if hard links are not possible."""
    original = _temporary_name(one.name)
    try:
        os.link(one.name, original, src_dir_fd=one.folder, dst_dir_fd=one.folder, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise
        _copy(one.folder, one.name, original)
    return original


def _copy(folder: int, name: str, copy: str) -> None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, os.O_RDONLY | flags, dir_fd=folder), "rb") as source:
        status = os.fstat(source.fileno())
        made = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=folder)
        with os.fdopen(made, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fchmod(made, stat.S_IMODE(status.st_mode))
            os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))


def _restore(one: Staged, original: str) -> bool:
    """Restore an original and return whether that worked. If not, its second name stays."""
    try:
        replace(one.folder, original, one.name)
    except OSError:
        return False
    return True


def _temporary_name(name: str) -> str:
    # A file name has at most 255 bytes, and this one is longer than that of the target.
    shown = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
    return f".{shown}.rookery-{secrets.token_hex(6)}"
