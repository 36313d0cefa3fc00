"""Prompts of the chats this process works on, kept between steps so that a step converts only what is new.

Only an optimisation, and bounded: what is not here is built anew. A builder is taken out while it is used, so that no
two steps of one chat can use it at the same time; whoever finds none builds its own.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

import msgspec

from rookery.chat.prompt import PromptBuilder

# Chosen. Most of what is counted is shared with the histories that `store.generation` keeps.
MAX_CACHE_BYTES = 64 * 1024 * 1024


class PromptCacheStats(msgspec.Struct, frozen=True):
    chats: int
    size_bytes: int


class PromptCache:
    """The builders used last, one for a chat, up to `max_bytes` of them by the sizes they are kept with."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[UUID, tuple[PromptBuilder, int]] = OrderedDict()
        self._bytes = 0

    def take(self, chat_id: UUID) -> PromptBuilder | None:
        """The builder of this chat, which is the caller's from now on."""
        builder, size_bytes = self._kept.pop(chat_id, (None, 0))
        self._bytes -= size_bytes
        return builder

    def keep(self, chat_id: UUID, builder: PromptBuilder, *, size_bytes: int) -> None:
        """Keep it for the next step. One that alone is larger than the cache is not kept."""
        self.take(chat_id)
        if size_bytes > self._max_bytes:
            return
        self._kept[chat_id] = (builder, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            self.take(next(iter(self._kept)))

    def stats(self) -> PromptCacheStats:
        return PromptCacheStats(len(self._kept), self._bytes)
