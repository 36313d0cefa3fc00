"""The operations of the writer: each prepares its values in the writer's thread, and then runs one or two statements.

An operation holds only references; `prepare` redacts, normalizes and compresses. The operations of a run are prepared
and written in order, so `prepare` may use values that earlier operations have stored in the run.
"""

from __future__ import annotations

import copy
import zlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import asyncpg
import msgspec

from rookery.debug import cache_diagnosis, normalization, replay_request
from rookery.debug.cache_diagnosis import CacheDiagnosis, CachedStep
from rookery.debug.normalization import NormalizedError, NormalizedResponse, StreamSummary
from rookery.debug.recorded_http import AttemptRecord, body_meta, redact_attempt
from rookery.debug.redaction import RedactedBody, Redactor
from rookery.debug.stats import Result
from rookery.llm.errors import CallFailed
from rookery.llm.types import Call, ProviderError, StreamPart, Usage
from rookery.models import cost
from rookery.store.db.pool import Connection
from rookery.store.debug import attempts, runs, steps
from rookery.store.debug.attempts import NewAttempt
from rookery.store.debug.record_rows import AttemptStatus, RunStatus, StepStatus, json_text, plain_text
from rookery.store.debug.runs import NewRun, RunState
from rookery.store.debug.steps import NewStep, StepEnd, StepRequest
from rookery.telemetry.log import get_logger

if TYPE_CHECKING:
    from rookery.debug.recorder import RecordedCall, Run, Step

log = get_logger("debug.writer_operations")

MAX_PRIOR_ERRORS = 5
# The estimated memory of an operation without its content.
BASE_BYTES = 1024
_LEVEL = 1


class Answer(Protocol):
    """The parts of an answer so far."""

    @property
    def size_bytes(self) -> int: ...

    def add(self, part: StreamPart) -> None: ...

    def usage(self) -> Usage | None: ...

    def finish(self, redactor: Redactor) -> tuple[NormalizedResponse, StreamSummary]: ...


class Operation:
    """One operation. `name` is its label in metrics and warnings. `hint` is the kind of change that it announces.

    An operation with `is_final` ends something, and is never dropped because of a full queue.
    """

    name: ClassVar[str]
    hint: ClassVar[str | None] = None
    is_final: ClassVar[bool] = False

    __slots__ = ("is_taken", "run", "size_bytes")

    def __init__(self, run: Run, size_bytes: int = 0) -> None:
        self.run = run
        self.size_bytes = BASE_BYTES + size_bytes
        self.is_taken = False

    @property
    def step_number(self) -> int | None:
        return None

    def prepare(self) -> None:
        """Prepare the values. This runs in the writer's thread."""

    async def write(self, conn: Connection) -> Result:
        raise NotImplementedError

    def lost(self) -> None:
        """Called if the operation was not written."""

    def release(self) -> None:
        """Drop references that would form a cycle. Called after the operation."""


class OpenRun(Operation):
    name = "run"
    hint = "run"

    __slots__ = ("_row",)

    def __init__(self, run: Run) -> None:
        super().__init__(run, len(run.facts.label))
        self._row: NewRun | None = None

    def prepare(self) -> None:
        self._row = self.run.row()

    async def write(self, conn: Connection) -> Result:
        assert self._row is not None
        if await runs.insert_run(conn, self._row):
            return Result.OK
        # The chat was deleted, or the history was removed while the worker was still running.
        self.run.is_detached = True
        return Result.REFUSED

    def lost(self) -> None:
        self.run.is_detached = True


class CloseRun(Operation):
    name = "close"
    hint = "finalize"
    is_final = True

    __slots__ = ("_at", "_status")

    def __init__(self, run: Run, status: RunStatus, at: datetime) -> None:
        super().__init__(run)
        self._status = status
        self._at = at

    async def write(self, conn: Connection) -> Result:
        run_id, chat_id = self.run.id, self.run.facts.chat_id
        try:
            is_written = await runs.finish_run(conn, run_id, chat_id, status=self._status, finished_at=self._at)
        except asyncpg.DataError as error:
            log.warning("debug_run_not_summed_up", chat_id=chat_id, run_id=run_id, error=str(error))
            is_written = await runs.finish_run(
                conn, run_id, chat_id, status=self._status, finished_at=self._at, sums_up=False
            )
        return Result.OK if is_written else Result.REFUSED


