"""The events of a stream, as structs and as the JSON that is sent.

Events are encoded once, where they are made, and passed on as bytes; a frame is a JSON array of them. Live parts
(`message_part`) are not defined here: the part buffer encodes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.store.chats.chat_views import ActionCall, ActionKind, ChatErrorView, ChatView
from rookery.stream.views import MessageView, QueuedMessageView, RetryView

PROTOCOL = 1


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of all events, distinguished by `type`."""


class Hello(Event, frozen=True, tag="hello"):
    chat_id: UUID
    replica_id: UUID
    server_time: datetime
    resume: str
    protocol: int = PROTOCOL


class HistoryReset(Event, frozen=True, tag="history_reset"):
    """The client's messages are outdated; the messages that follow, up to `synced`, replace them."""

    count: int
    has_more: bool
    first_message_id: int | None


class MessageAdded(Event, frozen=True, tag="message"):
    message: MessageView


class QueueUpdate(Event, frozen=True, tag="queue_update"):
    queued_messages: tuple[QueuedMessageView, ...]


class StatusChanged(Event, frozen=True, tag="status"):
    status: str
    archived: bool


class ErrorShown(Event, frozen=True, tag="error"):
    error: ChatErrorView


class ActionRequired(Event, frozen=True, tag="action_required"):
    """The calls that the chat waits for.

    `kind` is "tools" if the client has to submit results, or "approval" if a user has to approve the calls.
    """

    kind: ActionKind
    tool_calls: tuple[ActionCall, ...]
    deadline_at: datetime | None


class RetryChanged(Event, frozen=True, tag="retry"):
    retry: RetryView | None


class PreviewReset(Event, frozen=True, tag="preview_reset"):
    history_version: int
    generation_attempt: int
    reason: str


class PreviewTruncated(Event, frozen=True, tag="preview_truncated"):
    pass


class Synced(Event, frozen=True, tag="synced"):
    snapshot_version: int
    history_version: int
    queue_version: int
    last_message_id: int


class DebugUpdate(Event, frozen=True, tag="debug_update"):
    kind: str
    run_id: str | None


class Heartbeat(Event, frozen=True, tag="heartbeat"):
    server_time: datetime


class Goodbye(Event, frozen=True, tag="goodbye"):
    retry_after_ms: int


class Pong(Event, frozen=True, tag="pong"):
    id: Any


class Ready(Event, frozen=True, tag="ready"):
    server_time: datetime


class ChatChanged(Event, frozen=True, tag="chat"):
    kinds: tuple[str, ...]
    chat: ChatView
    tool_calls: tuple[ActionCall, ...] | UnsetType = UNSET


class ChatGone(Event, frozen=True, tag="chat_gone"):
    chat_id: UUID
    kind: str


class ListResync(Event, frozen=True, tag="resync"):
    pass


class RepositoryState(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that a chat works in.

    A diff that is too long is replaced by a note. `removed`: the repository no longer exists.
    """

    root: str
    branch: str | None
    remote_origin: str | None
    diff: str
    additions: int
    deletions: int
    changed_files: int
    untracked_omitted: int
    removed: bool


class GitChanges(Event, frozen=True, tag="changes"):
    """Repositories that changed since the last event. The first event has all of them."""

    repositories: tuple[RepositoryState, ...]


_encoder = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def encode_message(view: MessageView) -> bytes:
    """Encode a message as an event. A message that cannot be encoded is sent without its content."""
    try:
        return _encoder.encode(MessageAdded(view))
    except (ValueError, TypeError, RecursionError):
        return _encoder.encode(MessageAdded(msgspec.structs.replace(view, content=(), decode_error=True)))


def frame(events: Iterable[bytes]) -> bytes:
    """Return one text frame of a WebSocket, or one batch of an event stream."""
    return b"[" + b",".join(events) + b"]"
