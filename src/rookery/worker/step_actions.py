"""The actions of a generation task: call the model, run tools, summarize, hand over to the client, end the turn.

Each action is at most one commit, behind the task's fence. An attempt is counted before a model or tool is called, so
that a chat that kills its process comes to an end. Live parts belong to that attempt.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.domain.chat import decision as chat_decision
from rookery.domain.chat import overflow, summary_prompt
from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.compaction import Source
from rookery.domain.chat.decision import Compact, EnterRequiresAction, ExecuteTools, FinishTurn, TurnEnd
from rookery.domain.chat.errors import FileCapExceeded, FileUnavailable
from rookery.domain.chat.history import History
from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.parts import CONTENT_VERSION, Part, Text
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy, are_attempts_used
from rookery.domain.chat.transitions import Transition
from rookery.live.part_buffer import Episode, EpisodeExists, EpisodeKey, PartBuffer, PartBufferError
from rookery.llm.errors import CallFailed, LlmError
from rookery.llm.types import Call, ErrorKind, GeneratedFile, Purpose, Usage
from rookery.loop import compaction
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import AssistantOutcome, NoStepStats, StepMeter, StepSetup, StepStats, generate_assistant
from rookery.loop.step_rows import assistant_rows, interrupted_figures, notice_row, tool_rows, without_files
from rookery.loop.tool import Publish
from rookery.loop.tool_batch import BatchSetup, NoToolStats, PendingCall, ToolStats, execute_batch
from rookery.loop.unfinished_tools import Stragglers
from rookery.models import cost
from rookery.runtime.clock import Clock
from rookery.store import machine as transitions
from rookery.store.chats import files
from rookery.store.machine import Question, StepCommitted, Tx
from rookery.store.models.usage import CallStatus, Entry, record_call
from rookery.telemetry.log import get_logger
from rookery.worker import billing, commit_shield, error_classification
from rookery.worker.billing import Metered, Meters
from rookery.worker.compaction import CompactionAct
from rookery.worker.effects import Effects
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.learned_windows import LearnedWindows
from rookery.worker.prepare import Asked, Prepared, Preparer
from rookery.worker.stats import FAILED, WorkerStats
from rookery.worker.tasks import RetryTask, TaskExit, TaskHandle
from rookery.worker.tool_ledger import ToolLedger

log = get_logger("worker.step_actions")

AfterCommit = Callable[[Tx, StepCommitted], Awaitable[None]]

ATTEMPTS_USED = LastError(
    kind=str(ErrorKind.GENERIC),
    message="The step did not finish within the allowed number of attempts. Send a message to try again.",
    retryable=False,
)
_EMPTY = Classified(kind=ErrorKind.GENERIC, message="The model returned an empty answer.", retryable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActParts:
    """Shared dependencies of all step actions of a process."""

    preparer: Preparer
    buffer: PartBuffer
    pool: asyncpg.Pool
    clock: Clock
    effects: Effects
    ledger: billing.Ledger
    meters: Meters
    stragglers: Stragglers
    stats: WorkerStats
    loop: LoopConfig = field(default_factory=LoopConfig)
    retry: RetryPolicy = DEFAULT_POLICY
    new_id: Callable[[], UUID] = uuid4
    step_stats: StepStats = field(default_factory=NoStepStats)
    tool_stats: ToolStats = field(default_factory=NoToolStats)


class StepActions:
    """The actions on one loaded step. `attempt` is the number of the latest attempt, 0 before the first."""

    def __init__(self, parts: ActParts, handle: TaskHandle, prepared: Prepared, history: History) -> None:
        self.parts = parts
        self.handle = handle
        self.prepared = prepared
        self._step = prepared.step
        self.history = history
        self.attempt = 0
        self._sent: Call | None = None
        self.learned = LearnedWindows(
            handle, preparer=parts.preparer, effects=parts.effects, pool=parts.pool, clock=parts.clock
        )

    @property
    def has_room(self) -> bool:
        """Whether the turn can go on without a summary."""
        return self.prepared.assessment.has_room and self._step.meta.refused_tokens is None

    # Model calls

    async def generate(self, notice: str | None, *, told: str | None = None) -> None:
        """Call the model and commit its answer.

        `notice` goes to the model, in this request only; `told` goes to the user and is committed with the answer.
        """
        asked = self.prepared.asked
        await self.parts.preparer.check_spend(asked, self._step.chat.owner_id)
        call = await self.prepared.call(notice=notice)
        self._sent = call
        async with self.attempting() as episode:
            meter = StepMeter()
            with _Metered(self, asked, meter, Purpose.TURN, episode.key):
                outcome = await generate_assistant(asked.model, call, self.setup(asked, episode, meter))
            if outcome.is_empty:
                await self._take_empty(asked, outcome)
                return
            rows = assistant_rows(
                outcome,
                tools=self.prepared.step_tools.tools,
                model_config_id=asked.ready.config.id,
                at=self.parts.clock.now(),
                cost_micros=cost.cost_micros(outcome.usage, asked.prices),
            )
            if (stand_in := self.prepared.stand_in) is not None and stand_in.notice is not None:
                rows = (notice_row(Text(stand_in.notice)), *rows)
            if told is not None and not self._was_told(told):
                rows = (notice_row(Text(told)), *rows)
            rows = (*self.prepared.step_tools.opening(), *rows)
            await commit_shield.to_the_end(self._commit_answer(asked, rows, self._entry(asked, outcome), outcome.usage))

    async def take_refusal(self, failure: Classified) -> bool:
        """Remember that the request was too long. Return False when none was sent, so that nothing was learned."""
        if (sent := self._sent) is None:
            return False
        tokens = await asyncio.to_thread(
            overflow.estimate_tokens, sent.prompt.messages, tools_bytes=compaction.tools_bytes(sent.tools)
        )
        await self.remember_refusal(self.prepared.asked, failure, sent, tokens)
        return True

    async def remember_refusal(self, asked: Asked, failure: Classified, call: Call, tokens: int) -> int | None:
        """Record a refused request of about `tokens` tokens. Return the window that the model is believed to have."""
        return await self.learned.remember(
            asked,
            failure,
            tokens,
            attempt=self.attempt,
            is_of_history=asked.ready.config.id == self.prepared.asked.ready.config.id,
            has_media=summary_prompt.has_media(call.prompt.messages),
            read_tokens=max(
                (
                    row.figures.context_tokens or 0
                    for row in self._step.history.prompt
                    if row.message.model_config_id == asked.ready.config.id
                ),
                default=0,
            ),
        )

    def _was_told(self, text: str) -> bool:
        """Return whether the user has already been shown this notice in the running turn."""
        start = self.turn_id() or 0
        return any(
            row.message.role is Role.SYSTEM and row.message.id > start and Text(text) in row.message.parts()
            for row in reversed(self._step.history.rows)
            if row.message.visibility is Visibility.USER and row.message.content_version == CONTENT_VERSION
        )

    async def _commit_answer(self, asked: Asked, rows: Sequence[NewMessage], bill: Entry, usage: Usage) -> None:
        async def record(tx: Tx, committed: StepCommitted) -> None:
            answer = next(message for message in committed.inserted if message.role is Role.ASSISTANT)
            await record_call(tx.conn, msgspec.structs.replace(bill, message_id=answer.id))

        try:
            await self._commit(rows, record)
        except Exception:
            # The chat moved on, or the database is unavailable: the answer is lost, but must be paid for.
            self.parts.ledger.record(msgspec.structs.replace(bill, status=CallStatus.INTERRUPTED))
            raise
        await self.learned.check_guess(asked, read_tokens=usage.context_tokens or 0)

    async def _take_empty(self, asked: Asked, outcome: AssistantOutcome) -> None:
        """Handle an empty answer: it ends the turn, unless the user still waits for the first text."""
        self.parts.ledger.record(self._entry(asked, outcome))
        if not chat_decision.is_empty_answer_final(self.history, self.attempt):
            raise StepFailed(msgspec.structs.replace(_EMPTY, provider=asked.provider_name))
        await self.finish(FinishTurn(TurnEnd.COMPLETE))

    def setup(self, asked: Asked, episode: Episode, meter: StepMeter) -> StepSetup:
        parts = self.parts
        return StepSetup(
            provider_name=asked.provider_name,
            publish=_publisher(episode),
            clock=parts.clock,
            new_id=parts.new_id,
            config=parts.loop,
            tools=self.prepared.step_tools.tools,
            context_limit=asked.windows.effective,
            allow_pause=self.history.pauses < parts.loop.max_pauses,
            meter=meter,
            on_stream_start=lambda at: self._invoked(episode),
            on_progress=self.handle.tool_progress,
            store_file=self._store_file,
            stats=parts.step_stats,
        )

    async def _store_file(self, file: GeneratedFile) -> UUID:
        """Store a file. The commit links it to the chat; the purge removes files of steps that were never committed."""
        name = f"generated{mimetypes.guess_extension(file.media_type) or ''}"
        async with self.parts.pool.acquire() as conn:
            stored = await files.create_file(
                conn,
                self._step.chat.owner_id,
                name=name,
                mime_type=file.media_type,
                data=file.data,
                origin=files.Origin.TOOL,
            )
        return stored.id

    def _invoked(self, episode: Episode) -> None:
        try:
            self.parts.buffer.start_model_invocation(episode.key)
        except PartBufferError:
            return  # closed meanwhile by the task that interrupts this one

    # Tools

    async def execute(self, decision: ExecuteTools) -> None:
        prepared, handle, parts = self.prepared, self.handle, self.parts
        made = self.history.call_parts(decision.calls)
        pending = [PendingCall(call.message_id, part) for call, part in zip(decision.calls, made, strict=True)]
        async with self.attempting() as episode:
            setup = BatchSetup(
                chat_id=self._step.chat.id,
                tools=prepared.step_tools.tools,
                publish=_publisher(episode),
                clock=parts.clock,
                ledger=ToolLedger(parts.pool, handle.input.fence(attempt=self.attempt)),
                stragglers=parts.stragglers,
                config=parts.loop,
                context_limit=prepared.context_limit,
                cancellation=handle.cancellation,
                services=prepared.step_tools.services,
                owner_id=self._step.chat.owner_id,
                turn_id=self.turn_id(),
                new_id=parts.new_id,
                on_progress=handle.tool_progress,
                refused=decision.refused,
                stats=parts.tool_stats,
                keep_result=prepared.step_tools.keep_result,
            )
            results = await handle.run_tools(lambda: execute_batch(pending, setup))
            await self._commit(tool_rows(results, model_config_id=prepared.asked.ready.config.id))

    async def _commit(self, rows: Sequence[NewMessage], then: AfterCommit | None = None) -> None:
        """Commit a step; `then` runs in the same transaction. Files that the chat cannot take are left out."""
        try:
            await self._try_commit(rows, then)
        except (FileCapExceeded, FileUnavailable) as error:
            log.warning("files_left_out", chat_id=self._step.chat.id, error=str(error))
            await self._try_commit([without_files(row, str(error)) for row in rows], then)

    async def _try_commit(self, rows: Sequence[NewMessage], then: AfterCommit | None) -> None:
        async def commit(tx: Tx) -> None:
            committed = await transitions.commit_step(tx, rows, keep_model=self.prepared.stand_in is not None)
            if then is not None:
                await then(tx, committed)

        await self.handle.update(commit, transition=Transition.COMMIT_STEP, attempt=self.attempt)

    async def compact(self, decision: Compact) -> None:
        await CompactionAct(self).compact(decision)

    # End of a step

    async def hand_over(self, _: EnterRequiresAction) -> None:
        """Wait for the client, which executes the calls."""
        seconds = await self.handle.read(self.parts.preparer.action_seconds)
        await self._park(
            lambda tx: transitions.enter_requires_action(tx, timeout_seconds=seconds), Transition.ENTER_REQUIRES_ACTION
        )

    async def ask(self, questions: Sequence[Question], *, timeout_seconds: float | None) -> None:
        """Wait for the user to approve or deny the calls."""
        await self._park(
            lambda tx: transitions.ask_approvals(tx, questions, timeout_seconds=timeout_seconds),
            Transition.ASK_APPROVALS,
            asked=len(questions),
        )

    async def _park(self, park: Callable[[Tx], Awaitable[object]], transition: Transition, *, asked: int = 0) -> None:
        async def enter(tx: Tx) -> Chat:
            await park(tx)
            return tx.chat

        async def enter_and_tell() -> None:
            self.parts.effects.action_required(await self.handle.update(enter, transition=transition))
            self.parts.stats.approvals_asked += asked  # counted only once committed

        await commit_shield.to_the_end(enter_and_tell())

    async def finish(self, decision: FinishTurn) -> None:
        notice = None
        if decision.reason is TurnEnd.MAX_STEPS:
            notice = notice_row(Text(chat_decision.step_limit_notice(self.prepared.max_steps)))

        async def end(tx: Tx) -> tuple[Chat, bool] | None:
            if notice is not None and (await transitions.commit_step(tx, [notice])).promoted:
                # The user has sent a message meanwhile, which begins a new turn: the chat is not at rest.
                return None
            finished = await transitions.finish_turn(tx)
            return tx.chat, finished.promoted is not None

        async def end_and_tell() -> None:
            ended = await self.handle.update(end, transition=Transition.FINISH_TURN, attempt=self.attempt or None)
            if ended is not None:
                self.tell_finished(ended[0], decision.reason, is_promoted=ended[1])

        await commit_shield.to_the_end(end_and_tell())

    async def fail(self, error: LastError) -> None:
        async def fail(tx: Tx) -> Chat:
            await transitions.finish_error(tx, error)
            return tx.chat

        async def fail_and_tell() -> None:
            failed = await self.handle.update(fail, transition=Transition.FINISH_ERROR)
            self.parts.effects.turn_failed(failed, error)
            self._turn_ended(FAILED)

        await commit_shield.to_the_end(fail_and_tell())

    async def fail_compaction(self, error: LastError) -> None:
        """End the turn with an error: a summary was made, and the chat is still too long."""
        own, summary = self.prepared.asked, self.prepared.summary
        is_own = summary.model_config_id == own.ready.config.id
        self.parts.stats.calls.compacted(own.model if is_own else None, Source.AUTOMATIC, result="error")
        await self.fail(error)

    def tell_finished(self, chat: Chat, reason: TurnEnd, *, is_promoted: bool) -> None:
        step = self._step
        self._turn_ended(reason)
        self.parts.effects.turn_finished(chat, step.meta, step.history, reason=reason, is_promoted=is_promoted)
        if (ended := self.prepared.step_tools.on_turn_end) is not None:
            self.parts.effects.tools_ended(ended)

    def _turn_ended(self, outcome: str) -> None:
        self.parts.stats.turn_ended(outcome, self._step, now=self.parts.clock.now())

    def retried(self, kind: ErrorKind) -> None:
        """Count a retry, for the metrics."""
        self.parts.stats.calls.retried(self.prepared.asked.model, kind)

    # Attempts

    @asynccontextmanager
    async def attempting(self) -> AsyncIterator[Episode]:
        """Count an attempt and open its episode; the episode is closed however the action ends."""

        async def begin(tx: Tx) -> tuple[Chat, int]:
            if are_attempts_used(tx.chat.generation_attempt, self.parts.retry):
                await transitions.finish_error(tx, ATTEMPTS_USED)
                return tx.chat, 0
            return tx.chat, await transitions.record_generation_attempt(tx)

        async def begin_and_tell() -> int:
            # An attempt need not be durable: the commit of its step makes it so.
            if (counted := await self.handle.count_attempt(self.parts.retry.max_attempts)) is not None:
                return counted
            chat, attempt = await self.handle.update(
                begin, transition=Transition.RECORD_GENERATION_ATTEMPT, lazily=True
            )
            if not attempt:
                self.parts.effects.turn_failed(chat, ATTEMPTS_USED)
                self._turn_ended(FAILED)
            return attempt

        attempt = await commit_shield.to_the_end(begin_and_tell())
        if not attempt:
            raise TaskExit("All attempts are used.")
        self.attempt = attempt
        key = EpisodeKey(self._step.chat.id, self.handle.input.history_version, attempt)
        try:
            episode = self.parts.buffer.create_episode(key)
        except EpisodeExists as error:
            # An interrupt closed the episode first; the fence of the next try finds that out.
            raise RetryTask(str(error)) from error
        try:
            yield episode
        finally:
            self.parts.buffer.close_episode(key)

    def _entry(self, asked: Asked, outcome: AssistantOutcome) -> Entry:
        row = billing.entry(
            self._step.chat,
            asked,
            outcome.usage,
            purpose=Purpose.TURN,
            status=CallStatus.OK,
            runtime_ms=outcome.runtime_ms,
            request_id=outcome.request_id,
            at=self.parts.clock.now(),
        )
        self.parts.stats.calls.call_ended(asked.model, row)
        return row

    def _bill(self, asked: Asked, usage: Usage, meter: StepMeter, *, purpose: Purpose, status: CallStatus) -> None:
        """Bill a call that failed or was stopped: it still cost something."""
        row = billing.entry(
            self._step.chat,
            asked,
            usage,
            purpose=purpose,
            status=status,
            runtime_ms=meter.runtime_ms(self.parts.clock.monotonic()),
            request_id=meter.request_id,
        )
        self.parts.stats.calls.call_ended(asked.model, row)
        self.parts.ledger.record(row)

    def metered(self, asked: Asked, meter: StepMeter, purpose: Purpose) -> _Metered:
        """Return a meter for a call of this step that is not shown as an answer."""
        return _Metered(self, asked, meter, purpose)

    def turn_id(self) -> int | None:
        begun_by = self.history.begun_by
        return None if begun_by is None else begun_by.id


class _Metered:
    """Meter of a call: registers its usage under its episode while it runs, and bills it when it fails or is stopped.

    Unexpected exceptions of a model client are classified and end the step.
    """

    def __init__(
        self, acts: StepActions, asked: Asked, meter: StepMeter, purpose: Purpose, key: EpisodeKey | None = None
    ) -> None:
        self._acts = acts
        self._asked = asked
        self._meter = meter
        self._purpose = purpose
        self._key = key

    def __enter__(self) -> None:
        if self._key is not None:
            self._acts.parts.meters.begin(self._key, self._read)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        is_stopped = isinstance(error, asyncio.CancelledError)
        if self._key is not None:
            self._acts.parts.meters.end(self._key, is_stopped=is_stopped)
        if error is None:
            return
        if self._meter.invoked_at is not None:
            usage = error.usage if isinstance(error, CallFailed) else self._meter.usage
            status = CallStatus.INTERRUPTED if is_stopped else CallStatus.FAILED
            self._acts._bill(self._asked, usage, self._meter, purpose=self._purpose, status=status)
        if isinstance(error, Exception) and not isinstance(error, LlmError):
            log.exception("model_raised", error)
            raise StepFailed(error_classification.classify(error, self._asked.provider_name)) from error

    def _read(self) -> Metered:
        figures = interrupted_figures(
            self._meter,
            monotonic=self._acts.parts.clock.monotonic(),
            context_limit=self._asked.windows.effective,
            cost_micros=cost.cost_micros(self._meter.usage, self._asked.prices),
        )
        return Metered(self._asked.ready.config.id, figures)


def _publisher(episode: Episode) -> Publish:
    """Return a function that shows parts live while the episode is open. A preview never fails a step."""

    def publish(role: Role, part: Part) -> None:
        try:
            add(role, part)
        except PartBufferError:
            return

    add = episode.add_part
    return publish