class BeginCall(Operation):
    """The start of a call: inserts its step, or starts the step again."""

    name = "step"
    hint = "step"

    __slots__ = ("_call", "_request", "_sent")

    def __init__(self, call: RecordedCall, sent: Call, size_bytes: int) -> None:
        super().__init__(call.step.run, size_bytes)
        self._call = call
        self._sent: Call | None = sent
        self._request: StepRequest | None = None

    @property
    def step_number(self) -> int | None:
        return self._call.step.number

    def strip(self) -> int:
        """Drop the request because the queue is full. Return the number of freed bytes."""
        freed = 0 if self._sent is None else self.size_bytes - BASE_BYTES
        self._sent = None
        self.size_bytes -= freed
        return freed

    def prepare(self) -> None:
        call, sent, step, run = self._call, self._sent, self._call.step, self.run
        if call.epoch == 1:
            run.before, run.shared_from = copy.copy(run.prompts), run.stored_number
        else:
            # A retry shares its prefix with the step before, not with the call that it repeats.
            run.prompts = copy.copy(run.before)
            if step.last_error is not None:
                step.prior_errors = [*step.prior_errors, step.last_error][-MAX_PRIOR_ERRORS:]
                step.last_error = None
        is_full = run.is_full or step.number - run.facts.dropped_steps > run.limits.max_steps
        run.is_full = is_full
        fields: dict[str, Any] = {
            "model_config_id": call.model.model_config_id,
            "provider": call.model.provider,
            "model": call.model.model,
            "message_count": call.message_count,
            "tool_count": call.tool_count,
            "metadata": json_text(metadata(call, truncated=is_full or sent is None)),
        }
        if is_full or sent is None:
            run.prompts.forget()
        else:
            prefix = msgspec.structs.replace(run.prompts.add(sent), step=run.shared_from)
            call.has_same_tools = prefix.has_same_tools
            call.shared_messages = fields["shared_messages"] = prefix.length
            fields["request"] = json_text(normalization.share_prefix(sent, run.redactor, prefix))
            fields["replay_form"] = replay_request.pack(replay_request.encode(sent, run.redactor, prefix))
        self._request = StepRequest(**fields)
        add_bytes(run, self._request.size_bytes)

    async def write(self, conn: Connection) -> Result:
        call, step, run, request = self._call, self._call.step, self.run, self._request
        assert request is not None
        if step.is_stored:
            is_written = await steps.begin_again(
                conn, step.id, run.id, run.facts.chat_id, epoch=call.epoch, request=request
            )
        else:
            number = await steps.insert_step(
                conn,
                NewStep(
                    id=step.id,
                    run_id=run.id,
                    chat_id=run.facts.chat_id,
                    step_number=step.number,
                    step_key=step.key,
                    epoch=call.epoch,
                    operation=step.operation,
                    history_tip_message_id=step.history_tip_message_id,
                    started_at=run.at(call.started),
                    request=request,
                ),
            )
            is_written = number is not None
            if number is not None:
                step.is_stored, step.number = True, number
                run.last_number = max(run.last_number, number)
                run.stored_number = number
        if is_written:
            return Result.OK
        found = await runs.find_state(conn, run.id, run.facts.chat_id)
        if found is RunState.OPEN:
            return Result.STALE
        run.is_detached = True
        if found is RunState.NOT_FOUND:
            log.error("debug_run_not_found", chat_id=run.facts.chat_id, run_id=run.id)
        else:
            log.debug("debug_run_ended", chat_id=run.facts.chat_id, run_id=run.id, reason=found)
        return Result.REFUSED

    def lost(self) -> None:
        # The next request must not refer to this one.
        self.run.prompts.forget()


