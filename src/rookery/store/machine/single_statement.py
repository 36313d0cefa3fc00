"""Transitions that are one statement, and that a transaction of its own: a fifth of the round trips of a bundle.

Somebody sends a message; before the first word of the answer a worker takes the chat and counts an attempt. All three
mostly meet a chat that nobody else is at, and then a statement can say all of it: lock, conditions, version, change.
Where it finds a reason to do nothing nothing has happened, and the caller goes the long way, by a bundle, which knows
every case and says why. The worker's do not wait for the disk: nobody was promised anything (docs/decisions/0019).
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
# Only what nobody owns: whether somebody's lease is still good cannot be told by a statement that looked at leases
# before it had the lock. Slots are counted without the lock of their pool, so only by who is the one replica there is,
# and takes one chat after the other.
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

# The fence is in the condition. It is looked at again where the lock had to be waited for.
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


# A chat at rest whose last turn ended in words: then no call is open. Found by its order and its limit, which leave the
# planner one index; whoever has called something last is left to the bundle, which looks at every call.
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
# What other tables and rows say is as old as the snapshot, the locked row may be newer: then this is not the moment.
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
    """The chat that runs now, and the message it runs for."""

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
    """Send to a chat of this owner that rests, and that is all there is to it; None when there may be more.

    The message names its model, or goes on with the one that the chat used last if that is one of those to be `kept`.
    It has no files: those are linked under the lock.
    """
    row = message_rows.user_row(message)
    assert not row.files, "files are linked by a bundle"
    landed = await machine.at_once(
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
    """Acquire a chat that nobody owns and that capacity has room for; None when that is not certain."""
    landed = await machine.at_once(
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
    """Count an attempt of whoever holds the fence, if there are some left; None when it does not, or there are none."""
    landed = await machine.at_once(
        Transition.RECORD_GENERATION_ATTEMPT,
        _COUNT_ATTEMPT,
        chat_id,
        fence.worker_id,
        fence.runner_id,
        fence.history_version,
        max_attempts,
    )
    return None if landed is None else landed.chat
