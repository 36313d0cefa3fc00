"""The compaction action: replaces the history by a summary and the user's unanswered message.

It is a part of `StepActions`, which owns attempts, fences and bills. Each run is at most one commit of three rows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid5

import msgspec

from rookery.domain.chat import context_overflow, summary_prompt
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.compaction import Source, Spilled, boundary_parts, boundary_summary, current_turn_parts
from rookery.domain.chat.context_overflow import Budget
from rookery.domain.chat.messages import Role
from rookery.domain.chat.next_action import Compact, TurnEnd
from rookery.domain.chat.parts import Part
from rookery.domain.chat.transitions import Transition
from rookery.domain.chat.truncation import BYTES_PER_TOKEN
from rookery.domain.models.context_window import LearnedFrom
from rookery.llm.errors import CallFailed
from rookery.llm.types import Call, ErrorKind, Purpose
from rookery.loop import compaction
from rookery.loop.compaction import Carried, CompactionOutcome, CompactionSetup
from rookery.loop.model_step import StepMeter, StepSetup
from rookery.loop.tool import ToolOutput
from rookery.store import machine as transitions
from rookery.store.machine import Tx
from rookery.store.models.usage_ledger import CallStatus, record_call
from rookery.telemetry.log import get_logger
from rookery.worker import billing, commit_shield, error_classification
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.step_preparation import ConnectedModel
from rookery.worker.tasks import TaskExit

if TYPE_CHECKING:
    from rookery.worker.step_actions import StepActions

log = get_logger("worker.compaction")

NOT_STORED = "The summary could not be stored. It will be made again."


class CompactionAction:
    def __init__(self, actions: StepActions) -> None:
        self._actions = actions
        self._services = actions.services
        self._handle = actions.handle
        self._prepared = actions.prepared
        self._step = actions.prepared.step

    async def compact(self, decision: Compact) -> None:
        """Generate and commit a summary.

        The summarizing model is connected here and not during preparation, so that a model that cannot be used fails
        only turns that need a summary.
        """
        actions, prepared, services, chat = self._actions, self._prepared, self._services, self._step.chat
        connected = await self._summary_model()
        is_own = connected.ready.config.id == prepared.connected.ready.config.id
        kept_summary = self._kept_summary(decision)
        if kept_summary is None:
            await services.preparer.check_spend(connected, chat.owner_id)
        call = await prepared.call(connected, purpose=Purpose.COMPACTION)
        fixed = await asyncio.to_thread(_fixed_bytes, call)
        async with actions.attempting() as episode:
            meter = StepMeter()
            step = actions.setup(connected, episode, meter)
            setup = CompactionSetup(
                step=step,
                source=decision.source,
                assessment=prepared.assessment,
                model_config_id=prepared.connected.ready.config.id,
                carry=lambda summary: self._carry(decision, summary, fixed_bytes=fixed),
                budget=Budget(
                    window_tokens=connected.windows.effective,
                    max_output_tokens=call.max_output_tokens or 0,
                    # A refusal by the chat's model says nothing about another model.
                    refused_tokens=self._step.meta.refused_tokens if is_own else None,
                ),
                on_refusal=lambda error, refused, tokens: actions.remember_refusal(
                    connected, error_classification.classify(error), refused, tokens
                ),
                stats=services.stats.calls,
                kept_summary=kept_summary,
                is_other_provider=connected.ready.provider.id != prepared.connected.ready.provider.id,
            )
            try:
                recorded = await actions.recorded_summary(connected)
                with actions.metered(connected, meter, Purpose.COMPACTION), recorded as model:
                    outcome = await compaction.summarize(model, call, setup)
            except (CallFailed, StepFailed) as error:
                is_late = isinstance(error, CallFailed) and error.error.kind is ErrorKind.TIMEOUT
                self._count_failure(connected, decision, error, result="timeout" if is_late else "error")
                raise
            await commit_shield.run_to_end(self._commit_summary(decision, connected, outcome, step))

    def _kept_summary(self, decision: Compact) -> str | None:
        """Return the existing summary if only the user's message follows it, because then there is nothing to
        summarize.

        Return None if the model must be called.
        """
        if decision.source is Source.OVERFLOW and not self._actions.history.has_compactable:
            return boundary_summary(self._step.history.prompt)
        return None

    async def _carry(self, decision: Compact, summary: str, *, fixed_bytes: int) -> Carried:
        """Return the user's message that began the turn. If it exceeds the window, return its beginning and end.

        The full text of a cut message is stored in the workspace, and its path is added. A chat at rest carries no
        message, because its messages are answered.
        """
        if decision.source is Source.MANUAL and not decision.resume:
            return Carried()
        said = current_turn_parts(self._step.history.rows)
        room = self._room(decision, taken_bytes=fixed_bytes + len(summary.encode("utf-8", "replace")))
        fitted = context_overflow.fit(said, files=self._prepared.files, room_bytes=room)
        if fitted is None or (not said and not summary):
            raise StepFailed(_no_room(fixed_bytes, self._prepared.connected))
        kept: dict[int, str] = {}
        for cut in fitted.cuts:
            name = f"message_{self._actions.turn_id() or 0}_{cut.place}"
            token = uuid5(self._step.chat.id, name)
            if (path := await self._prepared.step_tools.keep_result(name, token, ToolOutput(cut.text))) is not None:
                kept[cut.place] = path
        carried = fitted.with_cuts(kept)
        if self._kept_summary(decision) is not None and not self._is_shorter(boundary_parts(summary, carried)):
            # The next request would not be shorter than the refused one.
            raise StepFailed(_no_room(fixed_bytes, self._prepared.connected))
        spilled = tuple(
            Spilled(bytes=len(cut.text.encode("utf-8", "replace")), path=kept.get(cut.place)) for cut in fitted.cuts
        )
        return Carried(carried, spilled)

    def _is_shorter(self, content: tuple[Part, ...]) -> bool:
        """Return whether this content takes fewer bytes of a prompt than the current history."""
        files = self._prepared.files
        told = (row.message for row in self._step.history.prompt if row.message.role is not Role.SYSTEM)
        now = sum(context_overflow.part_bytes(part, files) for message in told for part in message.parts())
        return sum(context_overflow.part_bytes(part, files) for part in content) < now

    def _room(self, decision: Compact, *, taken_bytes: int) -> int | None:
        """Return the number of bytes that the user's message may have after a summary; None if it is not limited."""
        connected = self._prepared.connected
        believed = self._actions.learned.believed.get(connected.ready.config.id)
        budget = Budget(
            window_tokens=believed or connected.windows.effective,
            refused_tokens=self._step.meta.refused_tokens if decision.source is Source.OVERFLOW else None,
        )
        target = context_overflow.target_tokens(
            budget,
            rungs=self._actions.history.compactions.count(Source.OVERFLOW),
            is_guessed=believed is not None or connected.windows.learned_from is LearnedFrom.HALVING,
        )
        return None if target is None else target * BYTES_PER_TOKEN - taken_bytes

    def _count_failure(
        self, connected: ConnectedModel, decision: Compact, error: BaseException, *, result: str
    ) -> None:
        assessment = self._prepared.assessment
        self._services.stats.calls.compacted(connected.model, decision.source, result=result)
        log.warning(
            "compaction_failed",
            source=decision.source,
            tokens=assessment.tokens,
            limit_tokens=assessment.limit_tokens,
            error=str(error) or type(error).__name__,
        )

    async def _commit_summary(
        self, decision: Compact, connected: ConnectedModel, outcome: CompactionOutcome, step: StepSetup
    ) -> None:
        bill = billing.entry(
            self._step.chat,
            connected,
            outcome.usage,
            purpose=Purpose.COMPACTION,
            status=CallStatus.OK,
            runtime_ms=outcome.runtime_ms,
            at=self._services.clock.now(),
        )
        is_asked = outcome.tries > 0
        if is_asked:
            self._services.stats.calls.call_ended(connected.model, bill)

        async def commit(tx: Tx) -> tuple[Chat, bool]:
            await transitions.commit_step(
                tx, outcome.rows, consume_compaction=True, keep_model=self._prepared.fallback is not None
            )
            if is_asked:
                await record_call(tx.conn, bill)
            finished = None if decision.resume else await transitions.finish_turn(tx)
            return tx.chat, finished is not None and finished.promoted is not None

        try:
            chat, is_promoted = await self._handle.update(
                commit, transition=Transition.COMMIT_STEP, attempt=self._actions.attempt
            )
        except Exception as error:
            if is_asked:
                self._services.ledger.record(msgspec.structs.replace(bill, status=CallStatus.INTERRUPTED))
            if not isinstance(error, TaskExit):
                # A lost fence is not a failure of the summary; a database that rejects the rows is.
                compaction.show_failure(step, outcome.call_id, NOT_STORED)
                self._count_failure(connected, decision, error, result="error")
            raise
        self._services.stats.calls.compacted(connected.model, decision.source, result="success")
        if not decision.resume:
            self._actions.tell_finished(chat, TurnEnd.COMPLETE, is_promoted=is_promoted)

    async def _summary_model(self) -> ConnectedModel:
        prepared, chat = self._prepared, self._step.chat
        if prepared.summary.model_config_id == prepared.connected.ready.config.id:
            return prepared.connected
        return await self._services.preparer.connect_choice(
            prepared.summary, owner_id=chat.owner_id, effort=chat.last_reasoning_effort
        )


def _fixed_bytes(call: Call) -> int:
    """Return the size of the system blocks and tools, which every request of the chat contains."""
    system = (message for message in call.prompt.messages if message.role is Role.SYSTEM)
    return summary_prompt.size_bytes(system) + compaction.tools_bytes(call.tools)


def _no_room(fixed_bytes: int, connected: ConnectedModel) -> Classified:
    window = connected.windows.effective
    reads = "an unknown number of" if window is None else f"about {window}"
    return Classified(
        kind=ErrorKind.CONTEXT_OVERFLOW,
        message=(
            f"There is no room for the message: instructions and tools of this chat take about "
            f"{fixed_bytes // BYTES_PER_TOKEN} tokens, and the model reads {reads}. Use a model with a larger window."
        ),
        retryable=False,
        provider=connected.provider_name,
        context_overflow=True,
    )
