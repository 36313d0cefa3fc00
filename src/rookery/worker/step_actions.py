"""The actions of a generation task: call the model, run tools, summarize, wait for client or user, end the turn.

Each action is at most one commit behind the task's fence. An attempt is counted before a model or tool is called, so
that a chat that crashes its process on every attempt ends with an error. Live parts belong to the attempt.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.debug.call_scope import CallFacts, CallScope
from rookery.debug.recorder import ModelFacts
from rookery.debug.turn_recording import TurnFacts
from rookery.domain.chat import agent_reports, context_overflow, parts, repetition_brake, summary_prompt, titles
from rookery.domain.chat import next_action as chat_decision
from rookery.domain.chat.chat import Chat, Fence, LastError
from rookery.domain.chat.compaction import Source
from rookery.domain.chat.errors import FileCapExceeded, FileUnavailable
from rookery.domain.chat.history import History
from rookery.domain.chat.messages import ChatId, Message, MessageId, NewMessage, Role, Visibility
from rookery.domain.chat.next_action import Compact, EnterRequiresAction, ExecuteTools, FinishTurn, TurnEnd
from rookery.domain.chat.parts import CONTENT_VERSION, ContentError, Part, Text
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy, are_attempts_used
from rookery.domain.chat.transitions import Transition
from rookery.live.part_buffer import Episode, EpisodeExists, EpisodeKey, PartBuffer, PartBufferError
from rookery.llm.errors import CallFailed, LlmError
from rookery.llm.types import Call, ErrorKind, FinishReason, GeneratedFile, Purpose, Usage
from rookery.loop import compaction
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import (
    AssistantOutcome,
    NoStepStats,
    SilenceLimits,
    StepMeter,
    StepSetup,
    StepStats,
    generate_assistant,
)
from rookery.loop.step_rows import assistant_rows, failed_row, interrupted_figures, notice_row, tool_rows, without_files
from rookery.loop.tool import EarlierRun, LedgerRun, LedgerState, Publish
from rookery.loop.tool_batch import BatchSetup, NoToolStats, PendingCall, ToolStats, UnfinishedTools, execute_batch
from rookery.models import cost
from rookery.runtime.clock import Clock
from rookery.store import machine as transitions
from rookery.store.chats import files, subagents, tool_runs
from rookery.store.chats.step_reads import LoadedHistory
from rookery.store.chats.tool_runs import RunStatus as LedgerStatus
from rookery.store.debug.record_rows import RunKind, RunStatus
from rookery.store.machine import Question, StepCommitted, Tx
from rookery.store.models.usage_ledger import CallStatus, Entry, record_call
from rookery.telemetry.log import get_logger
from rookery.worker import billing, commit_shield, error_classification
from rookery.worker.billing import Metered, Meters
from rookery.worker.compaction import CompactionAction
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.learned_windows import LearnedWindows
from rookery.worker.stats import FAILED, WorkerStats
from rookery.worker.step_preparation import ConnectedModel, Prepared, Preparer
from rookery.worker.tasks import RetryTask, TaskExit, TaskHandle
from rookery.worker.turn_end_effects import Effects
from rookery.worker.turn_traces import REQUIRES_ACTION, TurnTraces

log = get_logger("worker.step_actions")

AfterCommit = Callable[[Tx, StepCommitted], Awaitable[None]]

ATTEMPTS_USED = LastError(
    kind=str(ErrorKind.GENERIC),
    message="The step did not finish within the allowed number of attempts. Send a message to try again.",
    retryable=False,
)
_EMPTY = Classified(kind=ErrorKind.GENERIC, message="The model returned an empty answer.", retryable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepServices:
    """Shared dependencies of all step actions of a process."""

    preparer: Preparer
    buffer: PartBuffer
    pool: asyncpg.Pool
    clock: Clock
    effects: Effects
    ledger: billing.Ledger
    meters: Meters
    unfinished_tools: UnfinishedTools
    stats: WorkerStats
    traces: TurnTraces
    loop: LoopConfig = field(default_factory=LoopConfig)
    retry: RetryPolicy = DEFAULT_POLICY
    new_id: Callable[[], UUID] = uuid4
    step_stats: StepStats = field(default_factory=NoStepStats)
    tool_stats: ToolStats = field(default_factory=NoToolStats)


class StepActions:
    """The actions on one prepared step. `attempt` is the number of the latest attempt, 0 before the first."""

    def __init__(self, services: StepServices, handle: TaskHandle, prepared: Prepared, history: History) -> None:
        self.services = services
        self.handle = handle
        self.prepared = prepared
        self._step = prepared.step
        self.history = history
        self.attempt = 0
        self._sent: Call | None = None
        self.learned = LearnedWindows(
            handle, preparer=services.preparer, effects=services.effects, pool=services.pool, clock=services.clock
        )

    @property
    def has_room(self) -> bool:
        """Whether the turn can continue without a summary."""
        return self.prepared.assessment.has_room and self._step.meta.refused_tokens is None

    # Model calls

    async def generate(self, notice: str | None, *, user_notice: str | None = None) -> None:
        """Call the model and commit its answer.

        `notice` is sent to the model in this request only. `user_notice` is shown to the user and committed with the
        answer.
        """
        connected = self.prepared.connected
        await self.services.preparer.check_spend(connected, self._step.chat.owner_id)
        await self.services.preparer.check_budget(self._step)
        call = await self.prepared.call(notice=notice)
        self._sent = call
        await self._ensure_recorded(connected)
        async with self.attempting() as episode:
            meter = StepMeter()
            recorded = self._recorded(connected, call)
            with _Metered(self, connected, meter, Purpose.TURN, episode.key), recorded as model:
                outcome = await generate_assistant(model, call, self.setup(connected, episode, meter))
                recorded.answered(outcome.content, outcome.finish_reason, outcome.usage)
            if outcome.is_empty:
                await self._take_empty(connected, outcome)
                return
            rows = assistant_rows(
                outcome,
                tools=self.prepared.step_tools.tools,
                model_config_id=connected.ready.config.id,
                at=self.services.clock.now(),
                cost_micros=cost.cost_micros(outcome.usage, connected.prices),
                left_open=await self._repeated(outcome),
            )
            if (fallback := self.prepared.fallback) is not None and fallback.notice is not None:
                rows = (notice_row(Text(fallback.notice)), *rows)
            if user_notice is not None and not self._was_shown(user_notice):
                rows = (notice_row(Text(user_notice)), *rows)
            rows = (*self._notices(), *rows)
            rows = (*self.prepared.step_tools.opening(), *rows)
            await commit_shield.run_to_end(
                self._commit_answer(connected, rows, self._entry(connected, outcome), outcome)
            )

    async def _repeated(self, outcome: AssistantOutcome) -> Collection[str]:
        """Return the calls that the brake may hold. A repeated call with invalid arguments is included, so that it can
        be held.
        """
        limits = (await self.services.preparer.chat_settings()).brake
        return repetition_brake.find_held(
            repetition_brake.read_recent(self.history.work, limits), outcome.local_calls, limits
        )

    async def take_refusal(self, failure: Classified) -> bool:
        """Record that the request was refused as too long. Return False if no request was sent."""
        if (sent := self._sent) is None:
            return False
        tokens = await asyncio.to_thread(
            context_overflow.estimate_tokens, sent.prompt.messages, tools_bytes=compaction.tools_bytes(sent.tools)
        )
        await self.remember_refusal(self.prepared.connected, failure, sent, tokens)
        return True

    async def remember_refusal(
        self, connected: ConnectedModel, failure: Classified, call: Call, tokens: int
    ) -> int | None:
        """Record a refused request of about `tokens` tokens. Return the estimated context window of the model."""
        return await self.learned.remember(
            connected,
            failure,
            tokens,
            attempt=self.attempt,
            is_of_history=connected.ready.config.id == self.prepared.connected.ready.config.id,
            has_media=summary_prompt.has_media(call.prompt.messages),
            read_tokens=max(
                (
                    row.figures.context_tokens or 0
                    for row in self._step.history.prompt
                    if row.message.model_config_id == connected.ready.config.id
                ),
                default=0,
            ),
        )

    def _notices(self) -> tuple[NewMessage, ...]:
        """Return the notices about the tools of the step that the user has not seen in this turn."""
        return tuple(notice_row(Text(text)) for text in self.prepared.step_tools.notices if not self._was_shown(text))

    def _was_shown(self, text: str) -> bool:
        """Return whether this notice was already shown to the user in the running turn."""
        start = self.turn_id() or 0
        return any(
            row.message.role is Role.SYSTEM and row.message.id > start and Text(text) in row.message.parts()
            for row in reversed(self._step.history.rows)
            if row.message.visibility is Visibility.USER and row.message.content_version == CONTENT_VERSION
        )

    async def _commit_answer(
        self, connected: ConnectedModel, rows: Sequence[NewMessage], bill: Entry, outcome: AssistantOutcome
    ) -> None:
        async def record(tx: Tx, committed: StepCommitted) -> None:
            await record_call(tx.conn, msgspec.structs.replace(bill, message_id=_answer(committed).id))

        try:
            if not (self._may_end_turn(rows, outcome) and await self._end_turn(rows[0], bill)):
                committed = await self._commit(rows, record)
                self.handle.debug.committed(_answer(committed).id)
        except Exception as error:
            # Another writer changed the chat, or the database is unavailable. The lost answer is billed.
            if not (isinstance(error, TaskExit) and error.is_stored):
                self.services.ledger.record(msgspec.structs.replace(bill, status=CallStatus.INTERRUPTED))
            raise
        await self.learned.check_guess(connected, read_tokens=outcome.usage.context_tokens or 0)

    def _may_end_turn(self, rows: Sequence[NewMessage], outcome: AssistantOutcome) -> bool:
        """Return whether the turn ends with this answer, so that one statement can commit both.

        The next decision would be `FinishTurn`: no call is open, and the provider did not pause. Whether a message or a
        summary waits is checked by the statement.
        """
        return (
            len(rows) == 1
            and self.prepared.fallback is None
            and not outcome.local_calls
            and outcome.finish_reason is not FinishReason.PAUSE
            and not parts.file_ids(rows[0].content)
        )

    async def _end_turn(self, answer: NewMessage, bill: Entry) -> bool:
        """Commit the answer and the end of its turn. Return False if nothing was changed."""
        step, effects = self._step, self.services.effects
        label = effects.find_plain_label(step.chat, step.meta)
        is_known = label == step.meta.last_turn_summary
        ended = await self.handle.end_turn(answer, bill, attempt=self.attempt, label=None if is_known else label)
        if ended is None:
            return False
        self.handle.debug.committed(ended.answer.id)
        history = step.history.with_answer(ended.answer, answer.figures)
        self.tell_finished(ended.chat, TurnEnd.COMPLETE, history=history, label=label)
        return True

    async def _take_empty(self, connected: ConnectedModel, outcome: AssistantOutcome) -> None:
        """Handle an empty answer: end the turn, or raise `StepFailed` if the turn has no text yet.

        The user is told if the message stays without an answer.
        """
        self.services.ledger.record(self._entry(connected, outcome))
        if not chat_decision.is_empty_answer_final(self.history, self.attempt):
            raise StepFailed(msgspec.structs.replace(_EMPTY, provider=connected.provider_name))
        is_unanswered = self.history.ends_in_user_message and not self.history.begins_with_notice
        await self.finish(
            FinishTurn(TurnEnd.COMPLETE), user_notice=chat_decision.EMPTY_NOTICE if is_unanswered else None
        )

    def setup(self, connected: ConnectedModel, episode: Episode, meter: StepMeter) -> StepSetup:
        services = self.services
        # The watchdog waits for a model whose own limits are longer than those of the server.
        own = connected.ready.config.options
        limits = SilenceLimits.of(own, services.loop)
        self.handle.model_patience_seconds = max(own.first_byte_seconds or 0, own.silence_seconds or 0)
        return StepSetup(
            provider_name=connected.provider_name,
            publish=_publisher(episode),
            clock=services.clock,
            new_id=services.new_id,
            config=services.loop,
            tools=self.prepared.step_tools.tools,
            context_limit=connected.windows.effective,
            allow_pause=self.history.pauses < services.loop.max_pauses,
            meter=meter,
            on_stream_start=lambda at: self._invoked(episode),
            on_progress=self.handle.tool_progress,
            store_file=self._store_file,
            stats=services.step_stats,
            attempt=self.attempt,
            limits=limits,
            nudge=self.handle.nudge,
        )

    async def _store_file(self, file: GeneratedFile) -> UUID:
        """Store a file that the model generated. The commit links it to the chat; a purge job deletes files without a
        link.
        """
        name = f"generated{mimetypes.guess_extension(file.media_type) or ''}"
        async with self.services.pool.acquire() as conn:
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
            self.services.buffer.start_model_invocation(episode.key)
        except PartBufferError:
            return  # the interrupt task has closed the episode

    # Tools

    async def execute(self, decision: ExecuteTools) -> bool:
        """Run the calls and commit their results. Return False if no call may run, because all wait for the user."""
        prepared, handle, services = self.prepared, self.handle, self.services
        made = self.history.call_parts(decision.calls)
        pending = [PendingCall(call.message_id, part) for call, part in zip(decision.calls, made, strict=True)]
        async with self.attempting() as episode:
            setup = BatchSetup(
                chat_id=self._step.chat.id,
                tools=prepared.step_tools.tools,
                publish=_tool_publisher(episode, handle),
                clock=services.clock,
                ledger=ToolLedger(services.pool, handle.input.fence(attempt=self.attempt)),
                unfinished_tools=services.unfinished_tools,
                config=services.loop,
                context_limit=prepared.context_limit,
                cancellation=handle.cancellation,
                services=prepared.step_tools.services,
                owner_id=self._step.chat.owner_id,
                turn_id=self.turn_id(),
                new_id=services.new_id,
                on_progress=handle.tool_progress,
                refused=decision.refused,
                stats=services.tool_stats,
                keep_result=prepared.step_tools.keep_result,
                nudge=handle.nudge,
            )
            with handle.debug.current():
                results = await handle.run_tools(lambda: execute_batch(pending, setup))
            if not results:
                return False
            await self._commit(tool_rows(results, model_config_id=prepared.connected.ready.config.id))
            return True

    async def _commit(self, rows: Sequence[NewMessage], then: AfterCommit | None = None) -> StepCommitted:
        """Commit a step; `then` runs in the same transaction. Files that the chat cannot link are left out."""
        try:
            return await self._try_commit(rows, then)
        except (FileCapExceeded, FileUnavailable) as error:
            log.warning("files_left_out", chat_id=self._step.chat.id, error=str(error))
            return await self._try_commit([without_files(row, str(error)) for row in rows], then)

    async def _try_commit(self, rows: Sequence[NewMessage], then: AfterCommit | None) -> StepCommitted:
        ends = agent_reports.told_ends(rows)

        async def commit(tx: Tx) -> StepCommitted:
            committed = await transitions.commit_step(tx, rows, keep_model=self.prepared.fallback is not None)
            await subagents.tell_by_wait(tx.conn, tx.chat.id, ends)
            if then is not None:
                await then(tx, committed)
            return committed

        return await self.handle.update(commit, transition=Transition.COMMIT_STEP, attempt=self.attempt)

    async def tell_ends(self) -> None:
        """Add notices about subagents that have ended. The next step sends them to the model."""

        async def tell(tx: Tx) -> None:
            if await transitions.tell_ends(tx) is None:
                raise RetryTask("The ends of subagents were told already.")

        await self.handle.update(tell, transition=Transition.COMMIT_STEP)

    async def compact(self, decision: Compact) -> None:
        await CompactionAction(self).compact(decision)

    # Debug records

    async def _ensure_recorded(self, connected: ConnectedModel) -> None:
        """Open the debug run of the turn, unless it is open or the turn is not recorded."""
        step, begun_by = self._step, self.history.begun_by
        if not self.handle.debug.is_undecided(None if begun_by is None else begun_by.id):
            return
        chat = step.chat
        facts = TurnFacts(
            chat_id=chat.id,
            root_chat_id=chat.root_chat_id or chat.id,
            parent_chat_id=chat.parent_chat_id,
            snapshot_version=chat.snapshot_version,
            wants_debug=step.meta.wants_debug,
            trigger_message_id=None if begun_by is None else begun_by.id,
            history_tip_message_id=self._tip_id(),
            label=lambda: _label_of(begun_by),
        )
        await self.handle.debug.ensure(facts, ModelFacts.of(connected.ready, connected.prices))
        if (run := self.handle.debug.run) is not None:
            self.services.traces.recorded(chat.id, run.id)

    def _recorded(self, connected: ConnectedModel, call: Call) -> CallScope:
        if not self.handle.debug.is_recording:
            return CallScope(connected.model)
        facts = CallFacts(
            history_version=self.handle.input.history_version,
            generation_attempt=self.attempt,
            history_tip_message_id=self._tip_id(),
            model=ModelFacts.of(connected.ready, connected.prices),
            abort_reason=self.handle.abort_reason,
        )
        return self.handle.debug.call(connected.model, call, facts)

    async def recorded_summary(self, connected: ConnectedModel) -> CallScope:
        """Return the recording scope of a compaction: a separate run below the run of the turn."""
        await self._ensure_recorded(self.prepared.connected)
        return self.handle.debug.child(
            connected.model,
            kind=RunKind.COMPACTION,
            label="Compaction",
            facts=ModelFacts.of(connected.ready, connected.prices),
            abort_reason=self.handle.abort_reason,
        )

    def _tip_id(self) -> int | None:
        prompt = self._step.history.prompt
        return prompt[-1].message.id if prompt else None

    # End of a step

    async def hand_over(self, _: EnterRequiresAction) -> None:
        """Park the chat until the client has executed the calls."""
        seconds = await self.handle.read(self.services.preparer.action_seconds)
        await self._park(
            lambda tx: transitions.enter_requires_action(tx, timeout_seconds=seconds), Transition.ENTER_REQUIRES_ACTION
        )

    async def ask(self, questions: Sequence[Question], *, timeout_seconds: float | None) -> None:
        """Park the chat until the user has approved or denied the calls."""
        await self._park(
            lambda tx: transitions.ask_approvals(tx, questions, timeout_seconds=timeout_seconds),
            Transition.ASK_APPROVALS,
            questions=len(questions),
        )

    async def _park(
        self, park: Callable[[Tx], Awaitable[object]], transition: Transition, *, questions: int = 0
    ) -> None:
        async def enter(tx: Tx) -> Chat:
            await park(tx)
            return tx.chat

        async def enter_and_tell() -> None:
            self.services.effects.action_required(await self.handle.update(enter, transition=transition))
            # The run ends with the runner if the chat is parked. Another run continues it after the answer.
            self.handle.debug.record(RunStatus.COMPLETED)
            self.services.stats.approvals_asked += questions
            self.services.traces.end(self._step.chat.id, REQUIRES_ACTION)

        await commit_shield.run_to_end(enter_and_tell())

    async def finish(self, decision: FinishTurn, *, user_notice: str | None = None) -> None:
        if decision.reason is TurnEnd.MAX_STEPS:
            user_notice = chat_decision.step_limit_notice(self.prepared.max_steps)
        notice = None if user_notice is None else notice_row(Text(user_notice))

        async def end(tx: Tx) -> tuple[Chat, bool] | None:
            if notice is not None and (await transitions.commit_step(tx, [notice])).promoted:
                # A queued message has begun a new turn, so the chat is not at rest.
                return None
            finished = await transitions.finish_turn(tx)
            return tx.chat, finished.promoted is not None

        async def end_and_tell() -> None:
            ended = await self.handle.update(end, transition=Transition.FINISH_TURN, attempt=self.attempt or None)
            if ended is None:
                self.handle.debug.finish(RunStatus.COMPLETED)
            else:
                self.tell_finished(ended[0], decision.reason, is_promoted=ended[1])

        await commit_shield.run_to_end(end_and_tell())

    async def fail(self, error: LastError) -> None:
        async def fail(tx: Tx) -> Chat:
            await transitions.finish_error(tx, error, failed_row(error))
            return tx.chat

        async def fail_and_tell() -> None:
            failed = await self.handle.update(fail, transition=Transition.FINISH_ERROR)
            self.handle.debug.finish(RunStatus.ERROR)
            self.services.effects.turn_failed(failed, error)
            self._turn_ended(FAILED, error)

        await commit_shield.run_to_end(fail_and_tell())

    async def fail_compaction(self, error: LastError) -> None:
        """End the turn with an error, because the chat is still too long after a summary."""
        own, summary = self.prepared.connected, self.prepared.summary
        is_own = summary.model_config_id == own.ready.config.id
        self.services.stats.calls.compacted(own.model if is_own else None, Source.AUTOMATIC, result="error")
        await self.fail(error)

    def tell_finished(
        self,
        chat: Chat,
        reason: TurnEnd,
        *,
        is_promoted: bool = False,
        history: LoadedHistory | None = None,
        label: str | None = None,
    ) -> None:
        """Run the effects of a turn that ended. `label` was stored with the end; None if it has to be found."""
        step = self._step
        self.handle.debug.finish(RunStatus.COMPLETED)
        self._turn_ended(reason)
        self.services.effects.turn_finished(
            chat, step.meta, history or step.history, reason=reason, is_promoted=is_promoted, label=label
        )
        if (ended := self.prepared.step_tools.on_turn_end) is not None:
            self.services.effects.tools_ended(ended)

    def _turn_ended(self, outcome: str, error: LastError | None = None) -> None:
        self.services.stats.turn_ended(outcome, self._step, now=self.services.clock.now())
        self.services.traces.end(self._step.chat.id, outcome, error_type=None if error is None else error.kind)

    def retried(self, kind: ErrorKind) -> None:
        """Count a retry for the metrics."""
        self.services.stats.calls.retried(self.prepared.connected.model, kind)

    # Attempts

    @asynccontextmanager
    async def attempting(self) -> AsyncIterator[Episode]:
        """Count an attempt and open its episode. The episode is closed when the block ends."""

        async def begin(tx: Tx) -> tuple[Chat, int]:
            if are_attempts_used(tx.chat.generation_attempt, self.services.retry):
                await transitions.finish_error(tx, ATTEMPTS_USED, failed_row(ATTEMPTS_USED))
                return tx.chat, 0
            return tx.chat, await transitions.record_generation_attempt(tx)

        async def begin_and_tell() -> int:
            # The count need not be durable until the step is committed.
            if (counted := await self.handle.count_attempt(self.services.retry.max_attempts)) is not None:
                return counted
            chat, attempt = await self.handle.update(
                begin, transition=Transition.RECORD_GENERATION_ATTEMPT, lazily=True
            )
            if not attempt:
                self.handle.debug.finish(RunStatus.ERROR)
                self.services.effects.turn_failed(chat, ATTEMPTS_USED)
                self._turn_ended(FAILED, ATTEMPTS_USED)
            return attempt

        attempt = await commit_shield.run_to_end(begin_and_tell())
        if not attempt:
            raise TaskExit("All attempts are used.")
        self.attempt = attempt
        key = EpisodeKey(self._step.chat.id, self.handle.input.history_version, attempt)
        try:
            episode = self.services.buffer.create_episode(key)
        except EpisodeExists as error:
            # The interrupt task has closed the episode. The fence of the next try detects the interrupt.
            raise RetryTask(str(error)) from error
        try:
            yield episode
        finally:
            self.services.buffer.close_episode(key)

    def _entry(self, connected: ConnectedModel, outcome: AssistantOutcome) -> Entry:
        row = billing.entry(
            self._step.chat,
            connected,
            outcome.usage,
            purpose=Purpose.TURN,
            status=CallStatus.OK,
            runtime_ms=outcome.runtime_ms,
            request_id=outcome.request_id,
            at=self.services.clock.now(),
        )
        self.services.stats.calls.call_ended(connected.model, row)
        return row

    def _bill(
        self, connected: ConnectedModel, usage: Usage, meter: StepMeter, *, purpose: Purpose, status: CallStatus
    ) -> None:
        """Bill a call that failed or was cancelled."""
        row = billing.entry(
            self._step.chat,
            connected,
            usage,
            purpose=purpose,
            status=status,
            runtime_ms=meter.runtime_ms(self.services.clock.monotonic()),
            request_id=meter.request_id,
        )
        self.services.stats.calls.call_ended(connected.model, row)
        self.services.ledger.record(row)

    def estimate_stopped(self, connected: ConnectedModel, meter: StepMeter) -> Usage:
        """Return the estimated usage of the answer that is being stopped."""
        tokens = self.prepared.assessment.tokens
        if tokens is None and (sent := self._sent) is not None:
            tokens = context_overflow.estimate_tokens(
                sent.prompt.messages, tools_bytes=compaction.tools_bytes(sent.tools)
            )
        last = next((row for row in reversed(self.history.work) if row.figures.context_tokens), None)
        is_cached = (
            last is not None
            and last.message.model_config_id == connected.ready.config.id
            and bool(last.figures.cache_read_tokens or last.figures.cache_write_tokens)
        )
        return billing.stopped_usage(
            meter.usage,
            prompt_tokens=tokens or 0,
            cached_tokens=(last.figures.context_tokens or 0) if last is not None and is_cached else 0,
            written=meter.count_written(),
        )

    def metered(self, connected: ConnectedModel, meter: StepMeter, purpose: Purpose) -> _Metered:
        """Return a meter for a call of this step whose output is not shown live."""
        return _Metered(self, connected, meter, purpose)

    def turn_id(self) -> int | None:
        begun_by = self.history.begun_by
        return None if begun_by is None else begun_by.id


class _Metered:
    """Meters one call: publishes its usage to `Meters` while it runs, and bills it if it fails or is cancelled.

    Unexpected exceptions of a model client become `StepFailed`.
    """

    def __init__(
        self,
        actions: StepActions,
        connected: ConnectedModel,
        meter: StepMeter,
        purpose: Purpose,
        key: EpisodeKey | None = None,
    ) -> None:
        self._actions = actions
        self._connected = connected
        self._meter = meter
        self._purpose = purpose
        self._key = key

    def __enter__(self) -> None:
        if self._key is not None:
            self._actions.services.meters.begin(self._key, self._read)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        is_stopped = isinstance(error, asyncio.CancelledError)
        if self._key is not None:
            self._actions.services.meters.end(self._key, is_stopped=is_stopped)
        if error is None:
            return
        if self._meter.invoked_at is not None:
            usage = error.usage if isinstance(error, CallFailed) else self._usage(is_stopped=is_stopped)
            status = CallStatus.INTERRUPTED if is_stopped else CallStatus.FAILED
            self._actions._bill(self._connected, usage, self._meter, purpose=self._purpose, status=status)
        if isinstance(error, Exception) and not isinstance(error, LlmError):
            log.exception("model_raised", error)
            raise StepFailed(error_classification.classify(error, self._connected.provider_name)) from error

    def _read(self) -> Metered:
        usage = self._usage(is_stopped=True)
        figures = interrupted_figures(
            self._meter,
            monotonic=self._actions.services.clock.monotonic(),
            context_limit=self._connected.windows.effective,
            cost_micros=cost.cost_micros(usage, self._connected.prices),
            usage=usage,
        )
        return Metered(self._connected.ready.config.id, figures)

    def _usage(self, *, is_stopped: bool) -> Usage:
        """Return the reported usage. For a stopped answer, estimate what was not reported."""
        if not is_stopped or self._key is None or self._meter.invoked_at is None:
            return self._meter.usage
        return self._actions.estimate_stopped(self._connected, self._meter)


_STATES = {
    LedgerStatus.STARTED: LedgerState.NEW,
    LedgerStatus.FINISHED: LedgerState.FINISHED,
    LedgerStatus.UNFINISHED: LedgerState.UNFINISHED,
}


class ToolLedger:
    """The tool ledger in the database, behind the fence of the task that runs the batch."""

    def __init__(self, pool: asyncpg.Pool, fence: Fence) -> None:
        self._pool = pool
        self._fence = fence

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        """Record the start of a run. Raise `StaleFence` if this runner no longer owns the chat."""
        call = tool_runs.Call(chat_id, MessageId(message_id), call_id, tool_name)
        async with self._pool.acquire() as conn:
            run = await tool_runs.begin(conn, call, fence=self._fence)
        content = run.result.decode() if run.result else None
        return LedgerRun(_STATES[run.status], content, EarlierRun(run.state, run.answer))

    async def finish(self, token: UUID, content: str) -> None:
        async with self._pool.acquire() as conn:
            await tool_runs.finish(conn, token, result=content.encode())

    async def keep(self, token: UUID, state: msgspec.Struct, *, question: msgspec.Struct | None) -> None:
        async with self._pool.acquire() as conn:
            await tool_runs.keep(conn, token, state, question=question)


def _tool_publisher(episode: Episode, handle: TaskHandle) -> Publish:
    """Return a publisher for tools. It counts output as progress."""
    show = _publisher(episode)

    def publish(role: Role, part: Part) -> None:
        handle.note_life()
        show(role, part)

    return publish


def _publisher(episode: Episode) -> Publish:
    """Return a function that adds live parts to the episode. It ignores a closed or full episode."""

    def publish(role: Role, part: Part) -> None:
        try:
            add(role, part)
        except PartBufferError:
            return

    add = episode.add_part
    return publish


def _answer(committed: StepCommitted) -> Message:
    return next(message for message in committed.inserted if message.role is Role.ASSISTANT)


def _label_of(message: Message | None) -> str:
    """Return the text that names the debug run of a turn."""
    try:
        return "" if message is None else titles.title_text(message.parts())
    except ContentError:
        return ""
