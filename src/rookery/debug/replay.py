"""Replay: repeats a recorded model call, unchanged or with another model, effort or text, and returns both answers.

A replay runs no tools and changes no chat. The tools are declared to the model, and its tool calls are only shown. The
call is billed to the chat's owner under the purpose `replay`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from uuid import UUID

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.debug import current_run, record_views, replay_request
from rookery.debug.normalization import (
    NormalizedError,
    NormalizedPart,
    NormalizedResponse,
    NormalizedUsage,
    ResponseCollector,
    normalize_error,
)
from rookery.debug.redaction import Redactor
from rookery.debug.replay_request import Incomplete, ReplayRequest
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, Effort, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptPart, PromptResult, PromptText
from rookery.llm.model_call_span import chat_span
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    LanguageModel,
    ProviderError,
    Purpose,
    ResponseStarted,
    StreamError,
    Usage,
    Warnings,
)
from rookery.models import call_options, cost
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector, identity_of, make_call
from rookery.models.cost import Prices
from rookery.models.directory import Directory, ReadyModel
from rookery.models.model_resolution import Choice
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.authorized.debug import RecordedCall
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.debug.record_rows import StepRow
from rookery.store.models import usage_ledger as ledger
from rookery.store.models.usage_ledger import CallStatus
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import REDACTED

log = get_logger("debug.replay")

# Chosen: longer than nearly all answers, and shorter than the patience of proxies and users.
REPLAY_SECONDS = 300.0
_WRITE_SECONDS = 10.0
# No user has this id, so it has no keys.
_WITHOUT_KEYS = UUID(int=0)
_SECRETS_NOTE = "Secrets were removed from the record, so this request differs from the recorded one."
_SEARCH_NOTE = "The provider's web search is not part of a replay."
_CONFIG_NOTE = "The settings of this model were changed after the recorded call. The replay uses the current ones."
_FOREIGN_NOTE = "Another model wrote the answers in this prompt, so its reasoning is left out."


class NotReplayable(Exception):
    """Raised if the record does not contain the whole request."""


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One of two answers to the same request. `error` is set if the answer is not complete."""

    model: str | None
    provider: str | None
    effort: str | None
    content: tuple[NormalizedPart, ...] = ()
    finish_reason: str | None = None
    usage: NormalizedUsage | None = None
    cost_micros: int | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None
    error: NormalizedError | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded answer and the new answer. `warnings` are sentences about differences other than the requested
    changes.
    """

    recorded: ReplayAnswer
    replayed: ReplayAnswer
    warnings: tuple[str, ...] = ()


class ReplayChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a replay. `edits` maps the index of a message to its new text."""

    model_config_id: UUID | None = None
    effort: Effort | UnsetType | None = UNSET
    edits: Mapping[int, str] = {}


