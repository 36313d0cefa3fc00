"""The spill file: the complete output of a command in a file of the workspace, once it exceeds what a model is shown.

The model reads a range of the file instead of running the command again. The file is started at the first byte beyond
what a view can show, so most commands leave none. It is best effort: when the disk is full or the folder cannot be
used, the command continues without it.
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
from rookery.workspaces.agent.process.output import Kept, Output

FOLDER = ".rookery/results"
# The maximum that the tool for reading files reads.
MAX_BYTES = 64 * 1024 * 1024
# Chosen: the limit of all spill files together. The oldest are deleted first.
MAX_KEPT_BYTES = 256 * 1024 * 1024
MAX_KEPT_FILES = 100
_MAX_SAME_NAME = 99
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

Claim = Callable[[int], bool]


def is_name(name: str) -> bool:
    """Return whether the file name is valid: letters, digits, hyphens and underscores."""
    return _NAME.fullmatch(name) is not None


class Spill:
    """The file of one command. `claim` returns whether this many more bytes fit the workspace's disk."""

    def __init__(self, home: str, name: str, claim: Claim) -> None:
        self._home = home
        self._name = name
        self._claim = claim
        self._descriptor = -1
        self._size = 0
        self._path: str | None = None
        self._is_over = False
        self._is_whole = True

    @property
    def kept(self) -> Kept | None:
        return None if self._path is None else Kept(self._path, self._size, self._is_whole)

    def take(self, output: Output, data: bytes) -> None:
        """Store output of the command, before `output` receives it."""
        if self._is_over:
            return
        if self._path is None:
            if output.total + len(data) <= outputs.VIEW_BYTES:
                return
            self._begin()
            self._write(output.everything())
        self._write(data)

    def finish(self, output: Output) -> None:
        """Finish the file. An output with lines that are too long for a view gets a file even if it is short."""
        if self._path is None and not self._is_over and output.view(ended=True).truncated is not None:
            self._begin()
            self._write(output.everything())
        self._end()

    def _begin(self) -> None:
        try:
            self._descriptor, self._path = new_file(self._home, self._name)
        except (OSError, AgentError):
            self._end()

    def _write(self, data: bytes) -> None:
        if self._is_over:
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
            self._is_whole = False
            self._end()
            return
        if len(data) > room:
            self._is_whole = False
            self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._path is not None and self._size == 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._path = None


def new_file(home: str, name: str) -> tuple[int, str]:
    """Make room for one result, create its file, and return its descriptor and path.

    The file is always new: two chats may have calls of one name, and each marker refers to its own file. The folder is
    reached without following links below the home, because old results in it are deleted.
    """
    folder = directory_handles.open_directory(os.path.join(paths.resolve(home), FOLDER), create=True, mode=0o700)
    try:
        make_room(folder)
        for number in range(1, _MAX_SAME_NAME + 1):
            numbered = name if number == 1 else f"{name}-{number}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                return os.open(numbered, flags, 0o600, dir_fd=folder), os.path.join(home, FOLDER, numbered)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    finally:
        os.close(folder)


def make_room(folder: int) -> None:
    """Delete the oldest results until there is room for one more. Only files directly in the folder are deleted."""
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
