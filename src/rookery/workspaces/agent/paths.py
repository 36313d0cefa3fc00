"""Paths in requests: normalization, resolution of symbolic links, and error responses for system errors."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

from rookery.workspaces.agent.errors import AgentError

MAX_LINKS = 40
MAX_PATH_CHARS = 4096

_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_WRONG = {
    errno.EISDIR: "is a directory",
    errno.ENOTDIR: "leads through something that is not a directory",
    errno.ELOOP: "leads through too many symbolic links",
    errno.ENAMETOOLONG: "is too long",
    errno.EINVAL: "is not a path the system accepts",
    errno.ENXIO: "is not a regular file",
}


def absolute(path: object) -> str:
    """Return a path without `.`, `..` and doubled slashes. Raise 400 if it is not an absolute path."""
    if not isinstance(path, str) or not path.strip():
        raise AgentError(400, "invalid", "A path is required, and it must be text that is not blank.")
    if "\x00" in path:
        raise AgentError(400, "invalid", "A path must not contain a NUL character.")
    if len(path) > MAX_PATH_CHARS:
        raise AgentError(400, "invalid", f"A path has at most {MAX_PATH_CHARS} characters.")
    if not path.startswith("/"):
        raise AgentError(400, "relative_path", f"{path!r} is a relative path. Paths must be absolute, such as /home/x.")
    # `normpath` keeps two leading slashes, because POSIX gives them a special meaning.
    return os.path.normpath("/" + path.lstrip("/"))


def resolve(path: str) -> str:
    """Return the real path of an absolute path: at most 40 links are followed, and missing components are kept."""
    pending = deque(path.split("/"))
    current = "/"
    links = 0
    while pending:
        name = pending.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        candidate = os.path.join(current, name)
        try:
            target = os.readlink(candidate)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                current = candidate  # not a link, or missing
                continue
            raise refusal(error, path) from error
        links += 1
        if links > MAX_LINKS:
            raise AgentError(400, "too_many_links", f"{path} leads through more than {MAX_LINKS} symbolic links.")
        if target.startswith("/"):
            current = "/"
        pending.extendleft(reversed(target.split("/")))
    return current


def refusal(error: OSError, path: str) -> AgentError:
    """Convert a system error to the error response for this path."""
    number = error.errno
    if number == errno.ENOENT:
        return AgentError(404, "not_found", f"{path} does not exist.")
    if number in _FORBIDDEN:
        reason = "it is on a read-only file system" if number == errno.EROFS else "permission denied"
        return AgentError(403, "forbidden", f"{path} cannot be accessed: {reason}.")
    if number in _FULL:
        return AgentError(507, "disk_full", f"{path} cannot be written: the disk of the workspace is full.")
    if number in _WRONG:
        return AgentError(400, "wrong_kind", f"{path} {_WRONG[number]}.")
    return AgentError(500, "io_error", f"{path} cannot be used: {os.strerror(number) if number else error}.")


def require_regular(mode: int, path: str) -> None:
    """Raise 400 unless the file is a regular file. A read of a pipe or device may never end."""
    if stat.S_ISDIR(mode):
        raise AgentError(400, "wrong_kind", f"{path} is a directory, not a file.")
    if not stat.S_ISREG(mode):
        raise AgentError(400, "wrong_kind", f"{path} is not a regular file.")
