"""The rows of debug records as structs, and their enumerations.

JSON columns are `Raw`, so that a row can be passed on without decoding it.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import ChatId


class RunKind(StrEnum):
    CHAT_TURN = "chat_turn"
    COMPACTION = "compaction"
    ADVISOR = "advisor"
    TITLE_GENERATION = "title_generation"
    QUICKGEN = "quickgen"


class RunStatus(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class StepStatus(StrEnum):
    """The statuses of a step, in the order of their priority. All but the first are terminal."""

    IN_PROGRESS = "in_progress"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    COMPLETED = "completed"

    @property
    def priority(self) -> int:
        return _PRIORITIES[self]


_PRIORITIES = {status: priority for priority, status in enumerate(StepStatus)}


class AttemptStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class DebugMode(StrEnum):
    """The recording mode of a family: by the owner's preference, always, or never."""

    INHERIT = "inherit"
    ON = "on"
    OFF = "off"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    chat_id: ChatId
    parent_run_id: UUID | None
    root_chat_id: UUID
    parent_chat_id: UUID | None
    model_config_id: UUID | None
    replica_id: UUID
    trigger_message_id: int | None
    history_tip_message_id: int | None
    snapshot_version: int
    kind: RunKind
    status: RunStatus
    provider: str | None
    model: str | None
    summary: Raw
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class StepSummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step without its request and response. `shared_messages` are the same as in the previous step of the run."""

    id: UUID
    run_id: UUID
    step_number: int
    step_key: str | None
    finish_epoch: int
    operation: str
    status: StepStatus
    history_tip_message_id: int | None
    assistant_message_id: int | None
    model_config_id: UUID | None
    provider: str | None
    model: str | None
    message_count: int
    shared_messages: int
    tool_count: int
    usage: Raw | None
    cost_micros: int | None
    finish_reason: str | None
    error: Raw | None
    metadata: Raw
    cache: Raw | None
    ttft_ms: int | None
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class StepRow(StepSummaryRow, frozen=True, kw_only=True):
    """A step with its response and its own part of the request. `record_reads.list_requests` returns the rest."""

    normalized_request: Raw
    normalized_response: Raw | None


class RequestRow(msgspec.Struct, frozen=True):
    """The stored part of a step's request."""

    step_id: UUID
    step_number: int
    normalized_request: Raw


class ReplayRow(msgspec.Struct, frozen=True):
    """The stored part of a step's call, from which the call can be made again. None if it was not stored."""

    step_id: UUID
    step_number: int
    replay_form: bytes | None


class SearchedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a step: its own part of the request, its response, and its errors."""

    id: UUID
    step_number: int
    normalized_request: Raw
    normalized_response: Raw | None
    error: Raw | None
    prior_errors: Raw | None


class AttemptSummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt without its headers and bodies. `body_meta` has the true sizes of the bodies."""

    step_id: UUID
    number: int
    status: AttemptStatus
    generation_attempt: int
    method: str
    url: str
    path: str
    response_status: int | None
    body_meta: Raw
    error: str | None
    ttfb_ms: int | None
    duration_ms: int
    retry_kind: str | None
    retry_delay_ms: int | None
    started_at: datetime
    finished_at: datetime


class AttemptRow(AttemptSummaryRow, frozen=True, kw_only=True):
    """An attempt with its headers and bodies. The bodies are compressed with zlib."""

    request_headers: Raw
    request_body: bytes | None
    response_headers: Raw
    response_body: bytes | None


_encoder = msgspec.json.Encoder(decimal_format="number")
# An escaped NUL, which PostgreSQL cannot store in jsonb. The escapes before it have an even number of backslashes.
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_text(value: object) -> str:
    """Return the value as JSON that PostgreSQL can store. Characters that it cannot store become U+FFFD."""
    try:
        encoded = _encoder.encode(value)
    except UnicodeEncodeError:
        encoded = _encoder.encode(_without_surrogates(msgspec.to_builtins(value)))
    if b"\\u0000" in encoded:
        encoded = _NUL.sub(rb"\1\\ufffd", encoded)
    return encoded.decode()


def plain_text(text: str) -> str:
    """Return the text with U+FFFD for characters that PostgreSQL cannot store."""
    return _SURROGATES.sub("\ufffd", text).replace("\x00", "\ufffd")


def raw(text: str) -> Raw:
    """Return a JSON column as `Raw`."""
    return Raw(text.encode())


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATES.sub("\ufffd", value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value
