"""The recorder: debug runs, their steps and calls. It runs on the event loop and only passes references to the writer's
queue.

A run belongs to one process. A step is one logical model call; a retry of the same history version continues the step
with the next *epoch*. Each call ends once. A later report about the same call may replace its status by one of higher
priority.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from rookery.debug import writer_operations
from rookery.debug.cache_diagnosis import CachedStep
from rookery.debug.normalization import PromptHashes, ResponseCollector
from rookery.debug.recorded_http import AttemptRecord
from rookery.debug.redaction import Redactor
from rookery.debug.writer_operations import Answer, Operation, SeenError
from rookery.domain.chat.messages import ChatId
from rookery.llm.types import Call, Finish, ProviderError, StreamError, Wire
from rookery.models.cost import Prices
from rookery.models.directory import ReadyModel
from rookery.runtime.clock import Clock
from rookery.store.debug.record_rows import RunKind, RunStatus, StepStatus
from rookery.store.debug.runs import NewRun
from rookery.telemetry.log import get_logger

log = get_logger("debug.recorder")

MAX_LABEL_CHARS = 200
# Beyond these limits of a run, only metadata is recorded.
MAX_STEPS = 1000
MAX_RUN_BYTES = 32 * 1024 * 1024
# The wires whose HTTP exchanges are recorded.
OBSERVED_WIRES: frozenset[Wire] = frozenset({"anthropic", "responses", "completions"})


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a call. `configured_headers` are the names of headers that administrators configured."""

    model_config_id: UUID
    provider: str
    model: str
    prices: Prices | None = None
    configured_headers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, ready: ReadyModel, prices: Prices | None) -> ModelFacts:
        return cls(
            model_config_id=ready.config.id,
            provider=ready.provider.type,
            model=ready.config.model,
            prices=prices,
            configured_headers=frozenset({*ready.provider.options.headers, *(ready.config.options.headers or {})}),
        )


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run. `label` is the text that names the run in lists.

    `is_kept`: the run was kept in memory and is stored because of an error. Its first `dropped_steps` are missing.
    """

    chat_id: ChatId
    root_chat_id: UUID
    parent_chat_id: UUID | None
    snapshot_version: int
    kind: RunKind
    model: ModelFacts
    label: str = ""
    parent_run_id: UUID | None = None
    trigger_message_id: int | None = None
    history_tip_message_id: int | None = None
    is_kept: bool = False
    dropped_steps: int = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run. Above them, only metadata is recorded."""

    max_steps: int = MAX_STEPS
    max_bytes: int = MAX_RUN_BYTES


class Room(msgspec.Struct, frozen=True):
    """The free space of the queue, and the space that can be freed for new operations."""

    bytes: int
    operations: int


class Queue(Protocol):
    """The queue of the writer. `submit` returns False if it refuses the operation."""

    def submit(self, operation: Operation) -> bool: ...

    def room(self) -> Room: ...


