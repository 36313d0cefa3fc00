"""Transitions in a single statement that is its own transaction: a fifth of the round trips of a bundle.

They cover the path to the first token: a user sends a message, a worker takes the chat and counts an attempt. All three
mostly find a chat without contention, and then one statement can lock, check, allocate the version and change it. If
one of its conditions fails, nothing has happened, and the caller falls back to a bundle, which handles every case and
reports reasons. The worker's statements do not wait for the disk: they promise nothing to a user (docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.messages import ChatId, Message, NewQueuedMessage
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store.machine import message_rows, settlement
from rookery.store.machine.bundle import CHAT_COLUMNS, CHAT_COLUMNS_AT_BEAT
from rookery.store.machine.capacity import HAS_ROOM, Limits
from rookery.store.machine.lock import Machine

_LAZILY = "lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"

_LIMIT = "(CASE WHEN c.parent_chat_id IS NULL THEN $4::int ELSE $5::int END)"
_ROOM = HAS_ROOM.format(is_root="(c.parent_chat_id IS NULL)", chat="c.id", owner="c.owner_id", limit=_LIMIT)
# Only chats without an owner: a statement that read leases before it had the lock cannot judge them. Slots are counted
# without the lock of their pool, so this applies only to the single replica of a deployment, which takes one chat at a
# time.
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

# The fence is in the condition, which is checked again if the statement had to wait for the lock.
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


# A chat at rest whose last turn ended in text: then no call is open. Order and limit leave the planner one index. If
# the last row has a call, the bundle handles it, because it checks every call.
_ENDED_IN_WORDS = """
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
# Other tables and rows are as old as the snapshot, but the locked row may be newer; then the condition fails.
SEND_AT_REST = f"""
      WITH rested AS (
           SELECT c.id
             FROM chats c
            WHERE c.id = $1
              AND c.owner_id = $11
              AND c.status = 'waiting'
              AND c.queue_len = 0
              AND NOT c.archived
              AND c.runner_id IS NULL
              AND ($8::uuid IS NOT NULL OR c.last_model_config_id = ANY ($12::uuid[]))
              AND c.snapshot_version = (SELECT seen.snapshot_version FROM chats seen WHERE seen.id = $1)
              AND NOT EXISTS (SELECT FROM chat_messages sent WHERE sent.chat_id = $1 AND sent.client_id = $10)
              AND {_ENDED_IN_WORDS}
              FOR NO KEY UPDATE OF c SKIP LOCKED),
           begun AS (
           UPDATE chats
              SET snapshot_version = chats.snapshot_version + 1,
                  history_version = chats.snapshot_version + 1,
                  generation_attempt = 0,
                  last_model_config_id = coalesce($8, last_model_config_id),
                  last_reasoning_effort = coalesce($9, last_reasoning_effort),
                  {settlement.RUN}
             FROM rested
            WHERE chats.id = rested.id
           RETURNING {CHAT_COLUMNS.replace("id, owner_id", "chats.id, owner_id", 1)}),
           inserted AS (
           INSERT INTO chat_messages
                  (chat_id, role, visibility, compressed, content, content_version, created_by,
                   model_config_id, reasoning_effort, client_id)
           SELECT id, $2::text, $3::text, $4::boolean, $5::jsonb, $6::smallint, $7::uuid,
                  last_model_config_id, $9::text, $10::text
             FROM begun
           RETURNING id AS message_id, created_at AS inserted_at)
    SELECT begun.*, inserted.*
      FROM begun, inserted
"""


class SentAtRest(msgspec.Struct, frozen=True):
    """The running chat, and the message that started it."""

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
    """Send to a chat of this owner that is at rest, if nothing else has to change; else return None.

    The message names its model, or continues with the chat's last one if that is among `kept`. It has no files: those
    are linked under the lock.
    """
    row = message_rows.user_row(message)
    assert not row.files, "files are linked by a bundle"
    landed = await machine.run_statement(
        busy.transition,
        SEND_AT_REST,
        *message_rows.arguments(chat_id, row),
        owner_id,
        list(kept),
        status_before=Status.WAITING,
    )
    if landed is None:
        return None
    row = msgspec.structs.replace(row, model_config_id=landed.chat.last_model_config_id)
    return SentAtRest(landed.chat, message_rows.message_of(landed.chat, row, *landed.rest))


async def take_free(
    machine: Machine, chat_id: UUID, *, worker_id: UUID, runner_id: UUID, limits: Limits
) -> Chat | None:
    """Acquire a chat without an owner if capacity has room for it; None if that is not certain."""
    landed = await machine.run_statement(
        Transition.ACQUIRE,
        _TAKE_FREE,
        chat_id,
        worker_id,
        runner_id,
        limits.running_roots,
        limits.running_subagents,
    )
    return None if landed is None else landed.chat


async def count_attempt(machine: Machine, chat_id: UUID, *, fence: Fence, max_attempts: int) -> Chat | None:
    """Count an attempt of the runner that holds the fence; None if the fence fails or no attempt is left."""
    landed = await machine.run_statement(
        Transition.RECORD_GENERATION_ATTEMPT,
        _COUNT_ATTEMPT,
        chat_id,
        fence.worker_id,
        fence.runner_id,
        fence.history_version,
        max_attempts,
    )
    return None if landed is None else landed.chat
