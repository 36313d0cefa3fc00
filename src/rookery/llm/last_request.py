"""What the wires keep of a chat's last request, so that the next one is written from where it differs.

A past is taken out while a request is built, so that no two requests of one chat can use it at the same time; whoever
finds none starts with an empty one.
"""

from __future__ import annotations

from typing import Any

from rookery.llm.replay_memory import Key
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock

# Chosen: a dozen chats of 10,000 messages, or very many of a common length.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: what a past takes besides what was written.
_BASE_BYTES = 2048


class Past:
    """What was written, by the variant of the request: plain or faithful, with or without thinking."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        # The types are the wires' own, with their `size_bytes`; each finds here only what it has put here.
        self.written: dict[tuple[bool, ...], Any] = {}

    @property
    def size_bytes(self) -> int:
        written: int = sum(each.size_bytes for each in self.written.values())
        return _BASE_BYTES + written


class Pasts:
    """One per process. Keys are (chat, provider, model)."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[Key, Past] = Cache(
            "requests", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def size_bytes(self) -> int:
        return self.entries.size_bytes

    def take(self, key: Key | None) -> Past:
        """The past of this chat, which is the caller's from now on; an empty one when there is none."""
        return Past() if key is None else self.entries.take(key) or Past()

    def keep(self, key: Key | None, past: Past) -> None:
        """Keep it for the next request."""
        if key is not None:
            self.entries.keep(key, past, size_bytes=past.size_bytes)
