"""The UPDATE that ends a transition: assignments that transitions share, and statements that also insert a message."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from uuid import UUID

from rookery.domain.chat.messages import Message, Role
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import subagents
from rookery.store.machine import message_rows, open_calls
from rookery.store.machine.bundle import CHAT_COLUMNS, Tx
from rookery.store.machine.message_rows import Row

# Assignments of the UPDATE.
TOUCH = "updated_at = clock_timestamp()"
DROP_COMPACTION = "compaction_requested_at = NULL, compaction_resume = false"
# A chat at rest makes no attempts, so its retry state is cleared.
REST = f"retry_state = NULL, {DROP_COMPACTION}, {TOUCH}"
CHOOSE_MODEL = "last_model_config_id = $2, last_reasoning_effort = $3"
RUN = f"status = 'running', last_error = NULL, requires_action_deadline_at = NULL, {DROP_COMPACTION}, {TOUCH}"

# Inserts a message and ends its transition in one round trip. The history version and the attempt are set here, so that
# the returned row is final. The trigger, which runs after the statement, changes nothing.
_INSERT_AND_SETTLE = f"""
      WITH inserted AS ({{insert}})
    UPDATE chats
       SET history_version = snapshot_version,
           generation_attempt = 0,
           last_model_config_id = coalesce($8, last_model_config_id),
           last_reasoning_effort = coalesce($9, last_reasoning_effort),
           {{assignments}}
      FROM inserted
     WHERE chats.id = $1
    RETURNING {CHAT_COLUMNS}, message_id, inserted_at
"""

_START_TURN = _INSERT_AND_SETTLE.format(
    insert=message_rows.INSERT_MESSAGE.format(condition=open_calls.NOTHING_OPEN), assignments=RUN
)


def model_choice(tx: Tx, messages: Sequence[Message]) -> tuple[UUID, str | None]:
    """Return the model and effort that the chat has after these messages.

    Each is the last value that a message sets, or the chat's current value if none sets it.
    """
    model, effort = tx.chat.last_model_config_id, tx.chat.last_reasoning_effort
    for message in messages:
        model = message.model_config_id or model
        effort = message.reasoning_effort or effort
    return model, effort


async def insert_settling(tx: Tx, by: Transition, row: Row, assignments: str) -> Message:
    """Insert one row and end the transition, in one statement."""
    if row.files:
        await message_rows.link_files(tx, row.files)
    record = await tx.settle_by(
        by, _settling(message_rows.statement_of(row), assignments), *message_rows.arguments(tx.chat.id, row)
    )
    assert record is not None
    return message_rows.message_of(tx.chat, row, *record[-2:])


@functools.cache
def _settling(insert_statement: str, assignments: str) -> str:
    return _INSERT_AND_SETTLE.format(insert=insert_statement, assignments=assignments)


async def start_turn(tx: Tx, by: Transition, row: Row, reason: CloseReason) -> list[Message]:
    """End a transition that starts a turn: close all open calls, insert the user message, set `running`.

    Returns the closures, then the message. Providers refuse a prompt that has a call without a result.
    """
    assert row.role is Role.USER
    if not tx.chat.is_root:
        await subagents.renew_deadline(tx.conn, tx.chat.id)
    if row.files:
        await message_rows.link_files(tx, row.files)
    record = await tx.settle_by(by, _START_TURN, *message_rows.arguments(tx.chat.id, row))
    if record is not None:
        return [message_rows.message_of(tx.chat, row, *record[-2:])]
    inserted = await message_rows.insert(tx, [*message_rows.closures(tx, await open_calls.turn_calls(tx), reason), row])
    await settle_running(tx, by, inserted)
    return inserted


async def settle_running(tx: Tx, by: Transition, inserted: Sequence[Message]) -> None:
    """End a transition that sets the chat to `running`. Clears the error and the deadline, and sets the model."""
    model, effort = model_choice(tx, inserted)
    await tx.settle(by, f"{RUN}, {CHOOSE_MODEL}", model, effort)