class Replayer:
    """Repeats recorded calls. Each process has one."""

    def __init__(
        self,
        directory: Directory,
        connector: Connector,
        *,
        pool: asyncpg.Pool,
        clock: Clock,
        redactor: Redactor,
        stats: CallStats | None = None,
        seconds: float = REPLAY_SECONDS,
    ) -> None:
        self._directory = directory
        self._connector = connector
        self._pool = pool
        self._clock = clock
        self._redactor = redactor
        self._stats = stats or CallStats()
        self._seconds = seconds

    async def replay(
        self,
        recorded: RecordedCall,
        model_config_id: UUID,
        *,
        owner_id: UUID,
        change: ReplayChange,
        uses_own_key: bool = True,
    ) -> Replay:
        """Repeat the call with this model. A failed call is an answer with an error.

        `owner_id` is the chat's owner, who is billed. Without `uses_own_key`, no key of the owner is used. Raise
        `NotReplayable` if the record is not complete, and `InvalidInput` for an edit of a message that has no text.
        """
        # Long prompts take milliseconds to decode.
        request = await asyncio.to_thread(_decoded, recorded)
        request = msgspec.structs.replace(request, prompt=edited(request.prompt, change.edits))
        ready = await self._directory.ready(
            Choice(model_config_id), owner_id=owner_id if uses_own_key else _WITHOUT_KEYS
        )
        model = ready if isinstance(ready, ProviderError) else await self._connector.model(ready)
        if isinstance(ready, ProviderError) or isinstance(model, ProviderError):
            error = ready if isinstance(ready, ProviderError) else model
            assert isinstance(error, ProviderError)
            failed = ReplayAnswer(
                model=None, provider=error.provider, effort=None, error=normalize_error(error, self._redactor)
            )
            return Replay(recorded=recorded_answer(recorded), replayed=failed)
        is_foreign = await self._is_foreign(recorded.step, ready)
        call = _call(ready, model, request, change=change, is_foreign=is_foreign)
        notes = [*request.warnings, *_notes(request, recorded.step, ready, is_foreign=is_foreign)]
        # The first lookup of list prices loads a table.
        prices = await asyncio.to_thread(ready.prices, self._clock.now())
        with current_run.cleared():
            replayed, warned = await self._ask(
                model, call, ready, prices=prices, owner_id=owner_id, chat_id=recorded.run.chat_id
            )
        return Replay(
            recorded=recorded_answer(recorded), replayed=replayed, warnings=tuple(dict.fromkeys([*notes, *warned]))
        )

    async def _is_foreign(self, step: StepRow, ready: ReadyModel) -> bool:
        """Return whether the answering model differs from the recorded model, and therefore cannot use the recorded
        reasoning.
        """
        snapshot = await self._directory.snapshot()
        recorded = None if step.model_config_id is None else snapshot.configs.get(step.model_config_id)
        if recorded is None:
            return True
        return identity_of(snapshot.providers[recorded.provider_id], recorded) != identity_of(
            ready.provider, ready.config
        )

    async def _ask(
        self,
        model: LanguageModel,
        call: Call,
        ready: ReadyModel,
        *,
        prices: Prices | None,
        owner_id: UUID,
        chat_id: ChatId,
    ) -> tuple[ReplayAnswer, list[str]]:
        """Make the call and write its ledger row, even if this task is cancelled."""
        collector = ResponseCollector()
        started, ttft_ms = self._clock.monotonic(), None
        warned: list[str] = []
        error: ProviderError | None = None
        status = CallStatus.FAILED
        try:
            with chat_span(model, call) as span:
                async with (
                    self._clock.deadline(self._seconds, "debug-replay"),
                    aclosing(model.stream(call)) as parts,
                ):
                    async for part in parts:
                        collector.add(part)
                        if isinstance(part, Finish):
                            span.answered((), part.reason, part.usage, response_id=None, model=None)
                        if isinstance(part, StreamError):
                            error = part.error
                            span.failed(error, collector.usage() or Usage())
                        elif isinstance(part, Warnings):
                            warned = [item.message for item in part.items]
                        elif ttft_ms is None and not isinstance(part, ResponseStarted):
                            ttft_ms = self._elapsed_ms(started)
            status = CallStatus.FAILED if error else CallStatus.OK
        except DeadlineExceeded:
            error = _too_slow(ready, self._seconds)
        except asyncio.CancelledError:
            status = CallStatus.INTERRUPTED
            raise
        finally:
            spent = collector.usage() or Usage()
            row = msgspec.structs.replace(
                ready.usage_entry(spent, owner_id=owner_id, chat_id=chat_id, purpose=Purpose.REPLAY, status=status),
                cost_micros=cost.cost_micros(spent, prices),
                runtime_ms=self._elapsed_ms(started),
            )
            self._stats.call_ended(model, row)
            await asyncio.shield(self._record(row))
        response, _ = await asyncio.to_thread(collector.finish, self._redactor)
        answer = ReplayAnswer(
            model=ready.config.model,
            provider=ready.provider_name,
            effort=None if call.effort is None else str(call.effort),
            content=response.content,
            finish_reason=response.finish_reason,
            usage=response.usage,
            cost_micros=row.cost_micros,
            ttft_ms=ttft_ms,
            duration_ms=row.runtime_ms,
            error=None if error is None else normalize_error(error, self._redactor),
        )
        return answer, warned

    async def _record(self, row: ledger.Entry) -> None:
        """Write the ledger row. A failure is only logged, because the answer is still useful."""
        try:
            async with self._clock.deadline(_WRITE_SECONDS, "usage"), self._pool.acquire() as conn:
                await ledger.record_call(conn, row)
        except DATABASE_ERRORS as error:
            log.warning("usage_not_recorded", chat_id=row.chat_id, error=str(error) or type(error).__name__)

    def _elapsed_ms(self, started: float) -> int:
        return round((self._clock.monotonic() - started) * 1000)


