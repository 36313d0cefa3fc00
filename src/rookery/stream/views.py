"""What clients see of messages, queues, errors and chats: the JSON shapes of the API, for streams and requests alike.

Every documented field is present, null when unknown; only the parts of a message leave out what is at its default.
What cannot be decoded is shown as empty, never left out: a message that is skipped would shift a client's history.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.chat import parts
from rookery.chat.messages import QueuedMessage, StepFigures
from rookery.chat.parts import ContentError, Part
from rookery.chat.prompt import PromptRow
from rookery.log import get_logger
from rookery.store.streaming import ListedChat

log = get_logger("stream.views")

UNEXPLAINED = "The chat request failed unexpectedly."


class UsageView(msgspec.Struct, frozen=True):
    """What a step was counted at."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    reasoning_tokens: int | None
    cache_write_tokens: int | None
    cache_read_tokens: int | None
    context_limit: int | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `decode_error` is there, and true, when its content could not be read."""

    id: int
    chat_id: UUID
    role: str
    content: tuple[Part, ...]
    created_at: datetime
    created_by: UUID | None
    model_config_id: UUID | None
    reasoning_effort: str | None
    client_id: str | None
    usage: UsageView | None
    cost_micros: int | None
    runtime_ms: int | None
    decode_error: bool | UnsetType = UNSET


class QueuedMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its turn; `steer` ones are heard at the next step."""

    id: int
    content: tuple[Part, ...]
    model_config_id: UUID | None
    reasoning_effort: str | None
    client_id: str | None
    created_at: datetime
    created_by: UUID
    steer: bool
    decode_error: bool | UnsetType = UNSET


class ChatErrorView(msgspec.Struct, frozen=True):
    """Why a chat stopped."""

    message: str = UNEXPLAINED
    detail: str | None = None
    kind: str | None = None
    provider: str | None = None
    retryable: bool = False
    status_code: int | None = None


class RetryView(msgspec.Struct, frozen=True):
    """What failed, and when it is tried again."""

    attempt: int
    delay_ms: int
    error: str
    retrying_at: datetime
    kind: str | None = None
    provider: str | None = None
    status_code: int | None = None


class OwnerView(msgspec.Struct, frozen=True):
    id: UUID
    username: str
    name: str | None = None


class ContextUsageView(msgspec.Struct, frozen=True):
    context_tokens: int | None
    context_limit: int | None


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as lists show it: without children, files and the resources of its context."""

    id: UUID
    owner: OwnerView
    my_role: str
    parent_chat_id: UUID | None
    root_chat_id: UUID
    mode: str | None
    title: str
    status: str
    archived: bool
    archived_at: datetime | None
    plan_mode: bool
    last_error: ChatErrorView | None
    last_model_config_id: UUID
    last_reasoning_effort: str | None
    workspace_id: UUID | None
    mcp_server_ids: tuple[UUID, ...]
    labels: dict[str, str]
    pin_order: int | None
    client_type: str
    last_turn_summary: str | None
    summary: str | None
    has_unread: bool
    shared: bool
    queue_len: int
    requires_action_deadline_at: datetime | None
    usage: ContextUsageView
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    snapshot_version: int
    history_version: int
    meta_version: int
    context: None = None
    git: None = None


_GENERIC = ChatErrorView(kind="generic")
_errors = msgspec.json.Decoder(ChatErrorView)
_retries = msgspec.json.Decoder(RetryView)


def message(row: PromptRow) -> MessageView:
    """The message as people may see it."""
    stored, figures = row.message, row.figures
    content = _content(stored.content, version=stored.content_version, message_id=stored.id)
    return MessageView(
        id=stored.id,
        chat_id=stored.chat_id,
        role=stored.role,
        content=content or (),
        created_at=stored.created_at,
        created_by=stored.created_by,
        model_config_id=stored.model_config_id,
        reasoning_effort=stored.reasoning_effort,
        client_id=stored.client_id,
        usage=_usage(figures),
        cost_micros=figures.cost_micros,
        runtime_ms=figures.runtime_ms,
        decode_error=UNSET if content is not None else True,
    )


def queued_message(row: QueuedMessage) -> QueuedMessageView:
    content = _content(row.content, version=row.content_version, message_id=row.id)
    return QueuedMessageView(
        id=row.id,
        content=content or (),
        model_config_id=row.model_config_id,
        reasoning_effort=row.reasoning_effort,
        client_id=row.client_id,
        created_at=row.created_at,
        created_by=row.created_by,
        steer=row.steer,
        decode_error=UNSET if content is not None else True,
    )


def queued_messages(rows: Sequence[QueuedMessage]) -> tuple[QueuedMessageView, ...]:
    return tuple(map(queued_message, rows))


def chat_error(stored: str) -> ChatErrorView:
    """The stored error; what cannot be read is shown as a general failure, and an empty message gets its words."""
    try:
        error = _errors.decode(parts.unescape(stored))
    except (msgspec.DecodeError, RecursionError):
        return _GENERIC
    return error if error.message.strip() else msgspec.structs.replace(error, message=UNEXPLAINED)


def retry(stored: str | None) -> RetryView | None:
    """The stored retry state; one that cannot be read shows no banner."""
    if stored is None:
        return None
    try:
        return _retries.decode(parts.unescape(stored))
    except (msgspec.DecodeError, RecursionError):
        return None


def listed_chat(row: ListedChat, *, shared: bool) -> ChatView:
    """The chat in the list of one person, who owns it or may read it."""
    chat = row.chat
    return ChatView(
        id=chat.id,
        owner=OwnerView(chat.owner_id, row.owner_name),
        my_role="owner" if row.user_id == chat.owner_id else "reader",
        parent_chat_id=chat.parent_chat_id,
        root_chat_id=chat.root_chat_id or chat.id,
        mode=chat.mode,
        title=chat.title,
        status=chat.status,
        archived=chat.archived,
        archived_at=chat.archived_at,
        plan_mode=chat.plan_mode,
        last_error=None if chat.last_error is None else chat_error(chat.last_error),
        last_model_config_id=chat.last_model_config_id,
        last_reasoning_effort=chat.last_reasoning_effort,
        workspace_id=chat.workspace_id,
        mcp_server_ids=chat.mcp_server_ids,
        labels=chat.labels,
        pin_order=chat.pin_order,
        client_type=chat.client_type,
        last_turn_summary=chat.last_turn_summary,
        summary=chat.summary,
        has_unread=row.has_unread,
        shared=shared,
        queue_len=chat.queue_len,
        requires_action_deadline_at=chat.requires_action_deadline_at,
        usage=ContextUsageView(row.context_tokens, row.context_limit),
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        last_activity_at=chat.updated_at,
        snapshot_version=chat.snapshot_version,
        history_version=chat.history_version,
        meta_version=chat.meta_version,
    )


def _content(content: str, *, version: int, message_id: int) -> tuple[Part, ...] | None:
    try:
        return parts.client_view(parts.decode(content, version=version))
    except ContentError as error:
        log.warning("message_unreadable", message_id=message_id, error=str(error))
        return None


def _usage(figures: StepFigures) -> UsageView | None:
    usage = UsageView(
        figures.input_tokens,
        figures.output_tokens,
        figures.total_tokens,
        figures.reasoning_tokens,
        figures.cache_write_tokens,
        figures.cache_read_tokens,
        figures.context_limit,
    )
    return None if usage == _NO_USAGE else usage


_NO_USAGE = UsageView(None, None, None, None, None, None, None)
