"""The way to an agent on this machine: its socket, held by an open handle.

A workspace may put a link where its socket was, to any other socket of the machine. A handle means the socket that was
checked, whatever happens to its name; and its path is short, which those of sockets must be.
"""

from __future__ import annotations

import asyncio
import os
import stat
import weakref
from pathlib import Path

from rookery.workspaces.drivers.protocol import DriverError


class HeldSocket:
    """A Connector for a unix socket that belongs to the owner of the directory it is in, which is the user of the
    workspace; or to one of `others`."""

    def __init__(self, path: Path, others: frozenset[int] = frozenset()) -> None:
        self._path = path
        self._others = others
        self._handle: int | None = None
        self._finalizer: weakref.finalize[..., HeldSocket] | None = None

    @property
    def unix_path(self) -> str | None:
        return None if self._handle is None else f"/proc/self/fd/{self._handle}"

    async def prepare(self) -> None:
        """Look again: the agent may have come up since, or another one in its place."""
        try:
            owner = self._path.parent.lstat().st_uid
            handle = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConnectionRefusedError(f"there is no socket of the agent: {error.strerror}") from error
        found = os.fstat(handle)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (owner, *self._others):
            os.close(handle)
            raise DriverError("agent_exited", "What is in the place of the agent's socket is not the agent's socket.")
        if self._handle is not None and os.path.samestat(os.fstat(self._handle), found):
            os.close(handle)
            return
        self._let_go()
        self._handle = handle
        self._finalizer = weakref.finalize(self, os.close, handle)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._handle is None:
            await self.prepare()
        assert self.unix_path is not None
        return await asyncio.open_unix_connection(self.unix_path)

    async def close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._handle = self._finalizer = None
