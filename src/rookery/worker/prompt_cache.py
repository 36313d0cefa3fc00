"""Prompts of the chats this process works on, kept between steps so that a step converts only what is new.

A builder is taken out while it is used, so that no two steps of one chat can use it at the same time; whoever finds
none builds its own.
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.prompt import PromptBuilder
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock

# Chosen. Most of what is counted is shared with the histories that `store.generation` keeps.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: what a builder takes besides the rows it was made of.
_BASE_BYTES = 4096


class PromptCache:
    """One builder for a chat. `history_bytes` is the size of the history that it was made of."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[UUID, PromptBuilder] = Cache(
            "prompts", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    def take(self, chat_id: UUID) -> PromptBuilder | None:
        """The builder of this chat, which is the caller's from now on."""
        return self.entries.take(chat_id)

    def keep(self, chat_id: UUID, builder: PromptBuilder, *, history_bytes: int) -> None:
        """Keep it for the next step."""
        self.entries.keep(chat_id, builder, size_bytes=history_bytes + _BASE_BYTES)
