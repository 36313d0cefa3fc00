"""Debug records as the API, the export and the command line show them, made from stored rows.

A stored value that cannot be read is left out, because records of an older version must not make a page fail.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rookery.debug import recording_policy
from rookery.debug.cache_diagnosis import CacheDiagnosis
from rookery.debug.normalization import (
    NormalizedError,
    NormalizedMessage,
    NormalizedRequest,
    NormalizedResponse,
    NormalizedTool,
    NormalizedUsage,
    SharedRequest,
    StreamSummary,
    resolve_prefixes,
)
from rookery.debug.recorded_http import AttemptBodies
from rookery.debug.redaction import BodyMeta
from rookery.store.authorized.debug import RecordingFacts, RunDetail, StepDetail
from rookery.store.debug.record_rows import (
    AttemptRow,
    AttemptStatus,
    AttemptSummaryRow,
    DebugMode,
    RunKind,
    RunRow,
    RunStatus,
    StepRow,
    StepStatus,
    StepSummaryRow,
)

T = TypeVar("T")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The label and the sums of a run.

    The first four sums are always present; the others are left out if they are zero.
    """

    step_count: int = 0
    attempt_count: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    first_message: str | UnsetType = UNSET
    endpoint_label: str | UnsetType = UNSET
    ttft_ms: int | UnsetType = UNSET
    retry_count: int | UnsetType = UNSET
    total_reasoning_tokens: int | UnsetType = UNSET
    total_cache_read_tokens: int | UnsetType = UNSET
    total_cache_creation_tokens: int | UnsetType = UNSET
    cost_micros: int | UnsetType = UNSET
    has_error: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    continues: UUID | UnsetType = UNSET


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of model work. The chats, the model and the messages that it names may have been deleted."""

    id: UUID
    chat_id: UUID
    parent_run_id: UUID | None
    root_chat_id: UUID
    parent_chat_id: UUID | None
    kind: RunKind
    status: RunStatus
    provider: str | None
    model: str | None
    model_config_id: UUID | None
    trigger_message_id: int | None
    history_tip_message_id: int | None
    summary: RunSummary
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class RecordingView(msgspec.Struct, frozen=True, kw_only=True):
    """The recording state of the chat's model calls. `mode` is that of its root chat.

    `is_forced`: the operator records all chats. `is_allowed`: users may switch recording on.
    """

    mode: DebugMode
    is_on: bool
    is_forced: bool
    is_allowed: bool


class RunListView(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[RunView, ...]
    next_cursor: str | None
    recording: RecordingView


class AttemptSummaryView(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP exchange. `error` is a text, `unexpected_eof`, or the reason for which this server ended the exchange.

    `retry_kind` and `retry_delay_ms` are set if the call was tried again after it.
    """

    number: int
    status: AttemptStatus
    generation_attempt: int
    method: str
    url: str
    path: str
    response_status: int | None
    error: str | None
    ttfb_ms: int | None
    duration_ms: int
    retry_kind: str | None
    retry_delay_ms: int | None
    started_at: datetime
    finished_at: datetime
    request_bytes: int | None
    response_bytes: int | None


class BodyView(msgspec.Struct, frozen=True, kw_only=True):
    """A body without secrets. `size` is its true size in bytes. `truncated`: text was left out."""

    text: str
    encoding: str
    size: int
    truncated: bool


class AttemptView(AttemptSummaryView, frozen=True, kw_only=True):
    request_headers: Mapping[str, str]
    request_body: BodyView | None
    response_headers: Mapping[str, str]
    response_body: BodyView | None


class PriorError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure of an earlier try of the step."""

    message: str = ""
    kind: str | None = None
    generation_attempt: int | None = None


class RetryPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan of a retry: the step failed and is tried again after a delay."""

    kind: str | None = None
    delay_ms: int | None = None


class StepMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of a step. `transport` is `unobserved` for providers whose exchanges cannot be recorded."""

    stream_summary: StreamSummary | None = None
    prior_errors: tuple[PriorError, ...] = ()
    retrying: RetryPlan | None = None
    transport: str | None = None
    structured_output: bool = False
    truncated: bool = False


class StepSummaryView(msgspec.Struct, frozen=True, kw_only=True):
    """One logical model call, without its prompt. `shared_messages` are the same as in the previous step."""

    id: UUID
    number: int
    operation: Literal["stream", "generate"]
    status: StepStatus
    provider: str | None
    model: str | None
    model_config_id: UUID | None
    history_tip_message_id: int | None
    assistant_message_id: int | None
    message_count: int
    shared_messages: int
    tool_count: int
    usage: NormalizedUsage | None
    cost_micros: int | None
    finish_reason: str | None
    error: NormalizedError | None
    metadata: StepMetadata
    cache: CacheDiagnosis | None
    ttft_ms: int | None
    started_at: datetime
    finished_at: datetime | None
    attempts: tuple[AttemptSummaryView, ...]


class RunDetailView(RunView, frozen=True, kw_only=True):
    steps: tuple[StepSummaryView, ...]


class StepView(StepSummaryView, frozen=True, kw_only=True):
    """One logical model call with its whole prompt and its answer."""

    request: NormalizedRequest
    response: NormalizedResponse | None


class SharedRequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request of an export. Its first `prefix_len` messages are those of the step with the number `prefix_from`.

    `tools` is null if the tools are those of that step.
    """

    prefix_from: int | None
    prefix_len: int
    messages: tuple[NormalizedMessage, ...]
    tools: tuple[NormalizedTool, ...] | None
    options: Mapping[str, int | float]
    tool_choice: str | None
    effort: str | None
    schema_name: str | None
    structured_output: bool
    provider_option_names: tuple[str, ...]


class ExportedStepView(StepSummaryView, frozen=True, kw_only=True):
    request: SharedRequestView
    response: NormalizedResponse | None
    exchanges: tuple[AttemptView, ...]


def recording(facts: RecordingFacts, *, is_forced: bool) -> RecordingView:
    is_on = recording_policy.is_recorded(
        is_forced=is_forced, allow_users=facts.is_allowed, mode=facts.mode, preference=facts.is_preferred
    )
    return RecordingView(
        mode=facts.mode,
        is_on=is_on,
        is_forced=is_forced,
        is_allowed=facts.is_allowed,
    )


def run(row: RunRow) -> RunView:
    return RunView(**_run_fields(row))


def run_detail(found: RunDetail) -> RunDetailView:
    return RunDetailView(**_run_fields(found.run), steps=_summaries(found.steps, found.attempts))


def step(found: StepDetail) -> StepView:
    """Return a step. Its request is put together from those of the steps before it."""
    stored = ((row.step_number, read(row.normalized_request, SharedRequest)) for row in found.requests)
    resolved = resolve_prefixes((number, request) for number, request in stored if request is not None)
    number = found.step.step_number
    return StepView(
        **_step_fields(found.step, found.attempts),
        request=resolved.get(number, NormalizedRequest(messages=())),
        response=read(found.step.normalized_response, NormalizedResponse),
    )


def exported_step(row: StepRow, attempts: Sequence[AttemptRow]) -> ExportedStepView:
    request = read(row.normalized_request, SharedRequest) or SharedRequest(message_count=0, messages=())
    return ExportedStepView(
        **_step_fields(row, attempts),
        request=SharedRequestView(
            prefix_from=request.prefix_from,
            prefix_len=request.prefix_len,
            messages=request.messages,
            tools=None if request.has_same_tools else request.tools,
            options=request.options,
            tool_choice=request.tool_choice,
            effort=request.effort,
            schema_name=request.schema_name,
            structured_output=request.structured_output,
            provider_option_names=request.provider_option_names,
        ),
        response=read(row.normalized_response, NormalizedResponse),
        exchanges=tuple(attempt(each) for each in attempts),
    )


