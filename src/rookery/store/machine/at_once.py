"""Transitions that are one statement, and that a transaction of its own: a fifth of the round trips of a bundle.

Between a message and the first word of its answer a worker takes the chat and counts an attempt. Both mostly meet a
chat that nobody else is at, and then a statement can say all of it: lock, conditions, version, change. Where it finds
a reason to do nothing nothing has happened, and the caller goes the long way, by a bundle, which knows every case and
says why. Neither waits for the disk: nobody was promised anything (docs/decisions/0019).
"""

from __future__ import annotations

from uuid import UUID

from rookery.chat.chats import Chat, Fence
from rookery.chat.transitions import Transition
from rookery.store.machine.bundle import CHAT_COLUMNS, CHAT_COLUMNS_AT_BEAT
from rookery.store.machine.capacity import COUNT_OTHERS_OF, Limits
from rookery.store.machine.lock import Machine

_LAZILY = "lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"

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
                   OR CASE WHEN c.parent_chat_id IS NULL THEN $4::int ELSE $5::int END = 0
                   OR (NOT EXISTS (SELECT FROM replicas WHERE id <> $2)
                       AND ({COUNT_OTHERS_OF.format(is_root="(c.parent_chat_id IS NULL)", chat="c.id")})
                           < CASE WHEN c.parent_chat_id IS NULL THEN $4::int ELSE $5::int END))
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


async def take_free(
    machine: Machine, chat_id: UUID, *, worker_id: UUID, runner_id: UUID, limits: Limits
) -> Chat | None:
    """Acquire a chat that nobody owns and that capacity has room for; None when that is not certain."""
    return await machine.at_once(
        Transition.ACQUIRE,
        _TAKE_FREE,
        chat_id,
        worker_id,
        runner_id,
        limits.running_roots,
        limits.running_subagents,
    )


async def count_attempt(machine: Machine, chat_id: UUID, *, fence: Fence, max_attempts: int) -> Chat | None:
    """Count an attempt of whoever holds the fence, if there are some left; None when it does not, or there are none."""
    return await machine.at_once(
        Transition.RECORD_GENERATION_ATTEMPT,
        _COUNT_ATTEMPT,
        chat_id,
        fence.worker_id,
        fence.runner_id,
        fence.history_version,
        max_attempts,
    )
