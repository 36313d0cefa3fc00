"""The spill file: the complete output of a process in a file of the workspace, if it does not fit a view.

The model can read parts of the file instead of running the command again. The file is created when the output exceeds
the size of a view, so most processes have none. If the disk is full or the folder cannot be used, the process continues
without the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable

from rookery.workspaces.agent import directory_handles, paths
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.process import output as outputs
from rookery.workspaces.agent.process.output import Output, SpilledOutput

FOLDER = ".rookery/results"
# The largest file that `file_lines` reads.
MAX_BYTES = 64 * 1024 * 1024
# Chosen: limits for all spill files together. The oldest are deleted first.
MAX_KEPT_BYTES = 256 * 1024 * 1024
MAX_KEPT_FILES = 100
_MAX_SAME_NAME = 99
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

Claim = Callable[[int], bool]


def is_name(name: str) -> bool:
    """Return whether the name consists of letters, digits, hyphens and underscores."""
    return _NAME.fullmatch(name) is not None


class SpillFile:
    """The spill file of one process. `claim` returns whether this many more bytes fit the disk limit."""

    def __init__(self, home: str, name: str, claim: Claim) -> None:
        self._home = home
        self._name = name
        self._claim = claim
        self._descriptor = -1
        self._size = 0
        self._path: str | None = None
        self._is_closed = False
        self._is_complete = True

    @property
    def spilled(self) -> SpilledOutput | None:
        return None if self._path is None else SpilledOutput(self._path, self._size, self._is_complete)

    def take(self, output: Output, data: bytes) -> None:
        """Store new output. Call this before `output.append`."""
        if self._is_closed:
            return
        if self._path is None:
            if output.total + len(data) <= outputs.VIEW_BYTES:
                return
            self._open()
            self._write(output.everything())
        self._write(data)

    def finish(self, output: Output) -> None:
        """Close the file at the end of the process. If a view would cut lines, store even a short output."""
        if self._path is None and not self._is_closed and output.view(ended=True).truncated is not None:
            self._open()
            self._write(output.everything())
        self._close()

    def _open(self) -> None:
        try:
            self._descriptor, self._path = new_file(self._home, self._name)
        except (OSError, AgentError):
            self._close()

    def _write(self, data: bytes) -> None:
        if self._is_closed:
            return
        room = MAX_BYTES - self._size
        piece = memoryview(data)[:room]
        try:
            if not self._claim(len(piece)):
                raise OSError("the disk of the workspace is full")
            while piece:
                written = os.write(self._descriptor, piece)
                self._size += written
                piece = piece[written:]
        except OSError:
            self._is_complete = False
            self._close()
            return
        if len(data) > room:
            self._is_complete = False
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._path is not None and self._size == 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._path = None


def new_file(home: str, name: str) -> tuple[int, str]:
    """Create a new file for one result, and return its descriptor and path. Old results are deleted if necessary.

    The file is always new, because calls of two chats may have the same name. Links below the home are not followed.
    """
    folder = directory_handles.open_directory(os.path.join(paths.resolve(home), FOLDER), create=True, mode=0o700)
    try:
        delete_oldest(folder)
        for number in range(1, _MAX_SAME_NAME + 1):
            numbered = name if number == 1 else f"{name}-{number}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                return os.open(numbered, flags, 0o600, dir_fd=folder), os.path.join(home, FOLDER, numbered)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    finally:
        os.close(folder)


def delete_oldest(folder: int) -> None:
    """Delete the oldest files of the folder until there is room for one more."""
    found = []
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(listed) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.name))
    finally:
        os.close(listed)
    found.sort()
    count, size = len(found), sum(each[1] for each in found)
    for _, length, name in found:
        if count < MAX_KEPT_FILES and size + MAX_BYTES <= MAX_KEPT_BYTES:
            return
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        count, size = count - 1, size - length
