"""The transition that edits a user message: it deletes the message and all later ones, and starts a new turn."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.errors import EditTargetNotUser, MessageNotFound
from rookery.domain.chat.messages import (
    Effort,
    Message,
    MessageId,
    NewMessage,
    QueuedMessageId,
    Role,
    Visibility,
    is_id,
)
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.parts import Part
from rookery.domain.chat.transitions import Transition
from rookery.store.machine import message_rows, open_calls, queue_rows, transition_update
from rookery.store.machine.bundle import Tx, transition
from rookery.store.machine.message_rows import Row
from rookery.telemetry.tracing import spans

_TARGET = """
    SELECT role, visibility, model_config_id, reasoning_effort
      FROM chat_messages
     WHERE chat_id = $1 AND id = $2 AND NOT deleted AND NOT compressed AND visibility <> 'model'
"""

# Deletes the end of the history permanently; streams rely on this. Hidden and compressed rows are deleted too. If a
# compaction boundary is deleted, the rows before it are in the prompt again.
_CUT = """
    UPDATE chat_messages
       SET deleted = true
     WHERE chat_id = $1 AND id >= $2 AND NOT deleted
    RETURNING id, visibility
"""


class Edited(msgspec.Struct, frozen=True):
    """The result of an edit. `deleted_ids` has only ids of visible messages."""

    replacement: Message
    closures: Sequence[Message]
    suffix: Sequence[Message]
    deleted_ids: list[MessageId]
    deleted_queued_ids: list[QueuedMessageId]


@transition
async def edit_message(
    tx: Tx,
    message_id: MessageId,
    *,
    content: tuple[Part, ...],
    edited_by: UUID,
    model_config_id: UUID | None = None,
    reasoning_effort: Effort | None = None,
    suffix: Sequence[NewMessage] = (),
) -> Edited:
    """Delete the message and all later ones, insert its replacement, clear the queue, and start a turn.

    A running step is not stored, because the edit changes the history version and the fence of its commit fails.
    """
    tx.require(Transition.EDIT_MESSAGE)
    # The driver raises an error for an id that is no bigint. For the caller, such a message is missing.
    target = await tx.conn.fetchrow(_TARGET, tx.chat.id, message_id) if is_id(message_id) else None
    if target is None:
        raise MessageNotFound(message_id)
    if target["role"] != Role.USER:
        raise EditTargetNotUser(message_id)
    cut = await tx.conn.fetch(_CUT, tx.chat.id, message_id)
    await tx.remove_records(delete_from=message_id)
    replacement = Row(
        role=Role.USER,
        content=parts.encode(content),
        visibility=Visibility(target["visibility"]),
        created_by=edited_by,
        model_config_id=model_config_id or target["model_config_id"],
        reasoning_effort=reasoning_effort or _effort(target["reasoning_effort"]),
        files=parts.file_ids(content),
        traceparent=spans.exported_traceparent(),
    )
    given = [replacement, *(message_rows.row_of(message) for message in suffix)]
    left_open = await open_calls.turn_calls(tx)
    inserted = await message_rows.insert(
        tx, message_rows.with_closures(tx, given, CloseReason.MESSAGE_EDITED, open_before=left_open)
    )
    deleted_queue = await queue_rows.delete_queue(tx) if tx.chat.queue_len else []
    await transition_update.settle_running(tx, Transition.EDIT_MESSAGE, inserted)
    return Edited(
        replacement=inserted[len(left_open)],
        closures=inserted[: len(left_open)],
        suffix=inserted[len(left_open) + 1 :],
        deleted_ids=sorted(row["id"] for row in cut if row["visibility"] != Visibility.MODEL),
        deleted_queued_ids=[row.id for row in deleted_queue],
    )


def _effort(value: str | None) -> Effort | None:
    return None if value is None else Effort(value)
