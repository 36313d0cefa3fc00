"""An in-memory cache with a size limit in bytes and a maximum age since the last use.

All caches of chat data use this class, so that each has limits and metrics. docs/operations/memory.md lists them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rookery.runtime.clock import Clock, SystemClock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# The maximum age of chat data after the end of a turn; entries of running chats do not expire (`worker.memory_upkeep`).
# A chat that continues later is read again, which takes a few milliseconds unless it is very long.
CHAT_SECONDS = 60.0


class CacheStats(msgspec.Struct, frozen=True):
    """The state of a cache, and counters since the start of the process.

    `evicted` counts the entries that were dropped because of the size limit, and `expired` those that were too old.
    """

    entries: int
    size_bytes: int
    max_bytes: int
    hits: int
    misses: int
    evicted: int
    expired: int


class _Entry(NamedTuple, Generic[V]):
    value: V
    size_bytes: int
    used_at: float


class Cache(Generic[K, V]):
    """Keeps the most recently used values. Their stored sizes add up to at most `max_bytes`.

    A value that was not used for `max_age_seconds` counts as missing; `sweep` frees its memory.
    """

    def __init__(self, name: str, *, max_bytes: int, max_age_seconds: float, clock: Clock | None = None) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.max_age_seconds = max_age_seconds
        self._clock = clock or SystemClock()
        # Ordered by the time of the last use.
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._evicted = self._expired = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def find(self, key: K) -> V | None:
        """Return the value and count it as used."""
        entry = self._pop(key)
        if entry is None:
            return None
        self._entries[key] = entry._replace(used_at=self._clock.monotonic())
        self._bytes += entry.size_bytes
        return entry.value

    def peek(self, key: K) -> V | None:
        """Return the value without counting it as used, even if it is too old."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def take(self, key: K) -> V | None:
        """Remove and return the value."""
        entry = self._pop(key)
        return None if entry is None else entry.value

    def keep(self, key: K, value: V, *, size_bytes: int) -> None:
        """Store a value, which replaces the previous one. A value larger than `max_bytes` is not stored."""
        self.drop(key)
        if size_bytes > self.max_bytes:
            return
        self._entries[key] = _Entry(value, size_bytes, self._clock.monotonic())
        self._bytes += size_bytes
        while self._bytes > self.max_bytes:
            _, evicted = self._entries.popitem(last=False)
            self._bytes -= evicted.size_bytes
            self._evicted += 1

    def drop(self, key: K) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._bytes -= entry.size_bytes

    def sweep(self, is_in_use: Callable[[K], bool] | None = None) -> int:
        """Drop values that are too old. Return their size in bytes.

        Keys for which `is_in_use` returns True count as used now.
        """
        before = self._bytes
        now = self._clock.monotonic()
        if is_in_use is not None:
            for key in [key for key in self._entries if is_in_use(key)]:
                self._entries[key] = self._entries[key]._replace(used_at=now)
                self._entries.move_to_end(key)
        oldest = now - self.max_age_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at > oldest:
                break
            self.drop(key)
            self._expired += 1
        return before - self._bytes

    def stats(self) -> CacheStats:
        return CacheStats(
            entries=len(self._entries),
            size_bytes=self._bytes,
            max_bytes=self.max_bytes,
            hits=self._hits,
            misses=self._misses,
            evicted=self._evicted,
            expired=self._expired,
        )

    def _pop(self, key: K) -> _Entry[V] | None:
        """Remove and return an entry, and count the lookup. Return None if it is missing or too old."""
        entry = self._entries.pop(key, None)
        if entry is None:
            self._misses += 1
            return None
        self._bytes -= entry.size_bytes
        if self._clock.monotonic() - entry.used_at >= self.max_age_seconds:
            self._misses += 1
            self._expired += 1
            return None
        self._hits += 1
        return entry