class EndCall(Operation):
    """The end of a call. Until the writer takes it, another end with a higher priority can replace it."""

    name = "finish"
    hint = "step"
    is_final = True

    __slots__ = ("_call", "_end", "_ended", "_error", "assistant_message_id", "status")

    def __init__(
        self,
        call: RecordedCall,
        status: StepStatus,
        error: BaseException | ProviderError | SeenError | None,
        ended: float,
    ) -> None:
        self._error = seen_error(error)
        super().__init__(call.step.run, call.answer.size_bytes + _error_bytes(self._error))
        self._call: RecordedCall | None = call
        self._ended = ended
        self._end: StepEnd | None = None
        self.status = status
        self.assistant_message_id: int | None = None

    @property
    def step_number(self) -> int | None:
        return None if self._call is None else self._call.step.number

    def release(self) -> None:
        # The call refers to its end, and the cycle would keep the answer until a garbage collection.
        self._call = None

    def replace(self, stronger: EndCall) -> None:
        """Take over the status and the error of another end of the same call."""
        self.status, self._error, self._ended = stronger.status, stronger._error, stronger._ended

    def prepare(self) -> None:
        call, run = self._call, self.run
        assert call is not None
        step = call.step
        response, summary = call.answer.finish(run.redactor)
        usage = call.answer.usage()
        error = _normalized(self._error, run.redactor)
        if self.status is StepStatus.ERROR and error is not None:
            step.last_error = {
                "kind": error.kind,
                "message": error.message,
                "generation_attempt": call.generation_attempt,
            }
        diagnosis = None if usage is None else self._diagnosis(usage)
        has_answer = summary.part_count > 0
        is_full = run.is_full
        normalized_usage = None if usage is None else normalization.normalize_usage(usage)
        self._end = StepEnd(
            status=self.status,
            finished_at=run.at(self._ended),
            response=json_text(response) if has_answer and not is_full else None,
            usage=None if normalized_usage is None else json_text(normalized_usage),
            cost_micros=None if usage is None else cost.cost_micros(usage, call.model.prices),
            finish_reason=response.finish_reason,
            error=None if error is None or self.status is StepStatus.COMPLETED else json_text(error),
            metadata=json_text(metadata(call, summary=summary if has_answer else None, truncated=is_full)),
            cache=None if diagnosis is None else json_text(diagnosis),
            # The first part of a call that failed before its answer is the error.
            ttft_ms=call.ttft_ms if response.content or self.status is not StepStatus.ERROR else None,
            assistant_message_id=self.assistant_message_id,
        )
        add_bytes(run, self._end.size_bytes)

    def _diagnosis(self, usage: Usage) -> CacheDiagnosis | None:
        """Return why the provider's cache did not serve the prefix. The next step is compared with this one."""
        call, run = self._call, self.run
        assert call is not None
        cached = CachedStep(
            usage=usage,
            provider=call.model.provider,
            model=call.model.model,
            message_count=call.message_count,
            shared_messages=call.shared_messages,
            has_same_tools=call.has_same_tools,
            started_at=run.at(call.started),
            finished_at=run.at(self._ended),
        )
        found = cache_diagnosis.diagnose(cached, run.cached_step, prices=call.model.prices)
        if self.status is StepStatus.COMPLETED:
            run.cached_step = cached
        return found

    async def write(self, conn: Connection) -> Result:
        assert self._end is not None
        assert self._call is not None
        step = self._call.step
        if not step.is_stored:
            return Result.STALE
        is_written = await steps.finish_step(conn, step.id, epoch=self._call.epoch, end=self._end)
        return Result.OK if is_written else Result.STALE


