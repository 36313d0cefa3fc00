"""Transitions in a single statement, which is its own transaction and needs a fifth of a bundle's round trips.

The path to the first token has three of them: send a message, acquire the chat, count an attempt. Without contention,
one statement can lock the chat, check it, allocate the version and change it. If a condition fails, nothing has
changed, and the caller uses a bundle, which handles every case and reports the reason. The worker's statements do not
wait for the disk, because no user relies on them (docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.messages import ChatId, Message, NewQueuedMessage
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store.machine import message_rows, transition_update
from rookery.store.machine.bundle import CHAT_COLUMNS, CHAT_COLUMNS_AT_BEAT
from rookery.store.machine.bundle_runner import Machine
from rookery.store.machine.capacity import HAS_ROOM, Limits

_LAZILY = "lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"

_LIMIT = "(CASE WHEN c.parent_chat_id IS NULL THEN $4::int ELSE $5::int END)"
_ROOM = HAS_ROOM.format(is_root="(c.parent_chat_id IS NULL)", chat="c.id", owner="c.owner_id", limit=_LIMIT)
# Only for chats without an owner, because the statement reads leases before it has the lock. Slots are counted without
# the lock of the pool. Chats that need a slot are therefore acquired this way only if there is a single replica, which
# acquires one chat at a time.
_TAKE_FREE = f"""
      WITH {_LAZILY},
           free AS (
           SELECT c.id
             FROM chats c
            WHERE c.id = $1
              AND c.runner_id IS NULL
              AND c.status IN ('running', 'interrupting', 'requires_action')
              AND NOT c.archived
              AND NOT (c.awaits_approval AND c.requires_action_deadline_at IS NULL)
              AND (c.status <> 'running'
                   OR {_LIMIT} = 0
                   OR (NOT EXISTS (SELECT FROM replicas WHERE id <> $2) AND ({_ROOM})))
              FOR NO KEY UPDATE OF c SKIP LOCKED),
           beat AS (
           INSERT INTO chat_heartbeats (chat_id, runner_id, heartbeat_at)
           SELECT id, $3::uuid, clock_timestamp() FROM free)
    UPDATE chats
       SET snapshot_version = chats.snapshot_version + 1,
           worker_id = $2,
           runner_id = $3
      FROM free, lazily
     WHERE chats.id = free.id
    RETURNING {CHAT_COLUMNS_AT_BEAT.replace("id, owner_id", "chats.id, owner_id", 1)}
"""

# The fence is part of the condition. PostgreSQL checks the condition again if the statement waited for the lock.
_COUNT_ATTEMPT = f"""
      WITH {_LAZILY}
    UPDATE chats
       SET snapshot_version = snapshot_version + 1,
           generation_attempt = generation_attempt + 1
      FROM lazily
     WHERE id = $1
       AND worker_id = $2
       AND runner_id = $3
       AND status = 'running'
       AND history_version = $4
       AND NOT archived
       AND generation_attempt < $5
    RETURNING {CHAT_COLUMNS}
"""


# True if the last row has no call; then no call can be open. If it has a call, the bundle checks every call. With ORDER
# BY and LIMIT, the planner has only one index to choose.
_LAST_ROW_HAS_NO_CALL = """
    coalesce((
      SELECT m.role = 'user'
             OR (m.role = 'assistant' AND NOT jsonb_path_exists(m.content, '$[*] ? (@.type == "tool-call")'))
        FROM chat_messages m
       WHERE m.chat_id >= $1 AND m.chat_id <= $1
         AND NOT m.deleted AND NOT m.compressed
         AND m.role <> 'system'
       ORDER BY m.chat_id DESC, m.id DESC
       LIMIT 1), true)
