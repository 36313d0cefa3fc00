"""The compaction action: replaces the history by a summary, followed by the user's whole unanswered message.

A part of `StepActions`, which owns attempts, fences and bills. Each run is at most one commit of three rows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid5

import msgspec

from rookery.domain.chat import overflow, summary_prompt
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.compaction import Source, Spilled, boundary_parts, boundary_summary, current_turn_parts
from rookery.domain.chat.decision import Compact, TurnEnd
from rookery.domain.chat.messages import Role
from rookery.domain.chat.overflow import Budget
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
from rookery.store.models.usage import CallStatus, record_call
from rookery.telemetry.log import get_logger
from rookery.worker import billing, commit_shield, error_classification
from rookery.worker.error_classification import Classified, StepFailed
from rookery.worker.prepare import Asked
from rookery.worker.tasks import TaskExit

if TYPE_CHECKING:
    from rookery.worker.step_actions import StepActions

log = get_logger("worker.compaction")

NOT_STORED = "The summary could not be stored. It will be made again."


class CompactionAct:
    def __init__(self, acts: StepActions) -> None:
        self._acts = acts
        self._parts = acts.parts
        self._handle = acts.handle
        self._prepared = acts.prepared
        self._step = acts.prepared.step

    async def compact(self, decision: Compact) -> None:
        """Make and commit a summary.

        Its model is connected here and not during preparation: an unusable one must not fail turns that do not need it.
        """
        acts, prepared, parts, chat = self._acts, self._prepared, self._parts, self._step.chat
        asked = await self._summariser()
        is_own = asked.ready.config.id == prepared.asked.ready.config.id
        kept_summary = self._kept_summary(decision)
        if kept_summary is None:
            await parts.preparer.check_spend(asked, chat.owner_id)
        call = await prepared.call(asked, purpose=Purpose.COMPACTION)
        fixed = await asyncio.to_thread(_fixed_bytes, call)
        async with acts.attempting() as episode:
            meter = StepMeter()
            step = acts.setup(asked, episode, meter)
            setup = CompactionSetup(
                step=step,
                source=decision.source,
                assessment=prepared.assessment,
                model_config_id=prepared.asked.ready.config.id,
                carry=lambda summary: self._carry(decision, summary, fixed_bytes=fixed),
                budget=Budget(
                    window_tokens=asked.windows.effective,
                    max_output_tokens=call.max_output_tokens or 0,
                    # A refusal by the chat's model reveals nothing about another model.
                    refused_tokens=self._step.meta.refused_tokens if is_own else None,
                ),
                on_refusal=lambda error, refused, tokens: acts.remember_refusal(
                    asked, error_classification.classify(error), refused, tokens
                ),
                stats=parts.stats.calls,
                kept_summary=kept_summary,
                is_other_provider=asked.ready.provider.id != prepared.asked.ready.provider.id,
            )
            try:
                with acts.metered(asked, meter, Purpose.COMPACTION):
                    outcome = await compaction.summarize(asked.model, call, setup)
            except (CallFailed, StepFailed) as error:
                is_late = isinstance(error, CallFailed) and error.error.kind is ErrorKind.TIMEOUT
                self._count_failure(asked, decision, error, result="timeout" if is_late else "error")
                raise
            await commit_shield.to_the_end(self._commit_summary(decision, asked, outcome, step))

    def _kept_summary(self, decision: Compact) -> str | None:
        """Return the existing summary if only the user's own message came after it: there is nothing to summarize.

        None: call the model.
        """
        if decision.source is Source.OVERFLOW and not self._acts.history.has_compactable:
            return boundary_summary(self._step.history.prompt)
        return None

    async def _carry(self, decision: Compact, summary: str, *, fixed_bytes: int) -> Carried:
        """Return the user's message that began the turn, cut to its ends if the model cannot read all of it.

        The full text of a cut message is stored, and its path is included. A chat at rest has nothing to carry: its
        messages are answered.
        """
        if decision.source is Source.MANUAL and not decision.resume:
            return Carried()
        said = current_turn_parts(self._step.history.rows)
        room = self._room(decision, taken_bytes=fixed_bytes + len(summary.encode("utf-8", "replace")))
        fitted = overflow.fit(said, files=self._prepared.files, room_bytes=room)
        if fitted is None or (not said and not summary):
            raise StepFailed(_no_room(fixed_bytes, self._prepared.asked))
        kept: dict[int, str] = {}
        for cut in fitted.cuts:
            name = f"message_{self._acts.turn_id() or 0}_{cut.place}"
            token = uuid5(self._step.chat.id, name)
            if (path := await self._prepared.step_tools.keep_result(name, token, ToolOutput(cut.text))) is not None:
                kept[cut.place] = path
        carried = fitted.with_cuts(kept)
        if self._kept_summary(decision) is not None and not self._is_shorter(boundary_parts(summary, carried)):
            # The next request would be no shorter than the one that was refused.
            raise StepFailed(_no_room(fixed_bytes, self._prepared.asked))
        spilled = tuple(
            Spilled(bytes=len(cut.text.encode("utf-8", "replace")), path=kept.get(cut.place)) for cut in fitted.cuts
        )
        return Carried(carried, spilled)

    def _is_shorter(self, content: tuple[Part, ...]) -> bool:
        """Return whether this takes less of a prompt than the present history."""
        files = self._prepared.files
        told = (row.message for row in self._step.history.prompt if row.message.role is not Role.SYSTEM)
        now = sum(overflow.part_bytes(part, files) for message in told for part in message.parts())
        return sum(overflow.part_bytes(part, files) for part in content) < now

    def _room(self, decision: Compact, *, taken_bytes: int) -> int | None:
        """Return how many bytes the user's message may have after a summary."""
        asked = self._prepared.asked
        believed = self._acts.learned.believed.get(asked.ready.config.id)
        budget = Budget(
            window_tokens=believed or asked.windows.effective,
            refused_tokens=self._step.meta.refused_tokens if decision.source is Source.OVERFLOW else None,
        )
        target = overflow.target_tokens(
            budget,
            rungs=self._acts.history.compactions.count(Source.OVERFLOW),
            is_guessed=believed is not None or asked.windows.learned_from is LearnedFrom.HALVING,
        )
        return None if target is None else target * BYTES_PER_TOKEN - taken_bytes

    def _count_failure(self, asked: Asked, decision: Compact, error: BaseException, *, result: str) -> None:
        assessment = self._prepared.assessment
        self._parts.stats.calls.compacted(asked.model, decision.source, result=result)
        log.warning(
            "compaction_failed",
            source=decision.source,
            tokens=assessment.tokens,
            limit_tokens=assessment.limit_tokens,
            error=str(error) or type(error).__name__,
        )

    async def _commit_summary(
        self, decision: Compact, asked: Asked, outcome: CompactionOutcome, step: StepSetup
    ) -> None:
        bill = billing.entry(
            self._step.chat,
            asked,
            outcome.usage,
            purpose=Purpose.COMPACTION,
            status=CallStatus.OK,
            runtime_ms=outcome.runtime_ms,
            at=self._parts.clock.now(),
        )
        is_asked = outcome.tries > 0
        if is_asked:
            self._parts.stats.calls.call_ended(asked.model, bill)

        async def commit(tx: Tx) -> tuple[Chat, bool]:
            await transitions.commit_step(
                tx, outcome.rows, consume_compaction=True, keep_model=self._prepared.stand_in is not None
            )
            if is_asked:
                await record_call(tx.conn, bill)
            finished = None if decision.resume else await transitions.finish_turn(tx)
            return tx.chat, finished is not None and finished.promoted is not None

        try:
            chat, is_promoted = await self._handle.update(
                commit, transition=Transition.COMMIT_STEP, attempt=self._acts.attempt
            )
        except Exception as error:
            if is_asked:
                self._parts.ledger.record(msgspec.structs.replace(bill, status=CallStatus.INTERRUPTED))
            if not isinstance(error, TaskExit):
                # A chat that was moved on by another writer is not a failure; a database that rejects the rows is.
                compaction.show_failure(step, outcome.call_id, NOT_STORED)
                self._count_failure(asked, decision, error, result="error")
            raise
        self._parts.stats.calls.compacted(asked.model, decision.source, result="success")
        if not decision.resume:
            self._acts.tell_finished(chat, TurnEnd.COMPLETE, is_promoted=is_promoted)

    async def _summariser(self) -> Asked:
        prepared, chat = self._prepared, self._step.chat
        if prepared.summary.model_config_id == prepared.asked.ready.config.id:
            return prepared.asked
        return await self._parts.preparer.ask_choice(
            prepared.summary, owner_id=chat.owner_id, effort=chat.last_reasoning_effort
        )


def _fixed_bytes(call: Call) -> int:
    """Return the size of what every request of the chat contains: system blocks and tools."""
    system = (message for message in call.prompt.messages if message.role is Role.SYSTEM)
    return summary_prompt.size_bytes(system) + compaction.tools_bytes(call.tools)


def _no_room(fixed_bytes: int, asked: Asked) -> Classified:
    window = asked.windows.effective
    reads = "an unknown number of" if window is None else f"about {window}"
    return Classified(
        kind=ErrorKind.CONTEXT_OVERFLOW,
        message=(
            f"There is no room for the message: instructions and tools of this chat take about "
            f"{fixed_bytes // BYTES_PER_TOKEN} tokens, and the model reads {reads}. Use a model with a larger window."
        ),
        retryable=False,
        provider=asked.provider_name,
        context_overflow=True,
    )
