"""Messages and queued messages: the values that are passed to the store and read from it."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.parts import CONTENT_VERSION, Part

ChatId = NewType("ChatId", UUID)
MessageId = NewType("MessageId", int)
QueuedMessageId = NewType("QueuedMessageId", int)

MAX_ID = 2**63 - 1
MAX_CLIENT_ID_CHARS = 64

# Characters that PostgreSQL cannot store in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def is_id(number: int) -> bool:
    """Return whether the number is in the range of message ids. Clients may send any number."""
    return 0 < number <= MAX_ID


def check_storable(field: str, text: str) -> None:
    """Raise `InvalidInput`, which names the field, if the database cannot store the text."""
    if _UNSTORABLE.search(text):
        raise InvalidInput(
            field, "This text contains the character U+0000 or a lone surrogate. Remove it and try again."
        )


def _check_client_id(client_id: str | None) -> None:
    if client_id is None:
        return
    if not 1 <= len(client_id) <= MAX_CLIENT_ID_CHARS:
        raise InvalidInput(
            "client_id",
            f"A client id must have 1 to {MAX_CLIENT_ID_CHARS} characters; this one has {len(client_id)}.",
        )
    check_storable("client_id", client_id)


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Visibility(StrEnum):
    """The readers of a message: only users, only the model, or both."""

    USER = "user"
    MODEL = "model"
    BOTH = "both"


class Effort(StrEnum):
    """Reasoning effort, from least to most."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class StepFigures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Usage, cost and finish reason of a model call, stored with its assistant row.

    Zero is stored as NULL, like an unknown value. The cost is an exception: zero is a price, and NULL means unpriced.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    context_tokens: int | None = None
    context_limit: int | None = None
    cost_micros: int | None = None
    runtime_ms: int | None = None
    finish_reason: str | None = None
    prefix_fp: bytes | None = None
    request_id: str | None = None
    response_id: str | None = None


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A row to insert. Its id and revision come from the database."""

    role: Role
    content: tuple[Part, ...]
    visibility: Visibility = Visibility.BOTH
    compressed: bool = False
    created_by: UUID | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    client_id: str | None = None
    figures: StepFigures | None = None

    def __post_init__(self) -> None:
        _check_client_id(self.client_id)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A committed row. `content` is the stored JSON, so that a row with damaged content can be loaded."""

    id: MessageId
    chat_id: ChatId
    revision: int
    role: Role
    visibility: Visibility
    compressed: bool
    deleted: bool
    content: str
    content_version: int
    created_by: UUID | None
    model_config_id: UUID | None
    reasoning_effort: Effort | None
    client_id: str | None
    created_at: datetime

    def parts(self) -> tuple[Part, ...]:
        """Return the decoded content. Raises `parts.ContentError` if it cannot be read."""
        return parts.decode(self.content, version=self.content_version)


class NewQueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A user message to send. It is added to the history, or to the queue if the chat is busy."""

    content: tuple[Part, ...]
    created_by: UUID
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    client_id: str | None = None

    def __post_init__(self) -> None:
        _check_client_id(self.client_id)


class QueuedMessage(msgspec.Struct, frozen=True):
    """A row of the queue. Rows are ordered by `position`, then `id`. `traceparent` is for traces only."""

    id: QueuedMessageId
    chat_id: ChatId
    position: int
    content: str
    content_version: int
    created_by: UUID
    model_config_id: UUID | None
    reasoning_effort: Effort | None
    steer: bool
    client_id: str | None
    created_at: datetime
    traceparent: str | None = None

    def parts(self) -> tuple[Part, ...]:
        return parts.decode(self.content, version=self.content_version)


__all__ = [
    "CONTENT_VERSION",
    "MAX_CLIENT_ID_CHARS",
    "MAX_ID",
    "ChatId",
    "Effort",
    "Message",
    "MessageId",
    "NewMessage",
    "NewQueuedMessage",
    "QueuedMessage",
    "QueuedMessageId",
    "Role",
    "StepFigures",
    "Visibility",
    "check_storable",
    "is_id",
]