def edited(prompt: Prompt, edits: Mapping[int, str]) -> Prompt:
    """Return the prompt with new texts. Other parts of an edited message are kept.

    Raise `InvalidInput` with the position of the edit, if the message does not exist or has no text.
    """
    messages = list(prompt.messages)
    for number, (index, text) in enumerate(edits.items()):
        if not 0 <= index < len(messages):
            raise InvalidInput(f"edits[{number}].message", f"This prompt has {len(messages)} messages, from 0 on.")
        parts = _with_text(messages[index].parts, text)
        if parts is None:
            raise InvalidInput(f"edits[{number}].message", "This message has no text, or several results of tools.")
        messages[index] = msgspec.structs.replace(messages[index], parts=parts, prefix_fp=None)
    return Prompt(tuple(messages)) if edits else prompt


def _with_text(parts: Sequence[PromptPart], text: str) -> tuple[PromptPart, ...] | None:
    """Return the parts with one text in place of all their texts, or in place of the text of their only tool result."""
    first = next((part for part in parts if isinstance(part, PromptText)), None)
    if first is not None:
        return tuple(
            PromptText(text) if part is first else part
            for part in parts
            if part is first or not isinstance(part, PromptText)
        )
    results = [part for part in parts if isinstance(part, PromptResult)]
    if len(results) != 1:
        return None
    return tuple(msgspec.structs.replace(part, text=text) if part is results[0] else part for part in parts)


def recorded_answer(recorded: RecordedCall) -> ReplayAnswer:
    step = recorded.step
    response = record_views.read(step.normalized_response, NormalizedResponse)
    finished = step.finished_at
    return ReplayAnswer(
        model=step.model or recorded.run.model,
        provider=step.provider or recorded.run.provider,
        effort=record_views.effort_of(step),
        content=() if response is None else response.content,
        finish_reason=step.finish_reason,
        usage=record_views.usage_of(step),
        cost_micros=step.cost_micros,
        ttft_ms=step.ttft_ms,
        duration_ms=None if finished is None else round((finished - step.started_at).total_seconds() * 1000),
        error=record_views.error_of(step),
    )


def _decoded(recorded: RecordedCall) -> ReplayRequest:
    try:
        forms = [
            (row.step_number, replay_request.unpack(row.replay_form))
            for row in recorded.forms
            if row.replay_form is not None
        ]
        if not forms or forms[-1][0] != recorded.step.step_number:
            raise NotReplayable("The request of this step was not recorded as a whole.")
        return replay_request.decode(forms)
    except Incomplete as error:
        raise NotReplayable(str(error)) from error


def _call(
    ready: ReadyModel, model: LanguageModel, request: ReplayRequest, *, change: ReplayChange, is_foreign: bool
) -> Call:
    prompt = _foreign(request.prompt) if is_foreign else request.prompt
    call = make_call(
        ready,
        model,
        prompt=prompt,
        tools=request.tools,
        purpose=Purpose.REPLAY,
        effort=request.effort if isinstance(change.effort, UnsetType) else change.effort,
        tool_choice=request.tool_choice,
        format=request.format,
        max_output_tokens=request.max_output_tokens,
        may_search=False,
    )
    # Without an origin, nothing of the call is remembered for the chat.
    return msgspec.structs.replace(
        call_options.without_storage(call), plain_history=is_foreign, drop_stale_thinking=bool(change.edits)
    )


def _foreign(prompt: Prompt) -> Prompt:
    def changed(message: PromptMessage) -> PromptMessage:
        if message.role is not Role.ASSISTANT:
            return message
        return msgspec.structs.replace(message, is_native=False, prefix_fp=None)

    return Prompt(tuple(changed(message) for message in prompt.messages))


def _notes(request: ReplayRequest, step: StepRow, ready: ReadyModel, *, is_foreign: bool) -> list[str]:
    notes = []
    if _has_marker(request.prompt):
        notes.append(_SECRETS_NOTE)
    if request.may_search:
        notes.append(_SEARCH_NOTE)
    if is_foreign and any(message.role is Role.ASSISTANT for message in request.prompt.messages):
        notes.append(_FOREIGN_NOTE)
    if not is_foreign and ready.config.updated_at > step.started_at:
        notes.append(_CONFIG_NOTE)
    return notes


_MARKER = REDACTED[:-1]


def _has_marker(prompt: Prompt) -> bool:
    for message in prompt.messages:
        for part in message.parts:
            text = getattr(part, "text", "") or bytes(getattr(part, "input", b"")).decode("utf-8", "replace")
            if _MARKER in text:
                return True
    return False


def _too_slow(ready: ReadyModel, seconds: float) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.TIMEOUT,
        message=f"{ready.provider_name} did not end its answer within {seconds:g} s, and was stopped.",
        retryable=True,
        provider=ready.provider_name,
    )
