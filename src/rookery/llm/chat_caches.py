"""Caches of model clients per chat: the last encoded request, and the histories that providers refused.

Both save work and hold no state that must survive. A lost encoded request costs the encoding of the whole history. A
lost refusal costs one refused request, which the replay ladder repairs. Keys are (chat, provider, model), because
models refuse different histories.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock

Key: TypeAlias = tuple[str, UUID, str]

# Enough for a dozen chats of 10,000 messages, or for very many short ones.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# The estimated memory of an entry besides its encoded bytes.
_BASE_BYTES = 2048

# The estimated size of a remembered refusal with its key. Only chats that had a refusal have one.
ENTRY_BYTES = 512
MAX_BYTES = 4 * 1024 * 1024
MAX_AGE_SECONDS = 3600.0


class EncodedRequest:
    """The encoded pieces of a chat's last request, by variant: plain or faithful, with or without thinking."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        # Each wire stores its own type here, which has `size_bytes`.
        self.written: dict[tuple[bool, ...], Any] = {}

    @property
    def size_bytes(self) -> int:
        written: int = sum(each.size_bytes for each in self.written.values())
        return _BASE_BYTES + written


class EncodedRequests:
    """The last encoded requests of all chats; one object per process.

    The next request of a chat is encoded only after the point at which it differs from the last one. An entry is taken
    out while a request is built, so that two requests of one chat cannot use it at the same time. The second request
    starts with an empty entry.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[Key, EncodedRequest] = Cache(
            "requests", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def size_bytes(self) -> int:
        return self.entries.size_bytes

    def take(self, key: Key | None) -> EncodedRequest:
        """Remove and return the last encoded request of this chat; an empty one if there is none."""
        return EncodedRequest() if key is None else self.entries.take(key) or EncodedRequest()

    def keep(self, key: Key | None, previous: EncodedRequest) -> None:
        """Store the encoded request for the next one of this chat."""
        if key is not None:
            self.entries.keep(key, previous, size_bytes=previous.size_bytes)


class ReplayMemory:
    """The refusals of each chat, so that the same refusal does not happen twice.

    `max_bytes` applies to each of the two kinds of entries.
    """

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
        """Return whether the history holds thinking whose prefix has changed since it was made."""
        return self._stale.find(key) is not None

    def remember_stale_thinking(self, key: Key) -> None:
        self._stale.keep(key, True, size_bytes=ENTRY_BYTES)

    def is_new_break(self, key: Key, broken_prefix: bytes) -> bool:
        """Return whether this broken prefix was not reported yet, and record it as reported.

        A retried request has the same broken prefix.
        """
        is_new = self._broken.find(key) != broken_prefix
        self._broken.keep(key, broken_prefix, size_bytes=ENTRY_BYTES)
        return is_new
