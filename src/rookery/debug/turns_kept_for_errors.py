"""Turns that are not recorded: they are kept in memory until their end, and stored if they end with an error.

Only references are kept: to the calls, whose messages the prompt cache shares, and to the answers. Neither the model
nor its HTTP client is wrapped, so a successful turn has no cost per token. The stored record has no attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

import msgspec

from rookery.debug import writer_operations
from rookery.debug.call_scope import CallFacts, CallScope
from rookery.debug.normalization import NormalizedResponse, ResponseCollector, StreamSummary
from rookery.debug.recorder import Recorder, RunFacts
from rookery.debug.redaction import Redactor
from rookery.debug.stats import DebugStats, Dropped
from rookery.debug.writer_operations import BASE_BYTES, SeenError
from rookery.domain.chat import parts
from rookery.domain.chat.model_prompt import Prompt, sum_sizes
from rookery.domain.chat.parts import Part
from rookery.llm import types as llm
from rookery.llm.errors import CallFailed
from rookery.llm.types import Call, FinishReason, LanguageModel, ProviderError, StreamPart, Usage, Wire
from rookery.store.debug.record_rows import RunStatus, StepStatus
from rookery.telemetry.log import get_logger

log = get_logger("debug.turns_kept_for_errors")

# The limit of calls of one turn. Earlier calls are dropped.
MAX_CALLS = 50
# The operations of the writer for a call (its begin, its end and a retry) and for a run.
_CALL_OPERATIONS = 3
_RUN_OPERATIONS = 2
MAX_TURN_BYTES = 8 * 1024 * 1024
# The memory limit of all kept turns of a process.
MAX_BYTES = 64 * 1024 * 1024


class KeptTurns:
    """The kept turns of a process, and the memory that they use."""

    def __init__(self, stats: DebugStats, *, max_bytes: int = MAX_BYTES, max_turn_bytes: int = MAX_TURN_BYTES) -> None:
        self.stats = stats
        self.size_bytes = 0
        self.max_turn_bytes = max_turn_bytes
        self._max_bytes = max_bytes

    def begin(self, facts: RunFacts, recorder: Recorder) -> KeptTurn | None:
        """Start to keep a turn. Return None if other turns use all of the memory."""
        if self.size_bytes >= self._max_bytes:
            self.stats.dropped[Dropped.KEPT_TURN] += 1
            return None
        return KeptTurn(self, facts, recorder)

    def has_room(self, added_bytes: int) -> bool:
        """Return whether a turn may grow by this size."""
        return added_bytes <= 0 or self.size_bytes + added_bytes <= self._max_bytes


class KeptCall(msgspec.Struct, kw_only=True):
    """One call. `error` is None while the call runs, and after it was answered."""

    facts: CallFacts
    wire: Wire
    call: Call
    # The memory of the messages that the call before does not have.
    own_bytes: int
    started: float
    ended: float = 0.0
    status: StepStatus = StepStatus.IN_PROGRESS
    error: ProviderError | SeenError | None = None
    content: Sequence[Part] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    retry: tuple[str, timedelta] | None = None
    message_id: int | None = None


class KeptTurn:
    """One turn. `end` stores it if it ended with an error. If the memory limit is reached, the turn is dropped."""

    __slots__ = (
        "_calls",
        "_dropped",
        "_facts",
        "_is_given_up",
        "_recorder",
        "_size_bytes",
        "_started",
        "_started_at",
        "_turns",
    )

    def __init__(self, turns: KeptTurns, facts: RunFacts, recorder: Recorder) -> None:
        self._turns = turns
        self._facts = facts
        self._recorder = recorder
        self._started_at, self._started = recorder.clock.now(), recorder.clock.monotonic()
        self._calls: list[KeptCall] = []
        self._dropped = 0
        self._size_bytes = 0
        self._is_given_up = False

    def call(self, model: LanguageModel, call: Call, facts: CallFacts) -> CallScope:
        if self._is_given_up:
            return CallScope(model)
        kept = KeptCall(
            facts=facts,
            wire=model.wire,
            call=call,
            own_bytes=_own_bytes(call.prompt, self._calls[-1].call.prompt if self._calls else None),
            started=self._recorder.clock.monotonic(),
        )
        self._calls.append(kept)
        return _KeptScope(model, self, kept) if self._has_counted() else CallScope(model)

    def call_ended(self, kept: KeptCall, error: BaseException | None) -> None:
        kept.ended = self._recorder.clock.monotonic()
        if isinstance(error, CallFailed):
            kept.usage = error.usage
        if error is None:
            kept.status = StepStatus.COMPLETED
        elif isinstance(error, Exception) and kept.facts.abort_reason() is None:
            kept.status, kept.error = StepStatus.ERROR, writer_operations.seen_error(error)
        else:
            kept.status = StepStatus.INTERRUPTED

    def retry_planned(self, kind: str, delay: timedelta) -> None:
        if self._calls:
            self._calls[-1].retry = (kind, delay)

    def committed(self, message_id: int) -> None:
        if self._calls:
            self._calls[-1].message_id = message_id

    def end(self, outcome: RunStatus) -> None:
        calls, self._calls = self._calls, []
        self._turns.size_bytes -= self._size_bytes
        self._size_bytes = 0
        if outcome is not RunStatus.ERROR or not calls:
            return
        try:
            self._store(calls)
        except Exception as error:
            log.exception("debug_turn_not_recorded", error, chat_id=self._facts.chat_id)

    def _store(self, calls: list[KeptCall]) -> None:
        self._drop_what_does_not_fit(calls)
        facts = msgspec.structs.replace(self._facts, is_kept=True, dropped_steps=self._dropped)
        run = self._recorder.open(facts, started_at=self._started_at, started=self._started)
        if run is None:
            return
        run.last_number = self._dropped
        for kept in calls:
            step = run.step(
                key=f"h{kept.facts.history_version}", history_tip_message_id=kept.facts.history_tip_message_id
            )
            if step is None:
                break
            recorded = step.begin(
                kept.call,
                kept.facts.model,
                wire=kept.wire,
                generation_attempt=kept.facts.generation_attempt,
                started=kept.started,
                size_bytes=kept.own_bytes,
            )
            recorded.is_observed = False
            recorded.answer = KeptAnswer(kept)
            status = StepStatus.INTERRUPTED if kept.status is StepStatus.IN_PROGRESS else kept.status
            recorded.end(status, kept.error, ended=kept.ended or None)
            if kept.message_id is not None:
                step.committed(kept.message_id)
            if kept.retry is not None:
                step.retry_planned(*kept.retry)
        run.finish(RunStatus.ERROR)

    def _drop_what_does_not_fit(self, calls: list[KeptCall]) -> None:
        """If the queue has no room for all calls, drop the first ones: the call that failed is the last one."""
        room = self._recorder.room()
        while len(calls) > 1 and (
            _CALL_OPERATIONS * len(calls) + _RUN_OPERATIONS > room.operations
            or sum(kept.own_bytes + KeptAnswer(kept).size_bytes + 2 * BASE_BYTES for kept in calls) > room.bytes // 2
        ):
            self._drop_first(calls)

    def _drop_first(self, calls: list[KeptCall]) -> None:
        dropped = calls.pop(0)
        calls[0].own_bytes = calls[0].call.prompt.size_bytes
        # A retry belongs to the step of the call that it repeats.
        self._dropped += calls[0].facts.history_version != dropped.facts.history_version

    def _has_counted(self) -> bool:
        """Count the memory of the turn. Return False if the turn is dropped because the memory limit is reached."""
        size = self._size()
        while len(self._calls) > 1 and (len(self._calls) > MAX_CALLS or size > self._turns.max_turn_bytes):
            self._drop_first(self._calls)
            size = self._size()
        if not self._turns.has_room(size - self._size_bytes):
            self._is_given_up = True
            self._turns.stats.dropped[Dropped.KEPT_TURN] += 1
            self._calls.clear()
            size = 0
        self._turns.size_bytes += size - self._size_bytes
        self._size_bytes = size
        return not self._is_given_up

    def _size(self) -> int:
        return sum(kept.own_bytes for kept in self._calls)


class _KeptScope(CallScope):
    __slots__ = ("_kept", "_turn")

    def __init__(self, model: LanguageModel, turn: KeptTurn, kept: KeptCall) -> None:
        super().__init__(model)
        self._turn = turn
        self._kept = kept

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self._turn.call_ended(self._kept, error)

    def answered(self, content: Sequence[Part], finish_reason: FinishReason, usage: Usage) -> None:
        self._kept.content, self._kept.finish_reason, self._kept.usage = content, finish_reason, usage


class KeptAnswer:
    """The answer of a kept call, as parts of a stream. The writer's thread creates it."""

    __slots__ = ("_kept",)

    def __init__(self, kept: KeptCall) -> None:
        self._kept = kept

    @property
    def size_bytes(self) -> int:
        return sum(_part_bytes(part) for part in self._kept.content)

    def add(self, part: StreamPart) -> None:
        raise AssertionError("The call has ended.")

    def usage(self) -> Usage | None:
        return self._kept.usage

    def finish(self, redactor: Redactor) -> tuple[NormalizedResponse, StreamSummary]:
        kept = self._kept
        collector = ResponseCollector(is_structured=kept.call.format is not None)
        for part in kept.content:
            if (streamed := _streamed(part)) is not None:
                collector.add(streamed)
        if kept.finish_reason is not None:
            collector.add(llm.Finish(kept.finish_reason, kept.usage or Usage()))
        return collector.finish(redactor)


