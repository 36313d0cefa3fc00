"""Wait times for connections of a pool: a process whose pool is too small for its work accepts no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import asyncpg

from rookery.telemetry.histogram import Histogram

# Chosen: how long a finished wait still predicts the next one.
FRESH_SECONDS = 1.0


class PoolWaits:
    """Current and recent waits."""

    __slots__ = ("_last", "_last_at", "_monotonic", "_since", "seconds")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since: dict[object, float] = {}  # the longest is first
        self._last = 0.0
        self._last_at = 0.0
        self.seconds = Histogram()

    @property
    def current_seconds(self) -> float:
        """Return how long the next caller may have to wait, by current waits and the last finished one."""
        now = self._monotonic()
        oldest = next(iter(self._since.values()), now)
        return max(now - oldest, self._last if now - self._last_at < FRESH_SECONDS else 0.0)

    def begin(self) -> object:
        waiter = object()
        self._since[waiter] = self._monotonic()
        return waiter

    def end(self, waiter: object) -> None:
        self._last_at = self._monotonic()
        self._last = self._last_at - self._since.pop(waiter)
        self.seconds.observe(self._last)


class WatchedPool(asyncpg.Pool):
    """A pool that measures the waits of its users, including those for opening a connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits = PoolWaits()

    async def _acquire(self, timeout: float | None) -> Any:
        waiter = self.waits.begin()
        try:
            return await super()._acquire(timeout)  # type: ignore[misc]  # not in its stubs
        finally:
            self.waits.end(waiter)