class Recorder:
    """Opens runs. Each process has one recorder."""

    def __init__(
        self,
        queue: Queue,
        *,
        replica_id: UUID,
        clock: Clock,
        redactor: Redactor | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.clock = clock
        self.redactor = redactor or Redactor()
        self.limits = limits or Limits()
        self._queue = queue
        self._replica_id = replica_id
        self._open: dict[UUID, Run] = {}

    @property
    def open_runs(self) -> list[UUID]:
        """The runs that this process is still recording."""
        return list(self._open)

    def open(self, facts: RunFacts, *, started_at: datetime | None = None, started: float | None = None) -> Run | None:
        """Open a run; None if the queue accepts no new runs. For a turn that was kept in memory, the times are
        passed.
        """
        run = Run(
            self,
            self._queue,
            facts,
            replica_id=self._replica_id,
            started_at=started_at or self.clock.now(),
            started=self.clock.monotonic() if started is None else started,
        )
        if not self._queue.submit(writer_operations.OpenRun(run)):
            return None
        self._open[run.id] = run
        return run

    def room(self) -> Room:
        """Return the space that one run can use now: the free part of the queue, but at most the limit of a run."""
        room = self._queue.room()
        return Room(min(room.bytes, self.limits.max_bytes), room.operations)

    def forget(self, run: Run) -> None:
        self._open.pop(run.id, None)


class Run:
    """One run."""

    __slots__ = (
        "_calls",
        "_keyed",
        "_outcome",
        "_queue",
        "_recorder",
        "_replica_id",
        "_started",
        "announced",
        "before",
        "cached_step",
        "facts",
        "id",
        "is_closed",
        "is_detached",
        "is_full",
        "last_number",
        "prompts",
        "shared_from",
        "started_at",
        "stored_bytes",
        "stored_number",
    )

    def __init__(
        self,
        recorder: Recorder,
        queue: Queue,
        facts: RunFacts,
        *,
        replica_id: UUID,
        started_at: datetime,
        started: float,
    ) -> None:
        self.id = new_id(started_at)
        self.facts = facts
        self.started_at = started_at
        self.last_number = 0
        self.is_closed = False
        self._recorder = recorder
        self._queue = queue
        self._replica_id = replica_id
        self._started = started
        self._keyed: Step | None = None
        self._calls: set[RecordedCall] = set()
        self._outcome: RunStatus | None = None
        # Set when the run cannot be written to any more. Later operations are dropped.
        self.is_detached = False
        self.is_full = False
        self.stored_bytes = 0
        # The attributes from here on are for the writer only.
        self.prompts = PromptHashes()
        self.before = PromptHashes()  # the value of `prompts` before the current step
        self.shared_from: int | None = None  # the number of the step whose prompt `before` has
        self.stored_number: int | None = None  # the number of the last stored step
        self.cached_step: CachedStep | None = None  # the last completed step
        self.announced = float("-inf")

    @property
    def clock(self) -> Clock:
        return self._recorder.clock

    @property
    def redactor(self) -> Redactor:
        return self._recorder.redactor

    @property
    def limits(self) -> Limits:
        return self._recorder.limits

    def row(self) -> NewRun:
        facts = self.facts
        label = cut_label(self.redactor.text(facts.label))
        seed = {"first_message": label, "recorded_on_error": facts.is_kept, "dropped_steps": facts.dropped_steps}
        return NewRun(
            id=self.id,
            chat_id=facts.chat_id,
            root_chat_id=facts.root_chat_id,
            parent_chat_id=facts.parent_chat_id,
            replica_id=self._replica_id,
            snapshot_version=facts.snapshot_version,
            kind=facts.kind,
            started_at=self.started_at,
            parent_run_id=facts.parent_run_id,
            model_config_id=facts.model.model_config_id,
            provider=facts.model.provider,
            model=facts.model.model,
            trigger_message_id=facts.trigger_message_id,
            history_tip_message_id=facts.history_tip_message_id,
            summary={name: value for name, value in seed.items() if value},
        )

    def step(
        self, *, key: str | None, operation: str = "stream", history_tip_message_id: int | None = None
    ) -> Step | None:
        """Return the step with this key, or a new step; None if the run has reached its limit of steps."""
        if self.is_closed or self.is_detached:
            return None
        if key is not None and self._keyed is not None and self._keyed.key == key:
            return self._keyed
        self.last_number += 1
        step = Step(self, self.last_number, key, operation=operation, history_tip_message_id=history_tip_message_id)
        if key is not None:
            self._keyed = step
        return step

    def submit(self, operation: Operation) -> bool:
        return not self.is_detached and self._queue.submit(operation)

    def call_began(self, call: RecordedCall) -> None:
        self._calls.add(call)

    def call_ended(self, call: RecordedCall) -> None:
        self._calls.discard(call)
        if self._outcome is not None and not self._calls:
            self.close()

    def finish(self, outcome: RunStatus) -> None:
        """End the run as soon as its calls have ended. After an interrupt, calls may still be ending."""
        if self.is_closed:
            return
        self._outcome = outcome
        if not self._calls:
            self.close()

    def close(self, outcome: RunStatus | None = None) -> None:
        """End the run now.

        Calls that have not ended are interrupted, including those that were never read. Idempotent.
        """
        if self.is_closed:
            return
        self.is_closed = True
        for call in tuple(self._calls):
            call.abandon()
        self._keyed = None
        status = outcome or self._outcome or RunStatus.INTERRUPTED
        self._queue.submit(writer_operations.CloseRun(self, status, self.at(self.clock.monotonic())))
        self._recorder.forget(self)

    def at(self, monotonic: float) -> datetime:
        """Convert a monotonic time to wall-clock time.

        Changes of the system clock since the start of the run have no effect.
        """
        return self.started_at + timedelta(seconds=max(monotonic - self._started, 0.0))


class Step:
    """One debug step. It receives the attempts of its calls (`recorded_http.AttemptSink`)."""

    __slots__ = (
        "_abort_reason",
        "attempts",
        "epoch",
        "generation_attempt",
        "history_tip_message_id",
        "id",
        "is_stored",
        "key",
        "last_end",
        "last_error",
        "number",
        "operation",
        "prior_errors",
        "run",
    )

    def __init__(
        self, run: Run, number: int, key: str | None, *, operation: str, history_tip_message_id: int | None
    ) -> None:
        self.id = new_id(run.started_at)
        self.run = run
        self.number = number
        self.key = key
        self.operation = operation
        self.history_tip_message_id = history_tip_message_id
        self.epoch = 0
        self.attempts = 0
        self.generation_attempt = 0
        self.last_end: writer_operations.EndCall | None = None
        self._abort_reason: Callable[[], str | None] = _no_reason
        # These belong to the writer.
        self.is_stored = False
        self.last_error: dict[str, object] | None = None
        self.prior_errors: list[dict[str, object]] = []

    def begin(
        self,
        call: Call,
        model: ModelFacts,
        *,
        wire: Wire,
        generation_attempt: int = 0,
        abort_reason: Callable[[], str | None] | None = None,
        started: float | None = None,
        size_bytes: int | None = None,
    ) -> RecordedCall:
        """Start a call under the next epoch. `size_bytes` is the memory that only this request holds."""
        self.epoch += 1
        self.generation_attempt = generation_attempt
        self._abort_reason = abort_reason or _no_reason
        recorded = RecordedCall(self, call, model, wire=wire, started=started)
        self.run.call_began(recorded)
        self.run.submit(
            writer_operations.BeginCall(recorded, call, call.prompt.size_bytes if size_bytes is None else size_bytes)
        )
        return recorded

    def retry_planned(self, kind: str, delay: timedelta) -> None:
        self.run.submit(writer_operations.PlanRetry(self, self.epoch, kind, round(delay.total_seconds() * 1000)))

    def committed(self, message_id: int) -> None:
        """Set the message that contains the answer. It is written with the end of the call, if the end is still in the
        queue.
        """
        if self.last_end is not None and not self.last_end.is_taken:
            self.last_end.assistant_message_id = message_id
        else:
            self.run.submit(writer_operations.SetMessage(self, message_id))

    # The attempts of its calls

    def next_attempt(self) -> int:
        self.attempts += 1
        return self.attempts

    def attempt_ended(self, record: AttemptRecord) -> None:
        self.run.submit(writer_operations.WriteAttempt(self, record, self.generation_attempt))

    def abort_reason(self) -> str | None:
        return self._abort_reason()


class RecordedCall:
    """One call of a step, under one epoch. `answer` collects its parts; `terminal` is the last part.

    It has no reference to the request, so the request is freed when it was written or dropped.
    """

    __slots__ = (
        "_ended",
        "answer",
        "epoch",
        "generation_attempt",
        "has_same_tools",
        "is_observed",
        "is_structured",
        "message_count",
        "model",
        "shared_messages",
        "started",
        "step",
        "terminal",
        "tool_count",
        "ttft_ms",
    )

    def __init__(self, step: Step, call: Call, model: ModelFacts, *, wire: Wire, started: float | None) -> None:
        self.step = step
        self.model = model
        self.message_count = len(call.prompt.messages)
        self.tool_count = len(call.tools) + (call.web_search is not None)
        self.is_structured = call.format is not None
        self.epoch = step.epoch
        self.generation_attempt = step.generation_attempt
        self.is_observed = wire in OBSERVED_WIRES
        self.started = step.run.clock.monotonic() if started is None else started
        self.answer: Answer = ResponseCollector(is_structured=self.is_structured)
        self.terminal: Finish | StreamError | None = None
        self.ttft_ms: int | None = None
        # These belong to the writer.
        self.shared_messages = 0
        self.has_same_tools = False
        self._ended: writer_operations.EndCall | None = None

    @property
    def status(self) -> StepStatus:
        return StepStatus.IN_PROGRESS if self._ended is None else self._ended.status

    def answered(self) -> None:
        """Record the time of the first part."""
        self.ttft_ms = round((self.step.run.clock.monotonic() - self.started) * 1000)

    def abandon(self) -> None:
        """End the call according to its parts: completed if the last part has arrived, otherwise interrupted.

        A call that has ended is not changed.
        """
        if isinstance(self.terminal, StreamError):
            self.end(StepStatus.ERROR, self.terminal.error)
        else:
            self.end(StepStatus.INTERRUPTED if self.terminal is None else StepStatus.COMPLETED)

    def end(
        self,
        status: StepStatus,
        error: BaseException | ProviderError | SeenError | None = None,
        *,
        ended: float | None = None,
    ) -> None:
        """End the call. Afterwards, an interrupted call can only get the reason of the interruption, which makes it a
        failure.
        """
        run, before = self.step.run, self._ended
        if before is not None and (before.status is not StepStatus.INTERRUPTED or status is not StepStatus.ERROR):
            return
        end = writer_operations.EndCall(self, status, error, run.clock.monotonic() if ended is None else ended)
        if before is not None and not before.is_taken:
            before.replace(end)
        else:
            self._ended = self.step.last_end = end
            run.submit(end)
        run.call_ended(self)


def _no_reason() -> str | None:
    return None


def cut_label(text: str) -> str:
    """Return the text in one line of at most `MAX_LABEL_CHARS` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LABEL_CHARS else line[: MAX_LABEL_CHARS - 1] + "…"


def new_id(at: datetime) -> UUID:
    """Return a UUID of version 7: ordered by time, with 74 random bits."""
    milliseconds = max(int(at.timestamp() * 1000), 0) & (2**48 - 1)
    random = secrets.randbits(74)
    value = milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & (2**62 - 1)
    return UUID(int=value)
