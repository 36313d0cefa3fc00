"""Every transition with valid arguments, so that tests can be driven by the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import uuid4

from msgspec.structs import replace

from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.fair_share import WaitingChat
from rookery.domain.chat.messages import ChatId, NewMessage, QueuedMessageId, Role
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.machine_rig import CLIENT_TOOL, FAILED, Rig, assistant, call, calling, text

RETRY = RetryState(attempt=1, delay_ms=1000, error="overloaded", retrying_at=datetime(2030, 1, 1, tzinfo=UTC))

SOMEBODY = WaitingChat(ChatId(uuid4()), 1, datetime(2030, 1, 1, tzinfo=UTC))

Move = Callable[[Rig, Tx], Awaitable[object]]


async def _edit(rig: Rig, tx: Tx) -> object:
    first = next(m for m in await rig.history(tx.chat.id) if m.role == Role.USER)
    return await machine.edit_message(tx, first.id, content=text("hello again"), edited_by=rig.user)


async def _enter(rig: Rig, tx: Tx) -> object:
    # The committed assistant row with its open call is part of the setting, not of the move.
    await machine.message_rows.insert(tx, [machine.message_rows.row_of(calling(call(f"call-{uuid4()}", CLIENT_TOOL)))])
    return await machine.enter_requires_action(tx)


async def _complete(rig: Rig, tx: Tx) -> object:
    pending = await machine.open_calls.dynamic_calls(tx)
    results = [SubmittedResult(each.tool_call_id, '{"output": "red"}') for each in pending]
    return await machine.complete_requires_action(tx, results, submitted_by=rig.user)


async def _ask(rig: Rig, tx: Tx) -> object:
    await machine.message_rows.insert(tx, [machine.message_rows.row_of(calling(call(f"call-{uuid4()}", "read_file")))])
    asked = (await machine.open_calls.turn_calls(tx))[-1:]
    await machine.ask_approvals(tx, [machine.Question(each) for each in asked])
    return asked


_ASKED = """
    INSERT INTO chat_approvals VALUES ($1, $2, '{}')
        ON CONFLICT (chat_id, token) DO UPDATE SET approved_at = NULL, approved_by = NULL
