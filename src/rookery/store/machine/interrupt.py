"""Transitions for interrupts and for client tools: stop a turn, save partial output, wait for results of the client.

After an interrupt the model does not continue the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.chat import OWNER_DISABLED
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import Message, NewMessage
from rookery.domain.chat.open_tool_calls import CloseReason, OpenCall, SubmittedResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import subagents
from rookery.store.machine import message_rows, open_calls, queue_rows, transition_update
from rookery.store.machine.bundle import Tx, transition

DYNAMIC_TOOL_TIMEOUT_SECONDS = 300.0

_DEADLINE_PASSED = "SELECT requires_action_deadline_at <= clock_timestamp() FROM chats WHERE id = $1"


_OWNER_IS_ACTIVE = """
    SELECT coalesce((SELECT u.status = 'active' FROM users u WHERE u.id = c.owner_id), true)
      FROM chats c
     WHERE c.id = $1
"""


class Interrupted(msgspec.Struct, frozen=True):
    """The result of an interrupt. `inserted` has the partial output, then closures, then the promoted message, in the
    order of their ids.
    """

    inserted: Sequence[Message] = ()
    promoted: Message | None = None


@transition
async def interrupt(tx: Tx, *, note: str | None = None) -> Interrupted:
    """Ask the worker to stop the turn. A chat in `requires_action` stops immediately, and `note` tells the model
    why.
    """
    source = tx.require(Transition.INTERRUPT)
    if source in (State.R0, State.R1):
        await tx.settle(
            Transition.INTERRUPT,
            f"status = 'interrupting', {transition_update.DROP_COMPACTION}, {transition_update.TOUCH}",
        )
        return Interrupted()
    closed = message_rows.closures(tx, await open_calls.turn_calls(tx), CloseReason.INTERRUPTED_BY_USER, note=note)
    return await _stop(tx, Transition.INTERRUPT, closed)


@transition
async def finish_interruption(tx: Tx, partials: Sequence[NewMessage] = ()) -> Interrupted:
    """Save the partial output and close the open calls. The chat continues with the queue, or is at rest."""
    tx.require(Transition.FINISH_INTERRUPTION)
    saved = await message_rows.insert(tx, [message_rows.row_of(message) for message in partials]) if partials else []
    model, _ = transition_update.model_choice(tx, saved)
    closed = message_rows.closures(tx, await open_calls.turn_calls(tx), CloseReason.INTERRUPTED, model_config_id=model)
    return await _stop(tx, Transition.FINISH_INTERRUPTION, closed, saved=saved)


async def _stop(
    tx: Tx, by: Transition, closed: list[message_rows.Row], *, saved: Sequence[Message] = ()
) -> Interrupted:
    """End the turn and insert the closures. The chat continues with the first queued message, or is at rest.

    If the owner's account is disabled, the queue is kept, and the chat ends with the error `OWNER_DISABLED`.
    """
    if tx.chat.queue_len and not await tx.conn.fetchval(_OWNER_IS_ACTIVE, tx.chat.id):
        inserted = [*saved, *(await message_rows.insert(tx, closed) if closed else [])]
        await tx.settle(
            by,
            f"status = 'error', last_error = $4, requires_action_deadline_at = NULL, {transition_update.REST},"
            f" {transition_update.CHOOSE_MODEL}",
            *transition_update.model_choice(tx, inserted),
            parts.to_jsonb(OWNER_DISABLED),
        )
        return Interrupted(inserted)
    head = await queue_rows.pop_head(tx) if tx.chat.queue_len else None
    pending = [*closed, *([message_rows.promoted_row(head)] if head else [])]
    inserted = [*saved, *(await message_rows.insert(tx, pending) if pending else [])]
    if head is not None:
        await transition_update.settle_running(tx, by, inserted)
        if not tx.chat.is_root:
            # Renewed after the status change, because the trigger of that change reads the old deadline.
            await subagents.renew_deadline(tx.conn, tx.chat.id)
        return Interrupted(inserted, inserted[-1])
    await tx.settle(
        by,
        f"status = 'waiting', requires_action_deadline_at = NULL, {transition_update.REST}, "
        f"{transition_update.CHOOSE_MODEL}",
        *transition_update.model_choice(tx, inserted),
    )
    return Interrupted(inserted)


@transition
async def enter_requires_action(tx: Tx, *, timeout_seconds: float = DYNAMIC_TOOL_TIMEOUT_SECONDS) -> datetime:
    """Wait for results of the client until the deadline, which is returned. The calls are in the last assistant row."""
    tx.require(Transition.ENTER_REQUIRES_ACTION)
    await _pending(tx, Transition.ENTER_REQUIRES_ACTION)
    await tx.settle(
        Transition.ENTER_REQUIRES_ACTION,
        "status = 'requires_action', requires_action_deadline_at = clock_timestamp() + make_interval(secs => $2),"
        f" {transition_update.DROP_COMPACTION}, {transition_update.TOUCH}",
        timeout_seconds,
    )
    deadline = tx.chat.requires_action_deadline_at
    assert deadline is not None
    return deadline


@transition
async def complete_requires_action(
    tx: Tx,
    results: Sequence[SubmittedResult],
    *,
    submitted_by: UUID,
    model_config_id: UUID | None = None,
    suffix: Sequence[NewMessage] = (),
) -> list[Message]:
    """Store the client's results and set the chat to `running`. Each pending call needs one result.

    If the suffix has a user message, the server's own open calls are closed before this message.
    """
    source = tx.require(Transition.COMPLETE_REQUIRES_ACTION)
    if tx.chat.awaits_approval:
        raise TransitionNotAllowed(
            Transition.COMPLETE_REQUIRES_ACTION,
            source,
            "This chat waits for the approval of tool calls, not for results. Answer its questions first.",
            cause="awaits_approval",
        )
    pending = await open_calls.dynamic_calls(tx)
    open_tool_calls.check_results(pending, results)
    answers = open_tool_calls.result_rows(
        pending,
        results,
        created_by=submitted_by,
        model_config_id=model_config_id or tx.chat.last_model_config_id,
        at=tx.clock.now(),
    )
    given = [message_rows.row_of(message) for message in (*answers, *suffix)]
    if any(message_rows.starts_turn(row) for row in given):
        given = message_rows.with_closures(
            tx, given, CloseReason.NEW_USER_MESSAGE, open_before=await open_calls.turn_calls(tx)
        )
    inserted = await message_rows.insert(tx, given)
    await transition_update.settle_running(tx, Transition.COMPLETE_REQUIRES_ACTION, inserted)
    return inserted


@transition
async def cancel_requires_action(tx: Tx) -> list[Message]:
    """Close the pending calls after their deadline, by the database clock, and set the chat to `running`.

    Client calls without a deadline count as expired. Questions without a deadline do not expire.
    """
    tx.require(Transition.CANCEL_REQUIRES_ACTION)
    pending = await _pending(tx, Transition.CANCEL_REQUIRES_ACTION)
    is_passed = await tx.conn.fetchval(_DEADLINE_PASSED, tx.chat.id)
    if is_passed is False or tx.chat.is_parked:
        raise TransitionNotAllowed(
            Transition.CANCEL_REQUIRES_ACTION,
            tx.state,
            "The deadline for the answer has not passed.",
            cause="deadline_not_reached",
        )
    reason = CloseReason.ACTION_TIMED_OUT if is_passed else CloseReason.ACTION_DEADLINE_MISSING
    if tx.chat.awaits_approval:
        reason = CloseReason.APPROVAL_TIMED_OUT
    inserted = await message_rows.insert(tx, message_rows.closures(tx, pending, reason))
    await transition_update.settle_running(tx, Transition.CANCEL_REQUIRES_ACTION, inserted)
    return inserted


async def _pending(tx: Tx, by: Transition) -> tuple[OpenCall, ...]:
    pending = await (open_calls.asked_calls(tx) if tx.chat.awaits_approval else open_calls.dynamic_calls(tx))
    if not pending:
        raise TransitionNotAllowed(by, tx.state, "The chat waits for no tool call.", cause="no_open_calls")
    return pending
