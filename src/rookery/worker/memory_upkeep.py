"""Memory upkeep: drops old cache entries, and returns free heap pages to the operating system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn
from uuid import UUID

from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock
from rookery.runtime.heap import trim_heap

SWEEP_SECONDS = 5.0
# A trim takes some milliseconds per 10 MiB of free memory, and threads that allocate memory wait for it.
TRIM_SECONDS = 30.0
# Used while chats run. A pause of 100 ms every few minutes is hardly noticed.
BUSY_TRIM_SECONDS = 300.0


class Memory:
    """Sweeps the caches of a worker, and trims the heap if memory was freed since the last trim.

    Memory counts as freed if a sweep dropped entries or a turn ended; `count_turns` returns the number of ended turns.
    While `is_busy` returns True, the heap is trimmed less often, because a trim delays answers.

    Cache entries of `running_chats` do not expire, because a step may take longer than their maximum age, and the next
    step needs them. A key of a cache is a chat id, or a tuple that begins with one.
    """

    def __init__(
        self,
        caches: Sequence[Cache[Any, Any]],
        *,
        clock: Clock,
        running_chats: Callable[[], Iterable[UUID]],
        count_turns: Callable[[], int],
        is_busy: Callable[[], bool],
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._caches = caches
        self._clock = clock
        self._running_chats = running_chats
        self._count_turns = count_turns
        self._is_busy = is_busy
        self._trim = trim or trim_heap
        self._trimmed_at = clock.monotonic()
        self._known_turns = 0
        self._has_freed = False

    async def run(self) -> NoReturn:
        async for _ in self._clock.ticker(SWEEP_SECONDS, "memory-sweep"):
            self.sweep()
            if self.is_trim_due():
                await asyncio.to_thread(self._trim)
        raise AssertionError("unreachable")

    def sweep(self) -> None:
        """Drop expired entries from all caches."""
        # The model clients identify a chat by the text of its id.
        running: set[object] = {form for chat_id in self._running_chats() for form in (chat_id, str(chat_id))}

        def is_in_use(key: object) -> bool:
            return (key[0] if isinstance(key, tuple) else key) in running

        freed = sum(cache.sweep(is_in_use if running else None) for cache in self._caches)
        self._has_freed = self._has_freed or freed > 0

    def is_trim_due(self) -> bool:
        """Return whether to trim now: memory was freed, and the pause since the last trim is over.

        If the result is True, the next pause begins.
        """
        now, turns = self._clock.monotonic(), self._count_turns()
        has_freed = self._has_freed or turns != self._known_turns
        pause = BUSY_TRIM_SECONDS if self._is_busy() else TRIM_SECONDS
        if not has_freed or now - self._trimmed_at < pause:
            return False
        self._trimmed_at, self._known_turns, self._has_freed = now, turns, False
        return True
