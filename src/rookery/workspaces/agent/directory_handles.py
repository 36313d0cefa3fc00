"""Directory handles: directories opened one path component at a time, without following symbolic links.

A file tool first checks a path and then uses it. In between, a command of the workspace can replace a directory in that
path with a link. A handle always refers to the directory that was opened, so files are opened relative to it. The
system call `openat2` could do all this in one call, but Python has no binding for it, and old kernels do not have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from rookery.workspaces.agent import paths
from rookery.workspaces.agent.errors import AgentError

NEW_DIRECTORY_MODE = 0o755
# O_PATH needs no permission to list the directory. It exists on Linux only.
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A reader resolves a changing path at most this often. Then it reports the change.
_READ_TRIES = 3


def open_directory(path: str, *, create: bool = False, mode: int = NEW_DIRECTORY_MODE) -> int:
    """Open a directory by its real path. The caller closes the descriptor. `create` makes missing directories.

    Raise OSError, or `AgentError` 409 if a component has become a link.
    """
    handle = os.open("/", _SEARCH)
    try:
        for name in path.split("/"):
            if name:
                below = _open_below(handle, name, path, create=create, mode=mode)
                os.close(handle)
                handle = below
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def directory(path: str) -> Iterator[int]:
    """Open a directory for the duration of a `with` block."""
    handle = open_directory(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _open_below(handle: int, name: str, path: str, *, create: bool, mode: int) -> int:
    try:
        return _open_component(handle, name, path)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # another writer made it meanwhile
        os.mkdir(name, mode, dir_fd=handle)
    return _open_component(handle, name, path)


def _open_component(handle: int, name: str, path: str) -> int:
    try:
        return os.open(name, _SEARCH, dir_fd=handle)
    except OSError as error:
        # With O_PATH the kernel reports a link as ENOTDIR. Meanwhile it may be a directory again.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link_or_directory(name, handle):
            raise changed(path) from error
        raise


def open_regular(path: str, *, links: bool = True) -> int:
    """Open a regular file for reading. The caller closes the descriptor. Without `links`, links are refused."""
    for tries_left in reversed(range(_READ_TRIES)):
        real = resolved(path, links=links)
        try:
            return _open_file(real)
        except AgentError as error:
            if error.code != CHANGED or not tries_left:
                raise
        except OSError as error:
            raise paths.refusal(error, path) from error
    raise AssertionError("unreachable")


def _open_file(real: str) -> int:
    folder, name = os.path.split(real)
    with directory(folder) as handle:
        try:
            # Without O_NONBLOCK, the open of a named pipe waits for a writer.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
            descriptor = os.open(name or ".", flags, dir_fd=handle)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise changed(real) from error
            raise
    try:
        paths.require_regular(os.fstat(descriptor).st_mode, real)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def resolved(path: str, *, links: bool = True) -> str:
    """Return the real path of an absolute path. Without `links`, raise 409 if the path contains a link."""
    real = paths.resolve(path)
    if not links and real != path:
        message = f"{path} leads through a symbolic link to {real}, which may not be used here. Nothing was changed."
        raise AgentError(409, "link", message)
    return real


CHANGED = "changed_on_disk"


def changed(path: str) -> AgentError:
    """Return the error for a path in which a symbolic link has appeared."""
    message = f"{path} was replaced by a symbolic link while it was used. Nothing was changed; check it and try again."
    return AgentError(409, CHANGED, message)


def _is_link_or_directory(name: str, handle: int) -> bool:
    try:
        mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISLNK(mode) or stat.S_ISDIR(mode)
