"""The cache of each chat's last request, so that the next one is encoded only from where it differs.

A past is taken out while a request is built, so that two requests of one chat cannot use it at the same time; the
second one starts with an empty past.
"""

from __future__ import annotations

from typing import Any

from rookery.llm.replay_memory import Key
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock

# Chosen: a dozen chats of 10,000 messages, or very many of a common length.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: the memory of a past besides the written bytes.
_BASE_BYTES = 2048


class EncodedRequest:
    """The encoded pieces by variant of the request: plain or faithful, with or without thinking."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        # The types belong to the wires and have `size_bytes`; each wire finds here only what it has stored.
        self.written: dict[tuple[bool, ...], Any] = {}

    @property
    def size_bytes(self) -> int:
        written: int = sum(each.size_bytes for each in self.written.values())
        return _BASE_BYTES + written


class EncodedRequests:
    """The pasts of all chats, one object per process. Keys are (chat, provider, model)."""

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
        """Take out the past of this chat; an empty one if there is none. The caller owns it from now on."""
        return EncodedRequest() if key is None else self.entries.take(key) or EncodedRequest()

    def keep(self, key: Key | None, past: EncodedRequest) -> None:
        """Store it for the next request."""
        if key is not None:
            self.entries.keep(key, past, size_bytes=past.size_bytes)
