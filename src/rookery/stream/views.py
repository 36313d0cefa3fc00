"""JSON views of messages, queues and retries, for streams and requests alike.

Every documented field is present, and null if it is unknown; only the parts of a message omit defaults. Content that
cannot be decoded is shown as empty, because a skipped message would change the client's history. The views of chats and
their errors are in `store.chats.chat_views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat import parts
from rookery.domain.chat.messages import QueuedMessage, StepFigures
from rookery.domain.chat.parts import ContentError, Part
from rookery.domain.chat.prompt import PromptRow
from rookery.telemetry.log import get_logger

log = get_logger("stream.views")


class UsageView(msgspec.Struct, frozen=True):
    """The token counts of a step."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    reasoning_tokens: int | None
    cache_write_tokens: int | None
    cache_read_tokens: int | None
    context_limit: int | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `decode_error` is present, and true, if its content could not be read."""

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
    context_tokens: int | None  # size of the context after this response
    finish_reason: str | None  # the reason why the model stopped
    cost_micros: int | None
    runtime_ms: int | None
    decode_error: bool | UnsetType = UNSET


class QueuedMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its turn. `steer` messages are added at the next step."""

    id: int
    content: tuple[Part, ...]
    model_config_id: UUID | None
    reasoning_effort: str | None
    client_id: str | None
    created_at: datetime
    created_by: UUID
    steer: bool
    decode_error: bool | UnsetType = UNSET


class RetryView(msgspec.Struct, frozen=True):
    """The failure, and the time of the next attempt."""

    attempt: int
    delay_ms: int
    error: str
    retrying_at: datetime
    kind: str | None = None
    provider: str | None = None
    status_code: int | None = None


_retries = msgspec.json.Decoder(RetryView)


def message(row: PromptRow) -> MessageView:
    """Return the message as users may see it."""
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
        context_tokens=figures.context_tokens,
        finish_reason=figures.finish_reason,
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


def retry(stored: str | None) -> RetryView | None:
    """Return the stored retry state; None if it cannot be read. Then no retry notice is shown."""
    if stored is None:
        return None
    try:
        return _retries.decode(parts.unescape(stored))
    except (msgspec.DecodeError, RecursionError):
        return None


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
