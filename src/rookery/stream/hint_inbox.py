"""The inbox of hints for one stream (one slot with the newest hint), and the registry of all inboxes of this process.

Posting never waits and allocates nothing, so a slow stream cannot delay the listener's task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from rookery.store.db.hints import ChatHint
from rookery.store.db.pubsub import Bus, Subscription


class Inbox:
    """The newest hint for one stream. `wake` is called when it changes."""

    __slots__ = ("_hint", "_resync", "_wake", "chat_id")

    def __init__(self, chat_id: UUID, wake: Callable[[], None]) -> None:
        self.chat_id = chat_id
        self._wake = wake
        self._hint: ChatHint | None = None
        self._resync = False

    def post(self, hint: ChatHint) -> None:
        """Store the hint unless a newer one waits. A hint that the chat is gone is never replaced."""
        waiting = self._hint
        is_newest = (
            waiting is None or hint.gone or (not waiting.gone and waiting.snapshot_version < hint.snapshot_version)
        )
        if not is_newest:
            return
        self._hint = hint
        self._wake()

    def resync(self) -> None:
        """Request a read for any version, because hints may have been missed."""
        self._resync = True
        self._wake()

    @property
    def is_empty(self) -> bool:
        return self._hint is None and not self._resync

    @property
    def is_gone(self) -> bool:
        """Whether the chat is deleted."""
        return self._hint is not None and self._hint.gone

    def take(self) -> tuple[ChatHint | None, bool]:
        """Return the newest hint since the last call, and whether a read was requested for any version."""
        taken = self._hint, self._resync
        self._hint, self._resync = None, False
        return taken


class Registry:
    """All inboxes of this process, by chat. Register before the first read, so that no change is missed."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._inboxes: dict[UUID, dict[Inbox, Subscription]] = {}
        self._resync = bus.on_resync(self._on_resync)

    def __len__(self) -> int:
        return sum(len(each) for each in self._inboxes.values())

    def add(self, inbox: Inbox) -> None:
        subscription = self._bus.subscribe(ChatHint, inbox.post, key=inbox.chat_id)
        self._inboxes.setdefault(inbox.chat_id, {})[inbox] = subscription

    def remove(self, inbox: Inbox) -> None:
        """Remove an inbox. May be called more than once."""
        inboxes = self._inboxes.get(inbox.chat_id, {})
        subscription = inboxes.pop(inbox, None)
        if subscription is None:
            return
        subscription.close()
        if not inboxes:
            del self._inboxes[inbox.chat_id]

    def chat_ids(self) -> list[UUID]:
        return list(self._inboxes)

    def post(self, hint: ChatHint) -> None:
        for inbox in tuple(self._inboxes.get(hint.chat_id, ())):
            inbox.post(hint)

    def close(self) -> None:
        self._resync.close()
        for inbox in self._all():
            self.remove(inbox)

    def _on_resync(self) -> None:
        for inbox in self._all():
            inbox.resync()

    def _all(self) -> Iterable[Inbox]:
        return [inbox for inboxes in self._inboxes.values() for inbox in inboxes]