"""


async def _answer(rig: Rig, tx: Tx) -> object:
    # A chat of the rig waits for its client; here it is made to wait for a person, unless it does already.
    if tx.state in (State.A0, State.A1) and not tx.chat.awaits_approval:
        await tx.conn.execute("UPDATE chats SET awaits_approval = true WHERE id = $1", tx.chat.id)
        tx.chat = replace(tx.chat, awaits_approval=True)
        for each in await machine.open_calls.turn_calls(tx):
            token = machine.Question(each).token(tx.chat.id)
            await tx.conn.execute(_ASKED, tx.chat.id, token)
    asked = await machine.open_calls.asked_calls(tx)
    answers = [Answer(tool_call_id=each.tool_call_id, decision=Decision.APPROVE) for each in asked]
    return await machine.answer_approvals(tx, answers, answered_by=rig.user)


async def _first_queued(rig: Rig, tx: Tx) -> QueuedMessageId:
    queue = await machine.queue_rows.list_queue(tx)
    return queue[0].id if queue else QueuedMessageId(0)


async def _delete_queued(rig: Rig, tx: Tx) -> object:
    return await machine.delete_queued_message(tx, await _first_queued(rig, tx))


async def _edit_queued(rig: Rig, tx: Tx) -> object:
    return await machine.edit_queued_message(tx, await _first_queued(rig, tx), content=text("edited"))


async def _promote(rig: Rig, tx: Tx) -> object:
    return await machine.promote_queued_message(tx, await _first_queued(rig, tx))


async def _reorder(rig: Rig, tx: Tx) -> object:
    return await machine.reorder_queue(tx, [row.id for row in reversed(await machine.queue_rows.list_queue(tx))])


def _send(busy: BusyBehavior) -> Move:
    return lambda rig, tx: machine.send_message(tx, rig.message("and one more"), busy)


async def _abandon(rig: Rig, tx: Tx) -> object:
    if tx.chat.runner_id is None:
        await machine.acquire(tx, worker_id=rig.worker, runner_id=uuid4())
    return await machine.abandon(tx)


async def _give_way(rig: Rig, tx: Tx) -> object:
    if tx.chat.runner_id is None:
        await machine.acquire(tx, worker_id=rig.worker, runner_id=uuid4())
    return await machine.give_way(tx, to=SOMEBODY)


MOVES: dict[Transition, Move] = {
    Transition.SET_ARCHIVED: lambda rig, tx: machine.set_archived(tx, not tx.chat.archived),
    Transition.SEND_MESSAGE_QUEUE: _send(BusyBehavior.QUEUE),
    Transition.SEND_MESSAGE_STEER: _send(BusyBehavior.STEER),
    Transition.SEND_MESSAGE_INTERRUPT: _send(BusyBehavior.INTERRUPT),
    Transition.EDIT_MESSAGE: _edit,
    Transition.REQUEST_COMPACTION: lambda rig, tx: machine.request_compaction(tx),
    Transition.DELETE_QUEUED_MESSAGE: _delete_queued,
    Transition.CLEAR_QUEUE: lambda rig, tx: machine.clear_queue(tx),
    Transition.EDIT_QUEUED_MESSAGE: _edit_queued,
    Transition.REORDER_QUEUE: _reorder,
    Transition.PROMOTE_QUEUED_MESSAGE: _promote,
    Transition.INTERRUPT: lambda rig, tx: machine.interrupt(tx),
    Transition.RETRY_TURN: lambda rig, tx: machine.retry_turn(tx),
    Transition.WAKE_PARENT: lambda rig, tx: machine.wake_parent(tx, NewMessage(role=Role.USER, content=text("notice"))),
    Transition.COMPLETE_REQUIRES_ACTION: _complete,
    Transition.ANSWER_APPROVALS: _answer,
    Transition.RECORD_GENERATION_ATTEMPT: lambda rig, tx: machine.record_generation_attempt(tx),
    Transition.RECORD_RETRY_STATE: lambda rig, tx: machine.record_retry_state(tx, RETRY),
    Transition.COMMIT_STEP: lambda rig, tx: machine.commit_step(tx, [assistant("done")]),
    Transition.ENTER_REQUIRES_ACTION: _enter,
    Transition.ASK_APPROVALS: _ask,
    Transition.FINISH_TURN: lambda rig, tx: machine.finish_turn(tx),
    Transition.FINISH_INTERRUPTION: lambda rig, tx: machine.finish_interruption(tx, [assistant("par")]),
    Transition.FINISH_ERROR: lambda rig, tx: machine.finish_error(tx, FAILED),
    Transition.CANCEL_REQUIRES_ACTION: lambda rig, tx: machine.cancel_requires_action(tx),
    Transition.RECONCILE_INVALID_STATE: lambda rig, tx: machine.reconcile_invalid_state(tx),
    Transition.ACQUIRE: lambda rig, tx: machine.acquire(tx, worker_id=rig.worker, runner_id=uuid4()),
    Transition.ABANDON: _abandon,
    Transition.GIVE_WAY: _give_way,
}


async def settings_for(rig: Rig, state: State) -> list[ChatId]:
    """Return chats in `state` that differ in the facts which determine the next state: one or two queued rows, steering
    or not, and whether the owner's account is disabled.
    """
    if state is State.INVALID:
        return [await rig.invalid_chat(), await rig.invalid_chat(queued=1)]
    if not state.has_queue:
        return [await rig.chat(state)]
    found = [await rig.chat(state, queued=queued, steer=steer) for queued in (1, 2) for steer in (False, True)]
    return [*found, await rig.chat(state, owner=await rig.disabled_user())]
