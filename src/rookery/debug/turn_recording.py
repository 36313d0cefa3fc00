"""`DebugTurn`: the recording of a runner's turns. It opens a run at the first model call and ends it with the turn.

A turn is identified by the message that triggered it. If the trigger changes while the runner lives, for example
because of a queued message, the turn ends and the next one begins. A turn that is not recorded may be kept in memory
until its end; it is stored if it ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.debug.call_scope import CallFacts, CallScope, RecordedScope, RunScope
from rookery.debug.current_run import current_run
from rookery.debug.model_wrapper import RecordedModel
from rookery.debug.recorder import ModelFacts, RecordedCall, Recorder, Run, RunFacts, Step
from rookery.debug.recording_policy import Policy, Recording
from rookery.debug.stats import DebugStats
from rookery.debug.turns_kept_for_errors import KeptTurn, KeptTurns
from rookery.domain.chat.messages import ChatId
from rookery.llm.types import Call, LanguageModel
from rookery.store.debug.record_rows import RunKind, RunStatus, StepStatus
from rookery.telemetry.log import get_logger

log = get_logger("debug.turn_recording")

_WORST = (RunStatus.COMPLETED, RunStatus.INTERRUPTED, RunStatus.ERROR)


class TurnState(StrEnum):
    UNOPENED = "unopened"
    OPEN = "open"
    KEPT = "kept"
    DISABLED = "disabled"
    CLOSED = "closed"


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the turn of a prepared step. `trigger_message_id` is None if the prompt has no user message."""

    chat_id: ChatId
    root_chat_id: UUID
    parent_chat_id: UUID | None
    snapshot_version: int
    wants_debug: bool | None
    trigger_message_id: int | None
    history_tip_message_id: int | None
    label: Callable[[], str]


class Recordings:
    """The services that record the turns and single calls of a process. Each process has one."""

    def __init__(self, recorder: Recorder, policy: Policy, *, stats: DebugStats) -> None:
        self.recorder = recorder
        self.policy = policy
        self.kept = KeptTurns(stats)