"""
# The locked row may be newer than the snapshot, from which all other rows are read. Then the condition on
# snapshot_version fails.
SEND_AT_REST = f"""
      WITH rested AS (
           SELECT c.id
             FROM chats c
            WHERE c.id = $1
              AND c.owner_id = $12
              AND c.status = 'waiting'
              AND c.queue_len = 0
              AND NOT c.archived
              AND c.runner_id IS NULL
              AND ($8::uuid IS NOT NULL OR c.last_model_config_id = ANY ($13::uuid[]))
              AND c.snapshot_version = (SELECT seen.snapshot_version FROM chats seen WHERE seen.id = $1)
              AND NOT EXISTS (SELECT FROM chat_messages sent WHERE sent.chat_id = $1 AND sent.client_id = $10)
              AND {_LAST_ROW_HAS_NO_CALL}
              FOR NO KEY UPDATE OF c SKIP LOCKED),
           begun AS (
           UPDATE chats
              SET snapshot_version = chats.snapshot_version + 1,
                  history_version = chats.snapshot_version + 1,
                  generation_attempt = 0,
                  last_model_config_id = coalesce($8, last_model_config_id),
                  last_reasoning_effort = coalesce($9, last_reasoning_effort),
                  {transition_update.RUN}
             FROM rested
            WHERE chats.id = rested.id
           RETURNING {CHAT_COLUMNS.replace("id, owner_id", "chats.id, owner_id", 1)}),
           inserted AS (
           INSERT INTO chat_messages
                  (chat_id, role, visibility, compressed, content, content_version, created_by,
                   model_config_id, reasoning_effort, client_id, traceparent)
           SELECT id, $2::text, $3::text, $4::boolean, $5::jsonb, $6::smallint, $7::uuid,
                  last_model_config_id, $9::text, $10::text, $11::text
             FROM begun
           RETURNING id AS message_id, created_at AS inserted_at)
    SELECT begun.*, inserted.*
      FROM begun, inserted
"""


class SentAtRest(msgspec.Struct, frozen=True):
    """The result of a send to a chat at rest: the chat, now running, and the message that started its turn."""

    chat: Chat
    message: Message


async def send_at_rest(
    machine: Machine,
    chat_id: ChatId,
    message: NewQueuedMessage,
    *,
    owner_id: UUID,
    busy: BusyBehavior,
    kept: Collection[UUID] = (),
) -> SentAtRest | None:
    """Send a message to a chat of this owner that is at rest. Return None if a bundle is needed.

    If the message names no model, the chat's last model must be one of `kept`. The message must have no files, because
    files are linked under the lock.
    """
    row = message_rows.user_row(message)
    assert not row.files, "files are linked by a bundle"
    result = await machine.run_statement(
        busy.transition,
        SEND_AT_REST,
        *message_rows.arguments(chat_id, row),
        owner_id,
        list(kept),
        status_before=Status.WAITING,
    )
    if result is None:
        return None
    row = msgspec.structs.replace(row, model_config_id=result.chat.last_model_config_id)
    return SentAtRest(result.chat, message_rows.message_of(result.chat, row, *result.rest))


async def take_free(
    machine: Machine, chat_id: UUID, *, worker_id: UUID, runner_id: UUID, limits: Limits
) -> Chat | None:
    """Acquire a chat that has no owner, if its pool has room. Return None if a bundle has to decide."""
    result = await machine.run_statement(
        Transition.ACQUIRE,
        _TAKE_FREE,
        chat_id,
        worker_id,
        runner_id,
        limits.running_roots,
        limits.running_subagents,
    )
    return None if result is None else result.chat


async def count_attempt(machine: Machine, chat_id: UUID, *, fence: Fence, max_attempts: int) -> Chat | None:
    """Count an attempt. Return None if the fence fails or `max_attempts` is reached."""
    result = await machine.run_statement(
        Transition.RECORD_GENERATION_ATTEMPT,
        _COUNT_ATTEMPT,
        chat_id,
        fence.worker_id,
        fence.runner_id,
        fence.history_version,
        max_attempts,
    )
    return None if result is None else result.chat
