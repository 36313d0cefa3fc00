"""One lock for each real path, so that parallel writes of one file are serialized."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class PathLocks:
    """Locks that exist while a caller holds or awaits them."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, paths: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these real paths. They are taken in sorted order, so holders cannot deadlock."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                await stack.enter_async_context(self._one(path))
            yield

    @asynccontextmanager
    async def _one(self, path: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(path, asyncio.Lock())
        self._users[path] = self._users.get(path, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[path] -= 1
            if self._users[path] == 0:
                del self._users[path], self._locks[path]