def _own_bytes(prompt: Prompt, previous: Prompt | None) -> int:
    """Return the size of the messages that the previous prompt does not share."""
    if previous is None:
        return prompt.size_bytes
    shared = 0
    for message, earlier in zip(prompt.messages, previous.messages, strict=False):
        if message is not earlier:
            break
        shared += 1
    return sum_sizes(prompt.messages[shared:])


def _part_bytes(part: Part) -> int:
    match part:
        case parts.Text() | parts.Reasoning():
            return len(part.text)
        case parts.ToolCall():
            return len(bytes(part.args)) if isinstance(part.args, msgspec.Raw) else 0
        case parts.ToolResult():
            return len(bytes(part.result)) if isinstance(part.result, msgspec.Raw) else 0
        case parts.File():
            return len(part.data or "")
        case _:
            return 0


def _streamed(part: Part) -> StreamPart | None:
    match part:
        case parts.Text():
            return llm.TextDelta("", part.text)
        case parts.Reasoning():
            return llm.ReasoningDelta("", part.text)
        case parts.ToolCall():
            source = bytes(part.args).decode("utf-8", "replace") if isinstance(part.args, msgspec.Raw) else ""
            return llm.ToolCall(part.tool_call_id, part.tool_name, source, part.provider_executed)
        case _:
            return None
