"""The traces of turns: one span `invoke_agent` per turn and replica, which is the parent of all work of the turn.

A turn is identified by the message that began it. Its span is the first of a trace, because a turn may outlive the
request that started it, and has a link to that request. If the turn continues on another replica, or after a wait for
its client or user, the next span begins another trace with a link to the previous one.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.history import History
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.chats import turn_traces
from rookery.store.chats.step_reads import Step
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.telemetry.log import get_logger
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import NO_SPAN, Active, Span
from rookery.worker.follow_up_work import FollowUpWork

log = get_logger("worker.turn_traces")

# Outcomes of spans whose turn has not ended.
RELEASED = "released"
SUPERSEDED = "superseded"
REQUIRES_ACTION = "requires_action"

COMPACT = "compact"
_DEFAULT_AGENT = "default"
# The limit of the query for the links of a turn. The turn does not wait for it.
LINK_SECONDS = 10.0


class _OpenTurn(msgspec.Struct, frozen=True):
    """An open turn's trace. `links_known` is set once its links have been determined, even if there are none."""

    trigger_id: MessageId | None
    span: Span
    links_known: asyncio.Event


class TurnTraces:
    """The open spans of the turns that this replica runs, at most one per chat. Without tracing, there are none."""

    def __init__(self, replica_id: UUID, *, pool: asyncpg.Pool, inflight: FollowUpWork) -> None:
        self._replica_id = replica_id
        self._pool = pool
        self._inflight = inflight
        self._open: dict[ChatId, _OpenTurn] = {}

    def __len__(self) -> int:
        return len(self._open)

    def resume(self, chat_id: ChatId) -> Active:
        """Make the span of the chat's open turn current, for a `with` block. Do nothing if there is none."""
        turn = self._open.get(chat_id)
        return spans.active(NO_SPAN if turn is None else turn.span)

    def begin(self, step: Step, history: History) -> Active:
        """Make the span of this turn current, for a `with` block. It is started with the first step of the turn."""
        if not spans.is_on():
            return spans.active(NO_SPAN)
        chat_id = step.chat.id
        trigger_id = None if history.begun_by is None else history.begun_by.id
        turn = self._open.get(chat_id)
        if turn is None or turn.trigger_id != trigger_id:
            self.end(chat_id, SUPERSEDED)
            turn = self._open[chat_id] = _OpenTurn(trigger_id, self._start(step, trigger_id), asyncio.Event())
            self._start_linking(chat_id, turn)
        return spans.active(turn.span)

    def end(self, chat_id: ChatId, outcome: str, *, error_type: str | None = None) -> None:
        """End the span of the chat's open turn, if there is one. With an `error_type`, the turn has failed."""
        turn = self._open.pop(chat_id, None)
        if turn is None:
            return
        turn.span.set({names.OUTCOME: outcome})
        if error_type is not None:
            turn.span.fail(error_type)
        if turn.links_known.is_set() or self._inflight.is_closed:
            turn.span.end()
        else:
            self._inflight.start(lambda: _end_linked(turn), name="turn-trace", seconds=LINK_SECONDS)

    def recorded(self, chat_id: ChatId, run_id: UUID) -> None:
        """Add the debug run that records the chat's open turn."""
        if (turn := self._open.get(chat_id)) is not None:
            turn.span.set({names.DEBUG_RUN_ID: str(run_id)})

    def _start_linking(self, chat_id: ChatId, turn: _OpenTurn) -> None:
        context = turn.span.context
        if turn.trigger_id is None or context is None or not turn.span.is_open:
            turn.links_known.set()
            return
        self._inflight.start(lambda: self._link(chat_id, turn), name="turn-links", seconds=LINK_SECONDS)

    async def _link(self, chat_id: ChatId, turn: _OpenTurn) -> None:
        """Store the trace of the turn, and link it to the request that sent its message and to its previous trace."""
        assert turn.trigger_id is not None
        assert turn.span.context is not None
        own = turn.span.context.traceparent
        try:
            async with self._pool.acquire() as conn:
                found = await turn_traces.replace_turn_trace(conn, chat_id, turn.trigger_id, traceparent=own)
            for header in (found.request, found.turn):
                if (context := spans.parse_traceparent(header)) is not None:
                    turn.span.link(context)
        except DATABASE_ERRORS as error:
            log.info("turn_not_linked", chat_id=chat_id, error=str(error) or type(error).__name__)
        finally:
            turn.links_known.set()

    def _start(self, step: Step, trigger_id: int | None) -> Span:
        chat, agent = step.chat, _agent_name(step)
        is_turn = chat.compaction_requested_at is None or chat.compaction_resume
        return spans.start_root(
            # A summary of a chat at rest is not a turn.
            f"{names.INVOKE_AGENT if is_turn else COMPACT} {agent}",
            attributes={
                names.OPERATION: names.INVOKE_AGENT if is_turn else None,
                names.AGENT_NAME: agent,
                names.CONVERSATION_ID: str(chat.id),
                names.ROOT_CHAT_ID: str(chat.root_chat_id or chat.id),
                names.TRIGGER_MESSAGE_ID: trigger_id,
                names.REPLICA_ID: str(self._replica_id),
            },
        )


async def _end_linked(turn: _OpenTurn) -> None:
    try:
        await turn.links_known.wait()
    finally:
        turn.span.end()


def _agent_name(step: Step) -> str:
    """Return the kind of a subagent, or the mode of the chat."""
    meta = step.meta
    if meta.agent is not None:
        return meta.agent.kind
    return "plan" if meta.plan_mode else meta.mode or _DEFAULT_AGENT
