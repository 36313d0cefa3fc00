"""The acts of a generation task: ask the model, run the tools, summarise, hand over to the client, end the turn.

Each is at most one commit, behind the task's fence. An attempt is counted before anything is asked or run, so that a
chat which kills its process comes to an end; what is shown live belongs to that attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.chat import decide
from rookery.chat.chats import Chat, LastError
from rookery.chat.decide import Compact, EnterRequiresAction, ExecuteTools, FinishTurn, TurnEnd
from rookery.chat.history import History
from rookery.chat.messages import NewMessage, Role, Visibility
from rookery.chat.parts import Part, Text
from rookery.chat.retrying import DEFAULT_POLICY, RetryPolicy, are_attempts_used
from rookery.clock import Clock
from rookery.llm import cost
from rookery.llm.errors import CallFailed
from rookery.llm.types import ErrorKind, Purpose, Usage
from rookery.log import get_logger
from rookery.loop import compaction
from rookery.loop.assistant import AssistantOutcome, NoStepStats, StepMeter, StepSetup, StepStats, generate_assistant
from rookery.loop.batch import BatchSetup, NoToolStats, PendingCall, ToolStats, execute_batch
from rookery.loop.compaction import CompactionSetup
from rookery.loop.config import LoopConfig
from rookery.loop.messages import assistant_rows, tool_rows
from rookery.loop.stragglers import Stragglers
from rookery.loop.tools import Publish
from rookery.store import machine as transitions
from rookery.store.machine import Tx
from rookery.store.usage import CallStatus, Entry, record_call
from rookery.worker import billing
from rookery.worker.effects import Effects
from rookery.worker.failures import Classified, StepFailed
from rookery.worker.parts import Episode, EpisodeExists, EpisodeKey, PartBuffer, PartBufferError
from rookery.worker.prepare import Asked, Prepared, Preparer
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import RetryTask, TaskExit, TaskHandle
from rookery.worker.tool_ledger import ToolLedger

log = get_logger("worker.acting")

ATTEMPTS_USED = LastError(
    kind=str(ErrorKind.GENERIC),
    message="This step was tried as often as a step may be, and never came to its end. Send a message to try again.",
    retryable=False,
)
_EMPTY = Classified(kind=ErrorKind.GENERIC, message="The model answered without saying anything.", retryable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActParts:
    """What all acts of a process share."""

    preparer: Preparer
    buffer: PartBuffer
    pool: asyncpg.Pool
    clock: Clock
    effects: Effects
    ledger: billing.Ledger
    stragglers: Stragglers
    stats: WorkerStats
    loop: LoopConfig = field(default_factory=LoopConfig)
    retry: RetryPolicy = DEFAULT_POLICY
    new_id: Callable[[], UUID] = uuid4
    step_stats: StepStats = field(default_factory=NoStepStats)
    tool_stats: ToolStats = field(default_factory=NoToolStats)


class Acts:
    """The acts on one loaded step. `attempt` is the number of the attempt that was begun last, 0 before the first."""

    def __init__(self, parts: ActParts, handle: TaskHandle, prepared: Prepared, history: History) -> None:
        self._parts = parts
        self._handle = handle
        self._prepared = prepared
        self._step = prepared.step
        self.history = history
        self.attempt = 0

    # Asking the model

    async def generate(self, notice: str | None) -> None:
        asked, handle = self._prepared.asked, self._handle
        await self._parts.preparer.check_spend(asked, self._step.chat.owner_id)
        async with self._attempt() as episode:
            meter = StepMeter()
            call = self._prepared.call(notice=notice)
            with _Billed(self, asked, meter, Purpose.TURN):
                outcome = await generate_assistant(asked.model, call, self._setup(asked, episode, meter))
            self._parts.stats.steps += 1
            if outcome.is_empty:
                await self._take_empty(asked, outcome)
                return
            rows = assistant_rows(
                outcome,
                tools=self._prepared.turn_tools.tools,
                model_config_id=asked.ready.config.id,
                at=self._parts.clock.now(),
                cost_micros=cost.cost_micros(outcome.usage, asked.prices),
            )

            async def commit(tx: Tx) -> None:
                committed = await transitions.commit_step(tx, rows)
                row = self._entry(asked, outcome.usage, outcome, status=CallStatus.OK)
                await record_call(tx.conn, msgspec.structs.replace(row, message_id=committed.inserted[0].id))

            await handle.update(commit, attempt=self.attempt)

    async def _take_empty(self, asked: Asked, outcome: AssistantOutcome) -> None:
        """Nothing was said: the end of the turn, unless the user waits for a first word."""
        self._parts.stats.empty_responses += 1
        self._parts.ledger.record(self._entry(asked, outcome.usage, outcome, status=CallStatus.OK))
        if not decide.is_empty_answer_final(self.history, self.attempt):
            raise StepFailed(msgspec.structs.replace(_EMPTY, provider=asked.provider_name))
        await self.finish(FinishTurn(TurnEnd.COMPLETE))

    def _setup(self, asked: Asked, episode: Episode, meter: StepMeter) -> StepSetup:
        parts = self._parts
        return StepSetup(
            provider_name=asked.provider_name,
            publish=_publisher(episode),
            clock=parts.clock,
            new_id=parts.new_id,
            config=parts.loop,
            tools=self._prepared.turn_tools.tools,
            context_limit=asked.ready.config.context_limit,
            allow_pause=self.history.pauses < parts.loop.max_pauses,
            meter=meter,
            on_stream_start=lambda at: self._invoked(episode),
            on_progress=self._handle.tool_progress,
            stats=parts.step_stats,
        )

    def _invoked(self, episode: Episode) -> None:
        try:
            self._parts.buffer.start_model_invocation(episode.key)
        except PartBufferError:
            return  # stopped meanwhile; whoever stopped it has read what there was

    # Running tools

    async def execute(self, decision: ExecuteTools) -> None:
        prepared, handle, parts = self._prepared, self._handle, self._parts
        made = self.history.call_parts(decision.calls)
        pending = [PendingCall(call.message_id, part) for call, part in zip(decision.calls, made, strict=True)]
        async with self._attempt() as episode:
            setup = BatchSetup(
                chat_id=self._step.chat.id,
                tools=prepared.turn_tools.tools,
                publish=_publisher(episode),
                clock=parts.clock,
                ledger=ToolLedger(parts.pool, handle.input.fence(attempt=self.attempt)),
                stragglers=parts.stragglers,
                config=parts.loop,
                context_limit=prepared.context_limit,
                cancellation=handle.cancellation,
                services=prepared.turn_tools.services,
                owner_id=self._step.chat.owner_id,
                turn_id=self._turn_id(),
                new_id=parts.new_id,
                on_progress=handle.tool_progress,
                stats=parts.tool_stats,
            )
            results = await handle.read(lambda: execute_batch(pending, setup))
            rows = tool_rows(results, model_config_id=prepared.asked.ready.config.id)

            async def commit(tx: Tx) -> None:
                await transitions.commit_step(tx, rows)

            await handle.update(commit, attempt=self.attempt)

    # Summarising

    async def compact(self, decision: Compact) -> None:
        """Its model is connected here: one that cannot be had must not fail turns that never need it."""
        prepared, parts, chat = self._prepared, self._parts, self._step.chat
        asked = await self._summariser()
        await parts.preparer.check_spend(asked, chat.owner_id)
        async with self._attempt() as episode:
            meter = StepMeter()
            setup = CompactionSetup(
                step=self._setup(asked, episode, meter),
                source=decision.source,
                assessment=prepared.assessment,
                turn_parts=self._turn_parts(),
                model_config_id=prepared.asked.ready.config.id,
                is_other_provider=asked.ready.provider.id != prepared.asked.ready.provider.id,
            )
            call = prepared.call(asked, purpose=Purpose.COMPACTION)
            try:
                with _Billed(self, asked, meter, Purpose.COMPACTION):
                    outcome = await compaction.summarise(asked.model, call, setup)
            except CallFailed as error:
                parts.stats.compactions["timeout" if error.error.kind is ErrorKind.TIMEOUT else "error"] += 1
                raise

            async def commit(tx: Tx) -> tuple[Chat, bool]:
                await transitions.commit_step(tx, outcome.rows, consume_compaction=True)
                row = billing.entry(
                    chat,
                    asked,
                    outcome.usage,
                    purpose=Purpose.COMPACTION,
                    status=CallStatus.OK,
                    runtime_ms=outcome.runtime_ms,
                )
                await record_call(tx.conn, row)
                finished = None if decision.resume else await transitions.finish_turn(tx)
                return tx.chat, finished is not None and finished.promoted is not None

            after, is_promoted = await self._handle.update(commit, attempt=self.attempt)
            parts.stats.compactions["success"] += 1
            if not decision.resume:
                self._tell_finished(after, TurnEnd.COMPLETE, is_promoted=is_promoted)

    async def _summariser(self) -> Asked:
        prepared, chat = self._prepared, self._step.chat
        if prepared.summary.model_config_id == prepared.asked.ready.config.id:
            return prepared.asked
        return await self._parts.preparer.ask_choice(
            prepared.summary, owner_id=chat.owner_id, effort=chat.last_reasoning_effort
        )

    # Ending

    async def hand_over(self, _: EnterRequiresAction) -> None:
        """Wait for the client, which executes the calls."""
        seconds = await self._parts.preparer.action_seconds()

        async def enter(tx: Tx) -> Chat:
            await transitions.enter_requires_action(tx, timeout_seconds=seconds)
            return tx.chat

        self._parts.effects.action_required(await self._handle.update(enter))

    async def finish(self, decision: FinishTurn) -> None:
        notice = None
        if decision.reason is TurnEnd.MAX_STEPS:
            notice = _notice(decide.step_limit_notice(self._prepared.max_steps))

        async def end(tx: Tx) -> tuple[Chat, bool]:
            if notice is not None:
                await transitions.commit_step(tx, [notice])
            finished = await transitions.finish_turn(tx)
            return tx.chat, finished.promoted is not None

        chat, is_promoted = await self._handle.update(end, attempt=self.attempt or None)
        self._tell_finished(chat, decision.reason, is_promoted=is_promoted)

    async def fail(self, error: LastError) -> None:
        await fail_turn(self._handle, self._parts, error)

    def _tell_finished(self, chat: Chat, reason: TurnEnd, *, is_promoted: bool) -> None:
        step = self._step
        self._parts.effects.turn_finished(chat, step.meta, step.history, reason=reason, is_promoted=is_promoted)

    # Attempts

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[Episode]:
        """Count an attempt and open its episode, which is closed however the act ends."""

        async def begin(tx: Tx) -> tuple[Chat, int]:
            if are_attempts_used(tx.chat.generation_attempt, self._parts.retry):
                await transitions.finish_error(tx, ATTEMPTS_USED)
                return tx.chat, 0
            return tx.chat, await transitions.record_generation_attempt(tx)

        chat, attempt = await self._handle.update(begin)
        if not attempt:
            self._parts.effects.turn_failed(chat, ATTEMPTS_USED)
            raise TaskExit("All attempts are used.")
        self.attempt = attempt
        key = EpisodeKey(chat.id, self._handle.input.history_version, attempt)
        try:
            episode = self._parts.buffer.create_episode(key)
        except EpisodeExists as error:
            # An interrupt closed it first; the fence of the next try finds that out.
            raise RetryTask(str(error)) from error
        try:
            yield episode
        finally:
            self._parts.buffer.close_episode(key)

    def _entry(self, asked: Asked, usage: Usage, outcome: AssistantOutcome, *, status: CallStatus) -> Entry:
        return billing.entry(
            self._step.chat,
            asked,
            usage,
            purpose=Purpose.TURN,
            status=status,
            runtime_ms=outcome.runtime_ms,
            request_id=outcome.request_id,
        )

    def bill(self, asked: Asked, usage: Usage, meter: StepMeter, *, purpose: Purpose, status: CallStatus) -> None:
        """A call that came to nothing still cost something."""
        row = billing.entry(
            self._step.chat,
            asked,
            usage,
            purpose=purpose,
            status=status,
            runtime_ms=meter.runtime_ms(self._parts.clock.monotonic()),
            request_id=meter.request_id,
        )
        self._parts.ledger.record(row)

    def _turn_id(self) -> int | None:
        begun_by = self.history.begun_by
        return None if begun_by is None else begun_by.id

    def _turn_parts(self) -> tuple[Part, ...]:
        """What the user said to begin this turn."""
        begun_by = self.history.begun_by
        return () if begun_by is None else begun_by.parts()


class _Billed:
    """Bills a call that fails or is stopped inside it."""

    def __init__(self, acts: Acts, asked: Asked, meter: StepMeter, purpose: Purpose) -> None:
        self._acts = acts
        self._asked = asked
        self._meter = meter
        self._purpose = purpose

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or self._meter.invoked_at is None:
            return
        is_stopped = isinstance(error, asyncio.CancelledError)
        usage = error.usage if isinstance(error, CallFailed) else self._meter.usage
        status = CallStatus.INTERRUPTED if is_stopped else CallStatus.FAILED
        self._acts.bill(self._asked, usage, self._meter, purpose=self._purpose, status=status)


async def fail_turn(handle: TaskHandle, parts: ActParts, error: LastError, *, attempt: int | None = None) -> None:
    async def fail(tx: Tx) -> Chat:
        await transitions.finish_error(tx, error)
        return tx.chat

    parts.effects.turn_failed(await handle.update(fail, attempt=attempt), error)


def _publisher(episode: Episode) -> Publish:
    """Shows parts live, as long as anybody may see them. A preview never fails a step."""

    def publish(role: Role, part: Part) -> None:
        try:
            add(role, part)
        except PartBufferError:
            return

    add = episode.add_part
    return publish


def _notice(text: str) -> NewMessage:
    """A word from the server for people; the model does not see it."""
    return NewMessage(role=Role.SYSTEM, visibility=Visibility.USER, content=(Text(text),))
