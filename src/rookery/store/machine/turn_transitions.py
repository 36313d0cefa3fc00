"""Transitions of a turn: attempts, steps, its end, its repetition, and the repair of invalid states.

A worker passes its fence (`ChatMachine.update(..., fence=...)`), so stale work is never committed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.chat import LastError, RetryState
from rookery.domain.chat.errors import InvalidInput, NothingToCompact, TransitionNotAllowed
from rookery.domain.chat.messages import Message, NewMessage, Role
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import Transition
from rookery.store.machine import message_rows, open_calls, queue_rows, transition_update
from rookery.store.machine.bundle import Tx, transition

# The chat is given as a range: see store/chats/messages.py. System notices count neither as questions nor as answers.
_LAST_LIVE_ROLE = """
    SELECT role
      FROM chat_messages
     WHERE chat_id >= $1 AND chat_id <= $1 AND NOT deleted AND NOT compressed
       AND role IN ('user', 'assistant', 'tool')
     ORDER BY chat_id DESC, id DESC
     LIMIT 1
"""

# True if there is a live assistant row after the newest boundary, so that there is something to compact.
_HAS_COMPACTABLE = """
    SELECT coalesce((
             SELECT m.id
               FROM chat_messages m
              WHERE m.chat_id >= $1 AND m.chat_id <= $1
                AND m.role = 'assistant'
                AND NOT m.deleted
                AND NOT m.compressed
              ORDER BY m.chat_id, m.role, m.id DESC
              LIMIT 1), 0)
         > coalesce((
             SELECT b.id
               FROM chat_messages b
              WHERE b.chat_id = $1 AND b.compressed AND b.visibility = 'model' AND NOT b.deleted
              ORDER BY b.id DESC
              LIMIT 1), 0)
