"""The transition that sends a message: it is inserted into the history or into the queue."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.domain.chat.messages import ChatId, Message, MessageId, NewQueuedMessage, QueuedMessage
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store.db.pool import Connection
from rookery.store.machine import message_rows, queue_rows, transition_update
from rookery.store.machine.bundle import Tx, transition

_FIND_MESSAGE = "SELECT id FROM chat_messages WHERE chat_id = $1 AND client_id = $2"
_FIND_QUEUED = f"SELECT {queue_rows.QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = $1 AND client_id = $2"


class Sent(msgspec.Struct, frozen=True):
    """The result of a send. `inserted` includes closures, because clients that resume by message id need them.

    `repeats` is set if the history already has a message with this client id; in this case nothing was written.
    """

    inserted: Sequence[Message] = ()
    queued: QueuedMessage | None = None
    repeats: MessageId | None = None


@transition
async def send_message(tx: Tx, message: NewQueuedMessage, busy: BusyBehavior) -> Sent:
    """Insert the message if the chat is at rest. If it is busy, queue the message, and interrupt the turn if requested.

    A message that interrupts runs next: immediately if no turn has to be stopped, otherwise from the head of the queue.
    A message whose `client_id` was sent before is not sent again, in any state of the chat.
    """
    if message.client_id is not None and (first := await find_sent(tx.conn, tx.chat.id, client_id=message.client_id)):
        return first
    source = tx.require(busy.transition)
    match source:
        case State.W | State.E0:
            return await _insert(tx, message, busy.transition, CloseReason.NEW_USER_MESSAGE)
        case State.E1 if busy is BusyBehavior.INTERRUPT:
            return await _insert(tx, message, busy.transition, CloseReason.NEW_USER_MESSAGE)
        case State.E1:
            return await _resume_backlog(tx, message, busy)
        case State.A0 | State.A1 if busy is BusyBehavior.INTERRUPT:
            return await _insert(tx, message, busy.transition, CloseReason.INTERRUPTED_BY_MESSAGE)
        case _:
            return await _enqueue(tx, message, busy)


async def find_sent(conn: Connection, chat_id: ChatId, *, client_id: str) -> Sent | None:
    """Return the result of the message with this client id; None if none was sent."""
    if (message_id := await conn.fetchval(_FIND_MESSAGE, chat_id, client_id)) is not None:
        return Sent(repeats=message_id)
    if (record := await conn.fetchrow(_FIND_QUEUED, chat_id, client_id)) is not None:
        return Sent(queued=queue_rows.queued_of(record))
    return None


async def _insert(tx: Tx, message: NewQueuedMessage, by: Transition, reason: CloseReason) -> Sent:
    return Sent(await transition_update.start_turn(tx, by, message_rows.user_row(message), reason))


async def _resume_backlog(tx: Tx, message: NewQueuedMessage, busy: BusyBehavior) -> Sent:
    # Pop before append, so that a full queue accepts the message.
    head = await queue_rows.pop_head(tx)
    queued = await queue_rows.append(tx, message, steer=busy is BusyBehavior.STEER)
    inserted = await transition_update.start_turn(
        tx, busy.transition, message_rows.promoted_row(head), CloseReason.QUEUED_MESSAGE
    )
    return Sent(inserted, queued)


async def _enqueue(tx: Tx, message: NewQueuedMessage, busy: BusyBehavior) -> Sent:
    queue_rows.require_room(tx)
    if busy is BusyBehavior.INTERRUPT:
        queued = await queue_rows.prepend(tx, message)
    else:
        queued = await queue_rows.append(tx, message, steer=busy is BusyBehavior.STEER)
    if busy is BusyBehavior.INTERRUPT and tx.chat.status == Status.RUNNING:
        await tx.settle(
            busy.transition, f"status = 'interrupting', {transition_update.DROP_COMPACTION}, {transition_update.TOUCH}"
        )
    else:
        await tx.settle(busy.transition, transition_update.TOUCH)
    return Sent(queued=queued)