def attempt(row: AttemptRow) -> AttemptView:
    sizes = read(row.body_meta, AttemptBodies) or AttemptBodies()
    return AttemptView(
        **_attempt_fields(row),
        request_headers=read(row.request_headers, dict[str, str]) or {},
        request_body=_body(row.request_body, sizes.request),
        response_headers=read(row.response_headers, dict[str, str]) or {},
        response_body=_body(row.response_body, sizes.response),
    )


def usage_of(row: StepSummaryRow) -> NormalizedUsage | None:
    return read(row.usage, NormalizedUsage)


def error_of(row: StepSummaryRow) -> NormalizedError | None:
    return read(row.error, NormalizedError)


def effort_of(row: StepRow) -> str | None:
    request = read(row.normalized_request, SharedRequest)
    return None if request is None else request.effort


def _run_fields(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "chat_id": row.chat_id,
        "parent_run_id": row.parent_run_id,
        "root_chat_id": row.root_chat_id,
        "parent_chat_id": row.parent_chat_id,
        "kind": row.kind,
        "status": row.status,
        "provider": row.provider,
        "model": row.model,
        "model_config_id": row.model_config_id,
        "trigger_message_id": row.trigger_message_id,
        "history_tip_message_id": row.history_tip_message_id,
        "summary": read(row.summary, RunSummary) or RunSummary(),
        "started_at": row.started_at,
        "updated_at": row.updated_at,
        "finished_at": row.finished_at,
    }


def _summaries(steps: Iterable[StepSummaryRow], attempts: Iterable[AttemptSummaryRow]) -> tuple[StepSummaryView, ...]:
    by_step: dict[UUID, list[AttemptSummaryRow]] = {}
    for each in attempts:
        by_step.setdefault(each.step_id, []).append(each)
    return tuple(StepSummaryView(**_step_fields(row, by_step.get(row.id, ()))) for row in steps)


def _step_fields(row: StepSummaryRow, attempts: Sequence[AttemptSummaryRow]) -> dict[str, Any]:
    return {
        "id": row.id,
        "number": row.step_number,
        "operation": row.operation,
        "status": row.status,
        "provider": row.provider,
        "model": row.model,
        "model_config_id": row.model_config_id,
        "history_tip_message_id": row.history_tip_message_id,
        "assistant_message_id": row.assistant_message_id,
        "message_count": row.message_count,
        "shared_messages": row.shared_messages,
        "tool_count": row.tool_count,
        "usage": usage_of(row),
        "cost_micros": row.cost_micros,
        "finish_reason": row.finish_reason,
        "error": error_of(row),
        "metadata": read(row.metadata, StepMetadata) or StepMetadata(),
        "cache": read(row.cache, CacheDiagnosis),
        "ttft_ms": row.ttft_ms,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "attempts": tuple(AttemptSummaryView(**_attempt_fields(each)) for each in attempts),
    }


def _attempt_fields(row: AttemptSummaryRow) -> dict[str, Any]:
    sizes = read(row.body_meta, AttemptBodies) or AttemptBodies()
    return {
        "number": row.number,
        "status": row.status,
        "generation_attempt": row.generation_attempt,
        "method": row.method,
        "url": row.url,
        "path": row.path,
        "response_status": row.response_status,
        "error": row.error,
        "ttfb_ms": row.ttfb_ms,
        "duration_ms": row.duration_ms,
        "retry_kind": row.retry_kind,
        "retry_delay_ms": row.retry_delay_ms,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "request_bytes": None if sizes.request is None else sizes.request.size,
        "response_bytes": None if sizes.response is None else sizes.response.size,
    }


def _body(data: bytes | None, meta: BodyMeta | None) -> BodyView | None:
    if data is None:
        return None
    try:
        text = zlib.decompress(data).decode("utf-8", "replace")
    except zlib.error:
        return None
    meta = meta or BodyMeta(size=len(text.encode()))
    return BodyView(text=text, encoding=meta.encoding, size=meta.size, truncated=meta.is_truncated)


def read(stored: Raw | None, kind: type[T]) -> T | None:
    """Return a stored JSON value; None if there is none or it cannot be read."""
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return None
