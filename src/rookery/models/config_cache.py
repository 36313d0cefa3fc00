"""A short-lived cache for configuration. One fill serves all waiting callers.

A fill runs in a separate task, so a waiting caller can be cancelled without affecting the others. The value of a fill
that began before an invalidation is returned to its callers but not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from rookery.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

TTL_SECONDS = 10.0
MAX_ENTRIES = 65_536


class CacheStats(msgspec.Struct, frozen=True):
    entries: int
    hits: int
    fills: int
    filling: int


class ConfigCache(Generic[K, V]):
    """Stores values by key for `ttl_seconds`. A failed fill is not stored; the next caller starts a new one."""

    def __init__(
        self,
        fill: Callable[[K], Awaitable[V]],
        *,
        clock: Clock,
        ttl_seconds: float = TTL_SECONDS,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._fill = fill
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._max_entries = max_entries
        self._entries: dict[K, tuple[float, V]] = {}
        self._running_fills: dict[K, asyncio.Task[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()
        self._generation = 0
        self._hits = self._fills = 0

    async def get(self, key: K) -> V:
        entry = self._entries.get(key)
        if entry is not None and entry[0] > self._clock.monotonic():
            self._hits += 1
            return entry[1]
        task = self._running_fills.get(key)
        if task is None:
            task = self._start(key)
        # With the shield, the fill continues for the other callers if one is cancelled.
        return await asyncio.shield(task)

    def prefetch(self, key: K) -> None:
        """Start a fill, unless the value is cached or being read. Several caches are then filled at the same time."""
        entry = self._entries.get(key)
        if (entry is None or entry[0] <= self._clock.monotonic()) and key not in self._running_fills:
            self._start(key)

    def invalidate(self, key: K | None = None) -> None:
        """Drop one value, or all values. Later callers get a value that is read after this call."""
        self._generation += 1
        if key is None:
            self._entries.clear()
            self._running_fills.clear()
            return
        self._entries.pop(key, None)
        # Fills of other keys continue but are not stored, because all keys share one generation number.
        self._running_fills.pop(key, None)

    def stats(self) -> CacheStats:
        return CacheStats(len(self._entries), self._hits, self._fills, len(self._tasks))

    async def close(self) -> None:
        """Cancel the running fills."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, key: K) -> asyncio.Task[V]:
        task = asyncio.get_running_loop().create_task(self._run(key, self._generation), name="config-cache-fill")
        self._running_fills[key] = task
        self._tasks.add(task)
        self._fills += 1
        task.add_done_callback(lambda done: self._done(key, done))
        return task

    async def _run(self, key: K, generation: int) -> V:
        value = await self._fill(key)
        if generation == self._generation:
            self._keep(key, value)
        return value

    def _keep(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        while len(self._entries) >= self._max_entries:
            del self._entries[next(iter(self._entries))]  # the oldest entry
        self._entries[key] = (self._clock.monotonic() + self._ttl_seconds, value)

    def _done(self, key: K, task: asyncio.Task[V]) -> None:
        self._tasks.discard(task)
        if self._running_fills.get(key) is task:
            del self._running_fills[key]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
