"""Transitions for the queue: delete, clear, edit, reorder and promote queued messages.

An open editor in a client holds no lock. If the message is promoted while the user edits it, the edit is refused. Only
`promote_queued_message` changes `updated_at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat import parts
from rookery.domain.chat.errors import QueueChanged, QueuedMessageNotFound
from rookery.domain.chat.messages import CONTENT_VERSION, Effort, Message, QueuedMessage, QueuedMessageId
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.parts import Part
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import Transition
from rookery.store.machine import message_rows, queue_rows, transition_update
from rookery.store.machine.bundle import Tx, transition

_EDIT = f"""
    UPDATE chat_queued_messages
       SET content = $3,
           content_version = $4,
           model_config_id = coalesce($5, model_config_id),
           reasoning_effort = CASE WHEN $6 THEN $7 ELSE reasoning_effort END
     WHERE chat_id = $1 AND id = $2
    RETURNING {queue_rows.QUEUE_COLUMNS}
"""

_REORDER = """
    UPDATE chat_queued_messages q
       SET position = o.position
      FROM unnest($2::bigint[]) WITH ORDINALITY AS o (id, position)
     WHERE q.chat_id = $1 AND q.id = o.id
"""

# A position below the lowest one. It may be negative.
_MOVE_TO_HEAD = f"""
    UPDATE chat_queued_messages
       SET position = (SELECT min(q.position) - 1 FROM chat_queued_messages q WHERE q.chat_id = $1)
     WHERE chat_id = $1 AND id = $2
    RETURNING {queue_rows.QUEUE_COLUMNS}
"""


class Promoted(msgspec.Struct, frozen=True):
    """The result of a promotion.

    If the message went into the history, `inserted` holds the closures of open tool calls, followed by the message.
    """

    queued: QueuedMessage
    inserted: Sequence[Message] = ()
    reordered: bool = False


@transition
async def delete_queued_message(tx: Tx, queued_id: QueuedMessageId) -> QueuedMessage:
    tx.require(Transition.DELETE_QUEUED_MESSAGE)
    deleted = await queue_rows.delete_queued(tx, queued_id)
    await tx.reload(Transition.DELETE_QUEUED_MESSAGE)
    return deleted


@transition
async def clear_queue(tx: Tx) -> list[QueuedMessage]:
    tx.require(Transition.CLEAR_QUEUE)
    deleted = await queue_rows.delete_queue(tx)
    await tx.reload(Transition.CLEAR_QUEUE)
    return deleted


@transition
async def edit_queued_message(
    tx: Tx,
    queued_id: QueuedMessageId,
    *,
    content: tuple[Part, ...],
    model_config_id: UUID | None = None,
    reasoning_effort: Effort | UnsetType | None = UNSET,
) -> QueuedMessage:
    """Replace the content of a queued message, and its model and effort if given. An effort of None removes it."""
    tx.require(Transition.EDIT_QUEUED_MESSAGE)
    queue_rows.require_id(queued_id)
    if named := parts.file_ids(content):
        await message_rows.link_files(tx, named)
    is_given = not isinstance(reasoning_effort, UnsetType)
    record = await tx.conn.fetchrow(
        _EDIT,
        tx.chat.id,
        queued_id,
        parts.encode(content),
        CONTENT_VERSION,
        model_config_id,
        is_given,
        reasoning_effort if is_given else None,
    )
    if record is None:
        raise QueuedMessageNotFound(queued_id)
    await tx.reload(Transition.EDIT_QUEUED_MESSAGE)
    return queue_rows.queued_of(record)


@transition
async def reorder_queue(tx: Tx, queued_ids: Sequence[QueuedMessageId]) -> list[QueuedMessage]:
    """Reorder the queue. Raises `QueueChanged` unless the ids are exactly those of the queued messages."""
    tx.require(Transition.REORDER_QUEUE)
    queue = await queue_rows.list_queue(tx)
    current = [row.id for row in queue]
    if sorted(current) != sorted(queued_ids):
        raise QueueChanged(queue)
    if current != list(queued_ids):
        await tx.conn.execute(_REORDER, tx.chat.id, list(queued_ids))
        queue = await queue_rows.list_queue(tx)
    await tx.reload(Transition.REORDER_QUEUE)
    return queue


@transition
async def promote_queued_message(tx: Tx, queued_id: QueuedMessageId) -> Promoted:
    """Start a turn with a queued message. If the chat runs, interrupt it and move the message to the head."""
    source = tx.require(Transition.PROMOTE_QUEUED_MESSAGE)
    if source in (State.E1, State.A1):
        queued = await queue_rows.delete_queued(tx, queued_id)
        by, reason = Transition.PROMOTE_QUEUED_MESSAGE, CloseReason.QUEUED_MESSAGE
        return Promoted(queued, await transition_update.start_turn(tx, by, message_rows.promoted_row(queued), reason))
    queued, reordered = await _move_to_head(tx, queued_id)
    interrupt = (
        f"status = 'interrupting', {transition_update.DROP_COMPACTION}, " if tx.chat.status == Status.RUNNING else ""
    )
    await tx.settle(Transition.PROMOTE_QUEUED_MESSAGE, interrupt + transition_update.TOUCH)
    return Promoted(queued, reordered=reordered)


async def _move_to_head(tx: Tx, queued_id: QueuedMessageId) -> tuple[QueuedMessage, bool]:
    queue_rows.require_id(queued_id)
    queue = await queue_rows.list_queue(tx)
    if queue and queue[0].id == queued_id:
        return queue[0], False
    record = await tx.conn.fetchrow(_MOVE_TO_HEAD, tx.chat.id, queued_id)
    if record is None:
        raise QueuedMessageNotFound(queued_id)
    return queue_rows.queued_of(record), True
