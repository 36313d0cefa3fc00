"""The memory of refused histories per chat, so that the same refusal does not happen twice.

A lost entry costs one refused request, which the replay ladder repairs. A chat has an entry for each model it talks to,
because models refuse different things.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock

# Chosen: an entry with its key. Only chats that had a refusal have one.
ENTRY_BYTES = 512
MAX_BYTES = 4 * 1024 * 1024
MAX_AGE_SECONDS = 3600.0

Key: TypeAlias = tuple[str, UUID, str]


class ReplayMemory:
    """Keys are (chat, provider, model). `max_bytes` applies to each of the two kinds of entries."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, clock: Clock | None = None) -> None:
        age = MAX_AGE_SECONDS
        self._stale: Cache[Key, bool] = Cache("stale_thinking", max_bytes=max_bytes, max_age_seconds=age, clock=clock)
        # The last broken prefix that was reported.
        self._broken: Cache[Key, bytes] = Cache(
            "broken_prefixes", max_bytes=max_bytes, max_age_seconds=age, clock=clock
        )

    def __len__(self) -> int:
        return len(self._stale) + len(self._broken)

    @property
    def caches(self) -> tuple[Cache[Any, Any], ...]:
        return self._stale, self._broken

    def has_stale_thinking(self, key: Key) -> bool:
        """Return whether a prefix of this chat changed under its thinking: that thinking stays in the history."""
        return self._stale.find(key) is not None

    def remember_stale_thinking(self, key: Key) -> None:
        self._stale.keep(key, True, size_bytes=ENTRY_BYTES)

    def is_new_break(self, key: Key, broken_prefix: bytes) -> bool:
        """Return whether this break was not reported yet, and record it as reported. A retried request has the same
        break."""
        is_new = self._broken.find(key) != broken_prefix
        self._broken.keep(key, broken_prefix, size_bytes=ENTRY_BYTES)
        return is_new
