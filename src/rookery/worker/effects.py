"""What follows an outcome: labels, summaries, pushes. Detached, so that it neither delays nor fails the next step.

The methods are called right after a commit and return at once.
"""

from __future__ import annotations

from rookery.chat.chats import Chat, LastError
from rookery.chat.decide import TurnEnd
from rookery.store.generation import ChatMeta, LoadedHistory


class Effects:
    """One per process. `chat` is always the committed row, after the transition."""

    def turn_finished(
        self, chat: Chat, meta: ChatMeta, history: LoadedHistory, *, reason: TurnEnd, is_promoted: bool
    ) -> None:
        """A turn is over, or gave way to the next message of the queue (`is_promoted`)."""

    def turn_failed(self, chat: Chat, failure: LastError) -> None:
        """A turn ended in an error."""

    def action_required(self, chat: Chat) -> None:
        """The chat waits for its client."""

    def interrupted(self, chat: Chat, *, is_promoted: bool) -> None:
        """A turn was stopped by a person."""
