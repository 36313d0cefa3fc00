"""The generation task: loads and prepares one step, decides on an action, runs it, and handles its failure.

A step is at most one commit. The commit increments the history version, which ends this task and starts the next one.
There is no turn loop in memory, so any replica can continue after a crash.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random

import msgspec

from rookery.domain.chat import compaction, history, retry_policy
from rookery.domain.chat import next_action as chat_decision
from rookery.domain.chat.chat import OWNER_DISABLED, Chat, LastError, RetryState
from rookery.domain.chat.compaction import Source
from rookery.domain.chat.errors import ChatError, InvariantViolation, Refused
from rookery.domain.chat.history import History
from rookery.domain.chat.next_action import (
    AskApproval,
    Compact,
    Decision,
    EnterRequiresAction,
    ExecuteTools,
    FailTurn,
    FinishTurn,
    Generate,
    TellEnds,
)
from rookery.domain.chat.repetition_brake import Limits
from rookery.domain.chat.retry_policy import GiveUp
from rookery.domain.chat.transitions import Transition
from rookery.llm.errors import LlmError
from rookery.llm.types import ErrorKind
from rookery.loop.step_rows import failed_row
from rookery.store import machine as transitions
from rookery.store.chats.step_reads import HistoryCache, Step, load_step
from rookery.store.debug.record_rows import RunStatus
from rookery.store.machine import Machine, Question, Tx
from rookery.store.models.errors import ModelError
from rookery.telemetry.log import get_logger
from rookery.tools.step_tools import ToolsUnavailable
from rookery.worker import approval_gate, commit_shield, error_classification
from rookery.worker.approval_gate import Judged
from rookery.worker.chat_release import GiveWay
from rookery.worker.config import WorkerConfig
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.stats import FAILED
from rookery.worker.step_actions import StepActions, StepServices
from rookery.worker.step_preparation import Prepared, is_turn_long, stored_retry
from rookery.worker.tasks import TaskError, TaskExit, TaskHandle, as_task_error

log = get_logger("worker.generation")

# Expected errors of a step. All others are bugs and are logged with their traceback.
_STEP_ERRORS = (StepFailed, LlmError, ChatError, ModelError)
# The chat has changed, so the transition is not allowed. The next try decides on the new state.
_REFUSALS = (Refused, InvariantViolation)
# Decisions that call a model or run tools.
_WORK = (Generate, ExecuteTools, Compact)
# Tries of a summary that fails with a retryable error, before the turn continues without it if possible.
SUMMARY_ATTEMPTS = 3


class GenerationWork:
    def __init__(
        self,
        machine: Machine,
        services: StepServices,
        *,
        cache: HistoryCache,
        config: WorkerConfig,
        rng: Random,
        give_way: GiveWay,
    ) -> None:
        self._give_way = give_way
        self._machine = machine
        self._services = services
        self._cache = cache
        self._config = config
        self._rng = rng
        self._clock = services.clock

    async def __call__(self, handle: TaskHandle) -> None:
        run = _RunState()
        while True:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._services.traces.resume(handle.input.chat_id))
                step = await self._load(handle)
                if self._remaining_wait(step) > timedelta() and await self._gave_way(handle, run):
                    return
                if await self._waited(handle, step, run):
                    continue
                actions: StepActions | None = None
                decision: Decision | None = None
                try:
                    _require_active_owner(step)
                    prepared = await self._prepared(handle, step, stack)
                    past = await _read(step)
                    stack.enter_context(self._services.traces.begin(step, past))
                    actions = StepActions(self._services, handle, prepared, past)
                    limits = (await self._services.preparer.chat_settings()).brake
                    judged = await self._judged(handle, prepared, past, limits)
                    decision = run.forced or self._decide(prepared, past, judged, limits)
                    # Other decisions end the turn or park the chat, which also frees the slot.
                    if isinstance(decision, _WORK) and await self._gave_way(handle, run):
                        return
                    notice = run.user_notice or _tight_notice(prepared)
                    if not await self._act(actions, decision, judged, user_notice=notice):
                        continue
                    return
                except (TaskError, *_REFUSALS):
                    raise
                except Exception as error:
                    if handle.cancellation.reason is not None:
                        # The error is a reaction to the cancellation. The step has not failed, and nothing is shown.
                        raise TaskExit("This task was cancelled.") from error
                    failure = self._classified(error)
                    if actions is not None and isinstance(decision, Generate) and failure.context_overflow:
                        # The history is recorded as refused, and the next decision shortens it.
                        run.forced = None
                        if await actions.take_refusal(failure):
                            continue
                    if (
                        actions is not None
                        and isinstance(decision, Compact)
                        and _may_skip_summary(decision, failure, actions)
                    ):
                        run.forced = Generate()
                        run.user_notice = compaction.NOT_SUMMARISED.format(reason=failure.message)
                        continue
            if not await self._failed(handle, failure, run, step=step, actions=actions, decision=decision):
                return

    def _classified(self, error: Exception) -> Classified:
        """Classify a failed attempt.

        Database outages are re-raised: they are retried by the task, not shown to the user.
        """
        meant = as_task_error(error)
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

    async def _waited(self, handle: TaskHandle, step: Step, run: _RunState) -> bool:
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

    async def _gave_way(self, handle: TaskHandle, run: _RunState) -> bool:
        """Release the chat if another owner needs its slot. Return whether it was released.

        This is tried once per run of the task. Afterwards the chat keeps its slot.
        """
        slot = handle.input.requested_slot
        if slot is None or run.is_kept:
            return False
        run.is_kept = not await self._give_way(handle, slot)
        return not run.is_kept

    async def _prepared(self, handle: TaskHandle, step: Step, stack: AsyncExitStack) -> Prepared:
        """Prepare the step, with a few quick retries. A database outage is re-raised and does not end the turn."""
        tries = 0
        while True:
            handle.progress()
            try:
                # Connections that a failed try has opened are closed before the next try.
                async with AsyncExitStack() as opened:
                    prepared = await self._services.preparer.prepare(step, opened)
                    await stack.enter_async_context(opened.pop_all())
                return prepared
            except Exception as error:
                if handle.cancellation.reason is not None:
                    # A cancellation is delivered once, so the next try would not be cancelled.
                    raise TaskExit("This task was cancelled.") from error
                meant = as_task_error(error)
                if isinstance(meant, TaskError):
                    raise meant from error
                tries += 1
                if isinstance(error, StepFailed | ChatError | ModelError) or tries >= self._config.prepare_tries:
                    log.warning("prepare_failed", tries=tries, error=str(error) or type(error).__name__)
                    raise StepFailed(_unprepared(error)) from error
            await handle.wait(self._config.prepare_backoff_seconds * 2 ** (tries - 1), "prepare-retry")

    async def _judged(self, handle: TaskHandle, prepared: Prepared, past: History, limits: Limits) -> Judged:
        tools, needs_user = prepared.step_tools.tools, prepared.step_tools.needs_user
        return await handle.read(
            lambda: approval_gate.judge(self._services.pool, prepared.step, past, tools, needs_user, limits)
        )

    def _decide(self, prepared: Prepared, past: History, judged: Judged, limits: Limits) -> Decision:
        chat = prepared.step.chat
        return chat_decision.decide(
            chat,
            past,
            rules=prepared.rules,
            assessment=prepared.assessment,
            gate=judged.gate,
            is_refused=prepared.step.meta.refused_tokens is not None,
            has_untold_ends=prepared.step.meta.has_untold_ends,
            limits=limits,
        )

    async def _act(self, actions: StepActions, decision: Decision, judged: Judged, *, user_notice: str | None) -> bool:
        """Carry out the decision. Return False if nothing was committed, so that another decision has to be made."""
        log.debug("decided", decision=type(decision).__name__)
        match decision:
            case Generate(notice=notice):
                await actions.generate(notice, user_notice=user_notice)
            case ExecuteTools():
                return await actions.execute(decision)
            case Compact():
                await actions.compact(decision)
            case AskApproval(calls=calls):
                questions = [Question(call, judged.offers[call]) for call in calls]
                await actions.ask(questions, timeout_seconds=judged.timeout_seconds)
            case EnterRequiresAction():
                await actions.hand_over(decision)
            case FinishTurn():
                await actions.finish(decision)
            case FailTurn(error=error):
                await actions.fail_compaction(error)
            case TellEnds():
                await actions.tell_ends()
        return True

    async def _failed(
        self,
        handle: TaskHandle,
        failure: Classified,
        run: _RunState,
        *,
        step: Step,
        actions: StepActions | None,
        decision: Decision | None,
    ) -> bool:
        """Store the retry delay and wait, or end the turn. Return whether to try again."""
        now = self._clock.now()

        async def store(tx: Tx) -> tuple[Chat, LastError | RetryState, timedelta]:
            count = tx.chat.generation_attempt
            delay = retry_policy.next_delay(
                count,
                self._rng.random,
                retryable=failure.retryable,
                retry_after=failure.retry_after,
                policy=self._services.retry,
            )
            if isinstance(delay, timedelta):
                retry = error_classification.retry_state(failure, attempt=count, delay=delay, now=now)
                await transitions.record_retry_state(tx, retry)
                return tx.chat, retry, delay
            final = error_classification.without_retry(failure, now=now) if delay is GiveUp.WAIT_TOO_LONG else failure
            error = error_classification.last_error(final)
            await transitions.finish_error(tx, error, failed_row(error))
            return tx.chat, error, timedelta()

        async def store_and_tell() -> tuple[LastError | RetryState, timedelta]:
            attempt = actions.attempt if actions is not None else 0
            chat, stored, delay = await handle.update(
                store, transition=Transition.RECORD_RETRY_STATE, attempt=attempt or None
            )
            if isinstance(stored, LastError):
                handle.debug.finish(RunStatus.ERROR)
                self._services.effects.turn_failed(chat, stored)
                self._services.stats.turn_ended(FAILED, step, now=self._clock.now())
                self._services.traces.end(chat.id, FAILED, error_type=stored.kind)
            return stored, delay

        stored, delay = await commit_shield.run_to_end(store_and_tell())
        if isinstance(stored, LastError):
            return False
        if actions is not None:
            actions.retried(failure.kind)
            if isinstance(decision, Generate):
                handle.debug.retry_planned(failure.kind, delay)
        run.waited_for = stored.retrying_at
        await handle.wait(delay.total_seconds(), "generation-retry")
        return True


class _RunState:
    """State that one run of the task keeps between tries.

    `waited_for` is the end of the retry delay that was waited out. `forced` replaces the next decision when a summary
    failed and the turn continues without it; `user_notice` tells the user so. `is_kept` is set once the chat may keep
    its slot.
    """

    __slots__ = ("forced", "is_kept", "user_notice", "waited_for")

    def __init__(self) -> None:
        self.waited_for: datetime | None = None
        self.forced: Generate | None = None
        self.user_notice: str | None = None
        self.is_kept = False


def _may_skip_summary(decision: Compact, failure: Classified, actions: StepActions) -> bool:
    """Return whether the turn can continue without the summary: only the threshold required it, and the prompt still
    fits.
    """
    is_final = not failure.retryable or actions.attempt >= SUMMARY_ATTEMPTS
    return is_final and decision.source is Source.AUTOMATIC and actions.has_room


def _tight_notice(prepared: Prepared) -> str | None:
    return compaction.TIGHT if prepared.assessment.status is compaction.Status.TIGHT else None


async def _read(step: Step) -> History:
    if is_turn_long(step):
        return await asyncio.to_thread(history.read, step.history.rows)
    return history.read(step.history.rows)


def _require_active_owner(step: Step) -> None:
    """Raise `StepFailed` if the owner is disabled. This stops a turn that began after the owner was disabled."""
    if not step.meta.owner_is_active:
        raise StepFailed(Classified(kind=ErrorKind.GENERIC, message=OWNER_DISABLED.message, retryable=False))


def _unprepared(error: Exception) -> Classified:
    """Classify the failure to prepare a step. It is final, because the preparation was already retried."""
    if isinstance(error, ToolsUnavailable):
        return Classified(kind=ErrorKind.GENERIC, message=str(error), retryable=False)
    return msgspec.structs.replace(error_classification.classify(error), retryable=False)
