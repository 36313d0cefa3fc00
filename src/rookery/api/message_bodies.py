"""Responses to requests about messages. The messages in them have the same form as in streams."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import Message, StepFigures, Visibility
from rookery.domain.chat.prompt import PromptRow
from rookery.store.authorized.chat_changes import EditResult, PromoteResult, Queue, SendResult
from rookery.store.authorized.messages import MessageList
from rookery.stream import views
from rookery.stream.views import MessageView, QueuedMessageView


class ChatState(msgspec.Struct, frozen=True):
    """The fields of a chat by which clients order responses and events."""

    status: str
    snapshot_version: int
    history_version: int
    queue_len: int


class MessagesView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of messages. `queued_messages` is present without a cursor, `has_newer` in a page around a message."""

    items: tuple[MessageView, ...]
    has_more: bool
    snapshot_version: int
    history_version: int
    queued_messages: tuple[QueuedMessageView, ...] | UnsetType = UNSET
    has_newer: bool | UnsetType = UNSET


class SendView(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a send.

    `messages` are all visible messages that this request inserted, in order. Clients insert all of them.
    """

    queued: bool
    message: MessageView | None
    queued_message: QueuedMessageView | None
    messages: tuple[MessageView, ...]
    chat: ChatState
    warnings: tuple[str, ...] = ()


class EditView(msgspec.Struct, frozen=True, kw_only=True):
    message: MessageView
    messages: tuple[MessageView, ...]
    deleted_message_ids: tuple[int, ...]
    deleted_queued_ids: tuple[int, ...]
    chat: ChatState


class PromoteView(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a promotion. `message` is null while the running turn has to stop first."""

    message: MessageView | None
    messages: tuple[MessageView, ...]
    chat: ChatState


class QueueView(msgspec.Struct, frozen=True):
    items: tuple[QueuedMessageView, ...]
    queue_version: int


_NO_FIGURES = StepFigures()


def state(chat: Chat) -> ChatState:
    return ChatState(chat.status, chat.snapshot_version, chat.history_version, chat.queue_len)


def page(found: MessageList, *, is_around: bool) -> MessagesView:
    queue = found.queued_messages
    return MessagesView(
        items=tuple(map(views.message, found.items)),
        has_more=found.has_more,
        snapshot_version=found.snapshot_version,
        history_version=found.history_version,
        queued_messages=UNSET if queue is None else views.queued_messages(queue),
        has_newer=found.has_newer if is_around else UNSET,
    )


def sent(done: SendResult) -> SendView:
    queued = done.sent.queued
    inserted = _visible(done.inserted)
    return SendView(
        queued=queued is not None,
        message=inserted[-1] if queued is None and inserted else None,
        queued_message=None if queued is None else views.queued_message(queued),
        messages=inserted,
        chat=state(done.chat),
    )


def edited(done: EditResult) -> EditView:
    edit = done.edited
    return EditView(
        message=_view(edit.replacement),
        messages=_visible([*edit.closures, edit.replacement, *edit.suffix]),
        deleted_message_ids=tuple(edit.deleted_ids),
        deleted_queued_ids=tuple(edit.deleted_queued_ids),
        chat=state(done.chat),
    )


def promoted(done: PromoteResult) -> PromoteView:
    inserted = _visible(done.promoted.inserted)
    return PromoteView(message=inserted[-1] if inserted else None, messages=inserted, chat=state(done.chat))


def queue(found: Queue) -> QueueView:
    return QueueView(views.queued_messages(found.items), found.queue_version)


def _visible(rows: Iterable[Message]) -> tuple[MessageView, ...]:
    return tuple(_view(row) for row in rows if row.visibility is not Visibility.MODEL)


def _view(row: Message) -> MessageView:
    """Return the view of a message that this request inserted; it has no usage yet."""
    return views.message(PromptRow(row, _NO_FIGURES))