class WriteAttempt(Operation):
    name = "attempt"
    hint = "step"

    __slots__ = ("_attempt", "_generation_attempt", "_is_stripped", "_record", "_step")

    def __init__(self, step: Step, record: AttemptRecord, generation_attempt: int) -> None:
        kept = 0 if record.response_body is None else len(record.response_body.head) + len(record.response_body.tail)
        super().__init__(step.run, len(record.request_body) + kept)
        self._step = step
        self._record = record
        self._generation_attempt = generation_attempt
        self._is_stripped = False
        self._attempt: NewAttempt | None = None

    @property
    def step_number(self) -> int | None:
        return self._step.number

    @property
    def freeable_bytes(self) -> int:
        """The bytes that `strip` frees."""
        return 0 if self._is_stripped else self.size_bytes - BASE_BYTES

    def strip(self) -> int:
        """Drop the bodies because the queue is full. Return the number of freed bytes."""
        freed = self.freeable_bytes
        if not self._is_stripped:
            self._is_stripped = True
            self._record = msgspec.structs.replace(self._record, request_body=b"", response_body=None)
            self.size_bytes -= freed
        return freed

    def prepare(self) -> None:
        stored = redact_attempt(self._record, self.run.redactor)
        keeps_bodies = not self.run.is_full and not self._is_stripped
        self._attempt = NewAttempt(
            number=stored.number,
            status=AttemptStatus(stored.status),
            generation_attempt=self._generation_attempt,
            method=stored.method,
            url=plain_text(stored.url),
            path=plain_text(stored.path),
            request_headers=json_text(stored.request_headers),
            request_body=_compressed(stored.request_body) if keeps_bodies else None,
            response_status=stored.response_status,
            response_headers=json_text(stored.response_headers),
            response_body=_compressed(stored.response_body) if keeps_bodies else None,
            body_meta=json_text({} if self._is_stripped else msgspec.to_builtins(body_meta(stored))),
            error=None if stored.error is None else plain_text(stored.error),
            ttfb_ms=stored.ttfb_ms,
            duration_ms=stored.duration_ms,
            started_at=stored.started_at,
            finished_at=stored.finished_at,
        )
        add_bytes(self.run, self._attempt.size_bytes)

    async def write(self, conn: Connection) -> Result:
        assert self._attempt is not None
        chat_id = self.run.facts.chat_id
        is_written = await attempts.write_attempt(conn, self._step.id, chat_id, self._attempt)
        return Result.OK if is_written else Result.REFUSED


class PlanRetry(Operation):
    name = "retry"
    hint = "step"

    __slots__ = ("_delay_ms", "_epoch", "_kind", "_step")

    def __init__(self, step: Step, epoch: int, kind: str, delay_ms: int) -> None:
        super().__init__(step.run)
        self._step = step
        self._epoch = epoch
        self._kind = kind
        self._delay_ms = delay_ms

    async def write(self, conn: Connection) -> Result:
        await steps.plan_retry(conn, self._step.id, epoch=self._epoch, kind=self._kind, delay_ms=self._delay_ms)
        return Result.OK


class SetMessage(Operation):
    name = "message"
    hint = "step"

    __slots__ = ("_message_id", "_step")

    def __init__(self, step: Step, message_id: int) -> None:
        super().__init__(step.run)
        self._step = step
        self._message_id = message_id

    async def write(self, conn: Connection) -> Result:
        is_written = await steps.set_message(conn, self._step.id, self._message_id)
        return Result.OK if is_written else Result.REFUSED


def metadata(call: RecordedCall, *, summary: StreamSummary | None = None, truncated: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    if summary is not None:
        found["stream_summary"] = summary
    if call.step.prior_errors:
        found["prior_errors"] = call.step.prior_errors
    if not call.is_observed:
        found["transport"] = "unobserved"
    if call.is_structured:
        found["structured_output"] = True
    if truncated:
        found["truncated"] = True
    return found


def add_bytes(run: Run, count: int) -> None:
    """Count stored bytes. Above the limit of the run, only metadata is recorded."""
    run.stored_bytes += count
    if run.stored_bytes > run.limits.max_bytes:
        run.is_full = True


class SeenError(msgspec.Struct, frozen=True):
    """An exception without its frames. The frames would keep the objects of a whole step in memory while it waits."""

    type: str
    text: str


def seen_error(error: BaseException | ProviderError | SeenError | None) -> ProviderError | SeenError | None:
    if isinstance(error, CallFailed):
        return error.error
    if isinstance(error, BaseException):
        return SeenError(type(error).__name__, str(error))
    return error


def _error_bytes(error: ProviderError | SeenError | None) -> int:
    match error:
        case None:
            return 0
        case SeenError():
            return len(error.text)
        case _:
            return len(error.message)


def _normalized(error: ProviderError | SeenError | None, redactor: Redactor) -> NormalizedError | None:
    if error is None or isinstance(error, ProviderError):
        return None if error is None else normalization.normalize_error(error, redactor)
    found = normalization.normalize_error(Exception(error.text or error.type), redactor)
    return msgspec.structs.replace(found, type=error.type)


def _compressed(body: RedactedBody | None) -> bytes | None:
    return None if body is None else zlib.compress(body.data, _LEVEL)
