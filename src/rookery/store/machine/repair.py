"""Repair of a chat in an invalid state (after a restore, manual SQL, or with a status of a future version)."""

from __future__ import annotations

from rookery.domain.chat import parts
from rookery.domain.chat.chat import LastError
from rookery.domain.chat.messages import Message
from rookery.domain.chat.tool_calls import CloseReason
from rookery.domain.chat.transitions import Transition
from rookery.store.machine import message_rows, open_calls, settlement
from rookery.store.machine.bundle import Tx, transition

REPAIRED = LastError(
    message="This chat was in a state that should not exist and has been repaired. Send or edit a message to continue.",
    kind="invalid_state",
    retryable=False,
)


@transition
async def reconcile_invalid_state(tx: Tx, error: LastError = REPAIRED) -> list[Message]:
    """Put an INVALID chat into `error`, unarchived, its queue intact, its client calls answered."""
    tx.require(Transition.RECONCILE_INVALID_STATE)
    closed = message_rows.closures(tx, await open_calls.dynamic_calls(tx), CloseReason.INVALID_STATE)
    inserted = await message_rows.insert(tx, closed) if closed else []
    await tx.settle(
        Transition.RECONCILE_INVALID_STATE,
        "status = 'error', last_error = $2, archived = false, archived_at = NULL, requires_action_deadline_at = NULL,"
        f" {settlement.DROP_COMPACTION}, {settlement.TOUCH}",
        parts.to_jsonb(error),
    )
    return inserted