class DebugTurn:
    """The turns of one runner. Without `recordings`, nothing is recorded. A failure to record is logged, not raised."""

    __slots__ = ("_kept", "_outcome", "_recordings", "_run", "_step", "_trigger", "state")

    def __init__(self, recordings: Recordings | None) -> None:
        self._recordings = recordings
        self.state = TurnState.UNOPENED if recordings is not None else TurnState.DISABLED
        self._trigger: int | None = None
        self._run: Run | None = None
        self._step: Step | None = None
        self._kept: KeptTurn | None = None
        self._outcome: RunStatus | None = None

    @property
    def run(self) -> Run | None:
        return self._run

    @property
    def is_recording(self) -> bool:
        """Whether calls of this turn are recorded, or kept in memory."""
        return self._run is not None or self._kept is not None

    def is_undecided(self, trigger_message_id: int | None) -> bool:
        """Return whether `ensure` still has to decide about the recording of this turn."""
        is_decided = self.state not in (TurnState.UNOPENED, TurnState.CLOSED)
        return self._recordings is not None and (not is_decided or trigger_message_id != self._trigger)

    async def ensure(self, facts: TurnFacts, model: ModelFacts) -> None:
        """Open the run of this turn, unless the run is open or the turn is not recorded."""
        recordings = self._recordings
        if recordings is None or not self.is_undecided(facts.trigger_message_id):
            return
        self._end_turn(self._outcome_of_next())
        self._trigger = facts.trigger_message_id
        self.state = TurnState.DISABLED
        if facts.trigger_message_id is None:
            return
        try:
            match await recordings.policy.of_turn(wants_debug=facts.wants_debug):
                case Recording.FULL:
                    self._run = recordings.recorder.open(_run_facts(facts, model))
                    self.state = TurnState.DISABLED if self._run is None else TurnState.OPEN
                case Recording.ON_ERROR:
                    self._kept = recordings.kept.begin(_run_facts(facts, model), recordings.recorder)
                    self.state = TurnState.DISABLED if self._kept is None else TurnState.KEPT
        except Exception as error:
            log.exception("debug_turn_not_recorded", error, chat_id=facts.chat_id)

    def call(self, model: LanguageModel, call: Call, facts: CallFacts) -> CallScope:
        """Return the scope of a call. The model is wrapped only if the turn is recorded."""
        if self._kept is not None:
            return self._kept.call(model, call, facts)
        run = self._run
        if run is None:
            return CallScope(model)

        def begin(call: Call) -> RecordedCall | None:
            step = run.step(key=f"h{facts.history_version}", history_tip_message_id=facts.history_tip_message_id)
            self._step = step
            if step is None:
                return None
            return step.begin(
                call,
                facts.model,
                wire=model.wire,
                generation_attempt=facts.generation_attempt,
                abort_reason=facts.abort_reason,
            )

        recorded = RecordedModel(model, begin, facts=facts.model, clock=run.clock, body_bytes=run.redactor.body_bytes)
        return RecordedScope(recorded, run, facts.abort_reason)

    def child(
        self,
        model: LanguageModel,
        *,
        kind: RunKind,
        label: str,
        facts: ModelFacts,
        abort_reason: Callable[[], str | None],
    ) -> CallScope:
        """Return the scope of a separate run below the run of this turn.

        If this turn is not recorded, the scope records nothing.
        """
        run = (
            None
            if self._run is None or self._recordings is None
            else child_run(self._recordings.recorder, self._run, kind=kind, label=label, model=facts)
        )
        return CallScope(model) if run is None else RunScope(model, run, abort_reason=abort_reason)

    def current(self) -> AbstractContextManager[None]:
        """Return a block in which model calls of tools, such as the advisor, belong to this turn.

        If the turn is not recorded, such calls belong to no run. Without the block, they could belong to the run of
        another chat, because asyncio tasks inherit context variables.
        """
        return _as_current(self._run)

    def retry_planned(self, kind: str, delay: timedelta) -> None:
        """Record that the call has failed and will be tried again."""
        if self._step is not None and self._run is not None:
            self._step.retry_planned(kind, delay)
        if self._kept is not None:
            self._kept.retry_planned(kind, delay)

    def committed(self, message_id: int) -> None:
        """Record the message in which the answer of the last call is stored."""
        if self._step is not None and self._run is not None:
            self._step.committed(message_id)
        if self._kept is not None:
            self._kept.committed(message_id)

    def record(self, outcome: RunStatus) -> None:
        """Record an outcome of the turn. If several outcomes are recorded, the worst one counts."""
        if self._outcome is None or _WORST.index(outcome) > _WORST.index(self._outcome):
            self._outcome = outcome

    def finish(self, outcome: RunStatus) -> None:
        """End the turn. Later calls do not belong to it."""
        if self.state in (TurnState.OPEN, TurnState.KEPT):
            self.record(outcome)
            self._end_turn()

    def close(self) -> None:
        """End the turn because its runner ends.

        Without a recorded outcome, the turn was interrupted, and another runner continues it.
        """
        if self._run is not None:
            self._run.close(self._outcome or RunStatus.INTERRUPTED)
        self._end_turn()

    def _outcome_of_next(self) -> RunStatus:
        """Return the outcome of a turn that ends because the next turn begins, for example after a steering message.

        An interrupt is recorded by its own task. Therefore the turn is complete if its last call is complete.
        """
        end = None if self._step is None else self._step.last_end
        is_complete = end is not None and end.status is StepStatus.COMPLETED
        return self._outcome or (RunStatus.COMPLETED if is_complete else RunStatus.INTERRUPTED)

    def _end_turn(self, outcome: RunStatus | None = None) -> None:
        outcome = outcome or self._outcome or RunStatus.INTERRUPTED
        if self._run is not None:
            self._run.finish(outcome)
        if self._kept is not None:
            self._kept.end(outcome)
        if self.state in (TurnState.OPEN, TurnState.KEPT):
            self.state = TurnState.CLOSED
        self._run = self._step = self._kept = self._outcome = None


def child_run(recorder: Recorder, parent: Run, *, kind: RunKind, label: str, model: ModelFacts) -> Run | None:
    """Open a run below another run. It has the trigger and the history version of its parent."""
    facts = msgspec.structs.replace(parent.facts, kind=kind, label=label, model=model, parent_run_id=parent.id)
    return recorder.open(facts)


@contextmanager
def _as_current(run: Run | None) -> Iterator[None]:
    token = current_run.set(run)
    try:
        yield
    finally:
        current_run.reset(token)


def _run_facts(facts: TurnFacts, model: ModelFacts) -> RunFacts:
    return RunFacts(
        chat_id=facts.chat_id,
        root_chat_id=facts.root_chat_id,
        parent_chat_id=facts.parent_chat_id,
        snapshot_version=facts.snapshot_version,
        kind=RunKind.CHAT_TURN,
        model=model,
        label=facts.label(),
        trigger_message_id=facts.trigger_message_id,
        history_tip_message_id=facts.history_tip_message_id,
    )
