"""The generation task: load, prepare, decide and act on one step, and handle its failure.

One step is at most one commit. The commit moves the history, which ends this task and starts the next one: there is no
turn loop in memory, so any replica can go on after any crash.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random

import msgspec

from rookery.domain.chat import compaction, history, retry_policy
from rookery.domain.chat import decision as chat_decision
from rookery.domain.chat.chat import OWNER_DISABLED, Chat, LastError, RetryState
from rookery.domain.chat.compaction import Source
from rookery.domain.chat.decision import (
    AskApproval,
    Compact,
    Decision,
    EnterRequiresAction,
    ExecuteTools,
    FailTurn,
    FinishTurn,
    Generate,
)
from rookery.domain.chat.errors import ChatError, InvariantViolation, Refused
from rookery.domain.chat.history import History
from rookery.domain.chat.retry_policy import GiveUp
from rookery.domain.chat.transitions import Transition
from rookery.llm.errors import LlmError
from rookery.llm.types import ErrorKind
from rookery.store import machine as transitions
from rookery.store.chats.step_reads import HistoryCache, Step, load_step
from rookery.store.machine import Machine, Question, Tx
from rookery.store.models.errors import ModelError
from rookery.telemetry.log import get_logger
from rookery.tools.step_tools import ToolsUnavailable
from rookery.worker import approval_gate, commit_shield, error_classification
from rookery.worker.approval_gate import Judged
from rookery.worker.config import WorkerConfig
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.fair_share import GiveWay
from rookery.worker.prepare import Prepared, is_turn_long, stored_retry
from rookery.worker.stats import FAILED
from rookery.worker.step_actions import ActParts, StepActions
from rookery.worker.tasks import TaskError, TaskExit, TaskHandle, normalized

log = get_logger("worker.generation")

# Errors with which a step is expected to end. Everything else is a bug, and is logged as one.
_STEP_ERRORS = (StepFailed, LlmError, ChatError, ModelError)
# The transition does not fit the chat: it has changed, and the next try decides on its new state.
_REFUSALS = (Refused, InvariantViolation)
# Decisions that call a model or run tools, and so take time.
_WORK = (Generate, ExecuteTools, Compact)
# Tries of a summary that fails with a retryable error, before the turn goes on without it, if it can.
SUMMARY_ATTEMPTS = 3


class GenerationWork:
    def __init__(
        self,
        machine: Machine,
        parts: ActParts,
        *,
        cache: HistoryCache,
        config: WorkerConfig,
        rng: Random,
        give_way: GiveWay,
    ) -> None:
        self._give_way = give_way
        self._machine = machine
        self._parts = parts
        self._cache = cache
        self._config = config
        self._rng = rng
        self._clock = parts.clock

    async def __call__(self, handle: TaskHandle) -> None:
        run = _Run()
        while True:
            async with AsyncExitStack() as stack:
                step = await self._load(handle)
                if self._remaining_wait(step) > timedelta() and await self._gave_way(handle, run):
                    return
                if await self._waited(handle, step, run):
                    continue
                acts: StepActions | None = None
                decision: Decision | None = None
                try:
                    _require_active_owner(step)
                    prepared = await self._prepared(handle, step, stack)
                    past = await _read(step)
                    acts = StepActions(self._parts, handle, prepared, past)
                    judged = await self._judged(handle, prepared, past)
                    decision = run.forced or self._decide(prepared, past, judged)
                    # A turn that only has to end, or to ask, frees its slot that way.
                    if isinstance(decision, _WORK) and await self._gave_way(handle, run):
                        return
                    await self._act(acts, decision, judged, told=run.told or _tight(prepared))
                    return
                except (TaskError, *_REFUSALS):
                    raise
                except Exception as error:
                    if handle.cancellation.reason is not None:
                        # The error is a reaction to the cancellation: the step has not failed, and there is nothing to
                        # show to the user.
                        raise TaskExit("This task was cancelled.") from error
                    failure = self._classified(error)
                    if acts is not None and isinstance(decision, Generate) and failure.context_overflow:
                        # From here on the history counts as refused, and the next decision shortens it.
                        run.forced = None
                        if await acts.take_refusal(failure):
                            continue
                    if acts is not None and isinstance(decision, Compact) and _goes_on(decision, failure, acts):
                        run.forced = Generate()
                        run.told = compaction.NOT_SUMMARISED.format(reason=failure.message)
                        continue
            if not await self._failed(handle, failure, run, step=step, acts=acts):
                return

    def _classified(self, error: Exception) -> Classified:
        """Classify a failed attempt.

        Database outages are re-raised: they are retried by the task, not shown to the user.
        """
        meant = normalized(error)
        if isinstance(meant, TaskError):
            raise meant from error
        failure = error_classification.classify(error, now=self._clock.now())
        if isinstance(error, _STEP_ERRORS):
            log.info("step_failed", kind=failure.kind, error=failure.message, detail=failure.detail)
        else:
            log.exception("step_failed", error, kind=failure.kind)
        return failure

    async def _load(self, handle: TaskHandle) -> Step:
        chat_id, fence = handle.input.chat_id, handle.input.fence()
        return await handle.read(lambda: load_step(self._machine, chat_id, fence=fence, cache=self._cache))

    async def _waited(self, handle: TaskHandle, step: Step, run: _Run) -> bool:
        """Wait out the rest of a retry delay that a previous runner started. Return whether there was one."""
        retry = stored_retry(step.chat)
        if retry is None or retry.retrying_at == run.waited_for:
            return False
        remaining = self._remaining_wait(step)
        if remaining <= timedelta():
            return False
        run.waited_for = retry.retrying_at
        await handle.wait(remaining.total_seconds(), "generation-retry")
        return True

    def _remaining_wait(self, step: Step) -> timedelta:
        retry = stored_retry(step.chat)
        return timedelta() if retry is None else retry_policy.remaining_wait(retry, step.now)

    async def _gave_way(self, handle: TaskHandle, run: _Run) -> bool:
        """Return whether the chat was released for the benefit of another owner.

        Checked once: after a no, it keeps its slot.
        """
        slot = handle.input.asked_for
        if slot is None or run.is_kept:
            return False
        run.is_kept = not await self._give_way(handle, slot)
        return not run.is_kept

    async def _prepared(self, handle: TaskHandle, step: Step, stack: AsyncExitStack) -> Prepared:
        """Prepare the step, with a few quick retries. A database outage is re-raised: it must not fail the turn."""
        tries = 0
        while True:
            handle.progress()
            try:
                # Close what a failed try has opened before the next try.
                async with AsyncExitStack() as opened:
                    prepared = await self._parts.preparer.prepare(step, opened)
                    await stack.enter_async_context(opened.pop_all())
                return prepared
            except Exception as error:
                if handle.cancellation.reason is not None:
                    # Another try could wait without being cancelled again.
                    raise TaskExit("This task was cancelled.") from error
                meant = normalized(error)
                if isinstance(meant, TaskError):
                    raise meant from error
                tries += 1
                if isinstance(error, StepFailed | ChatError | ModelError) or tries >= self._config.prepare_tries:
                    log.warning("prepare_failed", tries=tries, error=str(error) or type(error).__name__)
                    raise StepFailed(_unprepared(error)) from error
            await handle.wait(self._config.prepare_backoff_seconds * 2 ** (tries - 1), "prepare-retry")

    async def _judged(self, handle: TaskHandle, prepared: Prepared, past: History) -> Judged:
        tools = prepared.step_tools.tools
        return await handle.read(lambda: approval_gate.judge(self._parts.pool, prepared.step, past, tools))

    def _decide(self, prepared: Prepared, past: History, judged: Judged) -> Decision:
        chat = prepared.step.chat
        return chat_decision.decide(
            chat,
            past,
            rules=prepared.rules,
            assessment=prepared.assessment,
            gate=judged.gate,
            is_refused=prepared.step.meta.refused_tokens is not None,
        )

    async def _act(self, acts: StepActions, decision: Decision, judged: Judged, *, told: str | None) -> None:
        log.debug("decided", decision=type(decision).__name__)
        match decision:
            case Generate(notice=notice):
                await acts.generate(notice, told=told)
            case ExecuteTools():
                await acts.execute(decision)
            case Compact():
                await acts.compact(decision)
            case AskApproval(calls=calls):
                questions = [Question(call, judged.offers[call]) for call in calls]
                await acts.ask(questions, timeout_seconds=judged.timeout_seconds)
            case EnterRequiresAction():
                await acts.hand_over(decision)
            case FinishTurn():
                await acts.finish(decision)
            case FailTurn(error=error):
                await acts.fail_compaction(error)

    async def _failed(
        self, handle: TaskHandle, failure: Classified, run: _Run, *, step: Step, acts: StepActions | None
    ) -> bool:
        """Store when the next attempt is due and wait for it, or end the turn. Return whether to go on."""
        now = self._clock.now()

        async def store(tx: Tx) -> tuple[Chat, LastError | RetryState, timedelta]:
            count = tx.chat.generation_attempt
            delay = retry_policy.next_delay(
                count,
                self._rng.random,
                retryable=failure.retryable,
                retry_after=failure.retry_after,
                policy=self._parts.retry,
            )
            if isinstance(delay, timedelta):
                retry = error_classification.retry_state(failure, attempt=count, delay=delay, now=now)
                await transitions.record_retry_state(tx, retry)
                return tx.chat, retry, delay
            final = error_classification.not_waited_for(failure, now=now) if delay is GiveUp.WAIT_TOO_LONG else failure
            error = error_classification.last_error(final)
            await transitions.finish_error(tx, error)
            return tx.chat, error, timedelta()

        async def store_and_tell() -> tuple[LastError | RetryState, timedelta]:
            attempt = acts.attempt if acts is not None else 0
            chat, stored, delay = await handle.update(
                store, transition=Transition.RECORD_RETRY_STATE, attempt=attempt or None
            )
            if isinstance(stored, LastError):
                self._parts.effects.turn_failed(chat, stored)
                self._parts.stats.turn_ended(FAILED, step, now=self._clock.now())
            return stored, delay

        stored, delay = await commit_shield.to_the_end(store_and_tell())
        if isinstance(stored, LastError):
            return False
        if acts is not None:
            acts.retried(failure.kind)
        run.waited_for = stored.retrying_at
        await handle.wait(delay.total_seconds(), "generation-retry")
        return True


class _Run:
    """State that one run of the task keeps between tries.

    `waited_for` is the retry delay that was waited out. `forced` goes on without a summary, and `told` is the notice
    about it for the user. `is_kept` is set once the chat may keep its slot.
    """

    __slots__ = ("forced", "is_kept", "told", "waited_for")

    def __init__(self) -> None:
        self.waited_for: datetime | None = None
        self.forced: Generate | None = None
        self.told: str | None = None
        self.is_kept = False


def _goes_on(decision: Compact, failure: Classified, acts: StepActions) -> bool:
    """Return whether the turn goes on without the summary: only the threshold asked for it, and there is room."""
    is_final = not failure.retryable or acts.attempt >= SUMMARY_ATTEMPTS
    return is_final and decision.source is Source.AUTOMATIC and acts.has_room


def _tight(prepared: Prepared) -> str | None:
    return compaction.TIGHT if prepared.assessment.status is compaction.Status.TIGHT else None


async def _read(step: Step) -> History:
    if is_turn_long(step):
        return await asyncio.to_thread(history.read, step.history.rows)
    return history.read(step.history.rows)


def _require_active_owner(step: Step) -> None:
    """End the turn of a disabled owner. Disabling interrupts chats; this covers a turn started at the same moment."""
    if not step.meta.owner_is_active:
        raise StepFailed(Classified(kind=ErrorKind.GENERIC, message=OWNER_DISABLED.message, retryable=False))


def _unprepared(error: Exception) -> Classified:
    """Classify why a step could not be prepared. It is final: preparing was retried already."""
    if isinstance(error, ToolsUnavailable):
        return Classified(kind=ErrorKind.GENERIC, message=str(error), retryable=False)
    return msgspec.structs.replace(error_classification.classify(error), retryable=False)