"""

# Starts a turn without a new message. The history version changes, so attempts are counted from zero and do not reuse
# the key of an earlier episode. The owner is removed, so that a hint is published and any worker can take the chat.
_RESTART_TURN = (
    "status = 'running', last_error = NULL, worker_id = NULL, runner_id = NULL,"
    f" history_version = snapshot_version, generation_attempt = 0, {transition_update.TOUCH}"
)
REPAIRED = LastError(
    message="This chat was in an invalid state and has been repaired. Send or edit a message to continue.",
    kind="invalid_state",
    retryable=False,
)


class StepCommitted(msgspec.Struct, frozen=True):
    """A committed step. `promoted` are steering messages that the model gets with the next step."""

    inserted: Sequence[Message]
    promoted: Sequence[Message] = ()


class TurnFinished(msgspec.Struct, frozen=True):
    """A finished turn. `closures` are the error results of its open calls. `promoted` is the message that starts the
    next turn.
    """

    closures: Sequence[Message] = ()
    promoted: Message | None = None


@transition
async def record_generation_attempt(tx: Tx) -> int:
    """Count an attempt and return its number, from 1. The number and the history version identify the episode."""
    tx.require(Transition.RECORD_GENERATION_ATTEMPT)
    await tx.settle(Transition.RECORD_GENERATION_ATTEMPT, "generation_attempt = generation_attempt + 1")
    return tx.chat.generation_attempt


@transition
async def record_retry_state(tx: Tx, retry: RetryState) -> None:
    """Record why the last attempt failed and when the next one starts. Idempotent."""
    tx.require(Transition.RECORD_RETRY_STATE)
    await tx.settle(Transition.RECORD_RETRY_STATE, "retry_state = $2", parts.to_jsonb(retry))


@transition
async def commit_step(
    tx: Tx, messages: Sequence[NewMessage], *, consume_compaction: bool = False, keep_model: bool = False
) -> StepCommitted:
    """Commit one step. If no call is open afterwards, steering messages are added to the history after the step.

    `consume_compaction`: the step is the summary that a compaction request asked for. `keep_model`: a fallback model
    answered the step, and the chat keeps its own model.
    """
    tx.require(Transition.COMMIT_STEP)
    if not messages:
        raise InvalidInput("messages", "A step without messages cannot be committed.")
    consumed = f", {transition_update.DROP_COMPACTION}" if consume_compaction else ""
    if len(messages) == 1 and not tx.chat.queue_len and not keep_model:
        row = message_rows.row_of(messages[0])
        return StepCommitted(
            [
                await transition_update.insert_settling(
                    tx, Transition.COMMIT_STEP, row, transition_update.TOUCH + consumed
                )
            ]
        )
    inserted = await message_rows.insert(tx, [message_rows.row_of(message) for message in messages])
    # If a summary ends the turn, `finish_turn` starts a turn for the steering messages. If they were added here, they
    # would not be answered.
    ends_turn = consume_compaction and tx.chat.compaction_requested_at is not None and not tx.chat.compaction_resume
    steering = await queue_rows.pop_steering(tx) if tx.chat.queue_len and not ends_turn else []
    promoted = (
        await message_rows.insert(tx, [message_rows.promoted_row(queued) for queued in steering]) if steering else []
    )
    model, effort = transition_update.model_choice(tx, promoted if keep_model else [*inserted, *promoted])
    await tx.settle(
        Transition.COMMIT_STEP, f"{transition_update.TOUCH}, {transition_update.CHOOSE_MODEL}{consumed}", model, effort
    )
    return StepCommitted(inserted, promoted)


@transition
async def finish_turn(tx: Tx) -> TurnFinished:
    """End the turn. The chat is at rest, or continues with the first queued message."""
    source = tx.require(Transition.FINISH_TURN)
    if source is State.R0:
        await tx.settle(Transition.FINISH_TURN, f"status = 'waiting', {transition_update.REST}")
        return TurnFinished()
    head = await queue_rows.pop_head(tx)
    inserted = await transition_update.start_turn(
        tx, Transition.FINISH_TURN, message_rows.promoted_row(head), CloseReason.QUEUED_MESSAGE
    )
    return TurnFinished(inserted[:-1], inserted[-1])


@transition
async def finish_error(tx: Tx, error: LastError, mark: NewMessage | None = None) -> None:
    """End the turn with an error. Queue and history are kept. The next user message closes the open calls.

    `mark` is a row for users that stays in the history after the error was cleared.
    """
    tx.require(Transition.FINISH_ERROR)
    if mark is not None:
        await message_rows.insert(tx, [message_rows.row_of(mark)])
    await tx.settle(
        Transition.FINISH_ERROR,
        f"status = 'error', last_error = $2, {transition_update.REST}",
        parts.to_jsonb(error),
    )


@transition
async def request_compaction(tx: Tx) -> None:
    """Request a compaction. The worker starts it with its next decision. If the turn had ended with an error, it
    continues afterwards.

    The caller checks `require_compactable` in the same bundle.
    """
    source = tx.require(Transition.REQUEST_COMPACTION)
    await tx.settle(
        Transition.REQUEST_COMPACTION,
        f"{_RESTART_TURN}, compaction_requested_at = clock_timestamp(), compaction_resume = $2",
        source is not State.W,
    )


async def require_compactable(tx: Tx) -> None:
    if not await tx.conn.fetchval(_HAS_COMPACTABLE, tx.chat.id):
        raise tx.bundle.refuse(NothingToCompact())


@transition
async def retry_turn(tx: Tx) -> None:
    """Run the last turn again, without a new message.

    Allowed after an error, and in a waiting chat whose last message (a user message or a tool result) is unanswered.
    """
    source = tx.require(Transition.RETRY_TURN)
    if source is State.W and await tx.conn.fetchval(_LAST_LIVE_ROLE, tx.chat.id) not in (Role.USER, Role.TOOL):
        raise TransitionNotAllowed(
            Transition.RETRY_TURN, source, "The last turn is complete; there is nothing to retry.", cause="complete"
        )
    await tx.settle(Transition.RETRY_TURN, _RESTART_TURN)


@transition
async def reconcile_invalid_state(tx: Tx, error: LastError = REPAIRED) -> list[Message]:
    """Set an INVALID chat to `error`, unarchive it and answer its open client calls. The queue is kept.

    A chat is INVALID after manual SQL or a restore, or if its status belongs to a newer version of the server.
    """
    tx.require(Transition.RECONCILE_INVALID_STATE)
    closed = message_rows.closures(tx, await open_calls.dynamic_calls(tx), CloseReason.INVALID_STATE)
    inserted = await message_rows.insert(tx, closed) if closed else []
    await tx.settle(
        Transition.RECONCILE_INVALID_STATE,
        "status = 'error', last_error = $2, archived = false, archived_at = NULL, requires_action_deadline_at = NULL,"
        f" {transition_update.DROP_COMPACTION}, {transition_update.TOUCH}",
        parts.to_jsonb(error),
    )
    return inserted
