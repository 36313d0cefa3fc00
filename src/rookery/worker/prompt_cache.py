"""The prompt cache: keeps prompt builders of chats between steps, so that a step converts only new messages.

A builder is removed while it is used, so that two steps of one chat never share it; a step that finds none builds its
own.
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.prompt import PromptBuilder
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock

# Chosen. Most of the counted bytes are shared with the histories in `store.chats.step_reads.HistoryCache`.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# Chosen: size of a builder without its rows.
_BASE_BYTES = 4096


class PromptCache:
    """One builder per chat. `history_bytes` is the size of the history that it was built from."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[UUID, PromptBuilder] = Cache(
            "prompts", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    def take(self, chat_id: UUID) -> PromptBuilder | None:
        """Remove and return the builder of this chat."""
        return self.entries.take(chat_id)

    def keep(self, chat_id: UUID, builder: PromptBuilder, *, history_bytes: int) -> None:
        """Keep the builder for the next step."""
        self.entries.keep(chat_id, builder, size_bytes=history_bytes + _BASE_BYTES)
