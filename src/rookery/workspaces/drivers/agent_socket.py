"""The connector to an agent on this machine: its socket, held by an open handle.

A workspace may replace its socket with a link to any other socket of the machine. A handle always refers to the socket
that was checked. Its path is also short, as socket paths must be.
"""

from __future__ import annotations

import asyncio
import os
import stat
import weakref
from pathlib import Path

from rookery.workspaces.drivers.protocol import DriverError


class HeldSocket:
    """A Connector for a Unix socket that must belong to the owner of its directory, which is the workspace's user, or
    to one of `others`.
    """

    def __init__(self, path: Path, others: frozenset[int] = frozenset()) -> None:
        self._path = path
        self._others = others
        self._handle: int | None = None
        self._finalizer: weakref.finalize[..., HeldSocket] | None = None

    @property
    def unix_path(self) -> str | None:
        return None if self._handle is None else f"/proc/self/fd/{self._handle}"

    async def prepare(self) -> None:
        """Open the socket again: the agent may have come up since, or another one has replaced it."""
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
