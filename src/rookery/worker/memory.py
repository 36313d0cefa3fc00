"""Memory upkeep: drops old entries of the process's caches, and returns free pages to the operating system.

The C library keeps freed memory inside its heap and in the heaps of threads, where large requests are written. Without
trimming, answers of megabytes would leave the process as large as it has ever been.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn
from uuid import UUID

from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock

SWEEP_SECONDS = 5.0
# Chosen: a pass takes some milliseconds for each 10 MiB that are free, and threads that allocate meanwhile wait for it.
TRIM_SECONDS = 30.0
# On a server that is never quiet. Chosen: a pause of 100 ms every few minutes is hardly noticed.
BUSY_TRIM_SECONDS = 300.0


class Memory:
    """Memory upkeep of a worker: sweeps the caches, and trims the heap if memory was freed since the last trim.

    Memory counts as freed if a sweep dropped entries or a turn ended; `count_turns` returns how many turns have ended.
    While `is_busy`, the heap is trimmed more rarely: a trim delays answers, and the next turns need the memory again.

    Cache entries of `running_chats` do not expire: a step may take longer than their maximum age, and the next step
    needs them. The key of each cache is a chat id, or a tuple that begins with one.
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
        """Drop entries that are too old from all caches."""
        # The model clients identify a chat by the text of its id.
        running: set[object] = {form for chat_id in self._running_chats() for form in (chat_id, str(chat_id))}

        def is_in_use(key: object) -> bool:
            return (key[0] if isinstance(key, tuple) else key) in running

        freed = sum(cache.sweep(is_in_use if running else None) for cache in self._caches)
        self._has_freed = self._has_freed or freed > 0

    def is_trim_due(self) -> bool:
        """Return whether memory was freed since the last trim and the pause is over. If so, the next pause begins."""
        now, turns = self._clock.monotonic(), self._count_turns()
        has_freed = self._has_freed or turns != self._known_turns
        pause = BUSY_TRIM_SECONDS if self._is_busy() else TRIM_SECONDS
        if not has_freed or now - self._trimmed_at < pause:
            return False
        self._trimmed_at, self._known_turns, self._has_freed = now, turns, False
        return True


def _find_trim() -> Callable[[int], object] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None


_malloc_trim = _find_trim()


def trim_heap() -> None:
    """Return the free pages of the C library's heaps to the operating system. Python runs on meanwhile."""
    if _malloc_trim is not None:
        _malloc_trim(0)
