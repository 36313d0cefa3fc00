"""Transitions in a single statement, which is its own transaction and needs a fifth of a bundle's round trips.

A turn without tools has four of them: send a message, acquire the chat, count an attempt, and end the turn with its
answer. Without contention, one statement can lock the chat, check it, allocate the version and change it. If a
condition fails, nothing has changed, and the caller uses a bundle, which handles every case and reports the reason. The
acquisition and the count do not wait for the disk, because no user relies on them (docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.messages import ChatId, Message, NewMessage, NewQueuedMessage
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store.machine import message_rows, transition_update
from rookery.store.machine.bundle import CHAT_COLUMNS, CHAT_COLUMNS_AT_BEAT, Bundle
from rookery.store.machine.bundle_runner import Machine
from rookery.store.machine.capacity import HAS_ROOM, HAS_ROOM_FOR_ALL, LOCK_POOLS, Limits
from rookery.store.machine.ownership import Takeover
from rookery.store.models import usage_ledger
from rookery.store.models.usage_ledger import Entry

_LAZILY = "lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"

_COUNT = "cardinality($1::uuid[])"
_LIMIT = "(CASE WHEN c.parent_chat_id IS NULL THEN $4::int ELSE $5::int END)"
_ROOM_FOR_ONE = HAS_ROOM.format(is_root="(c.parent_chat_id IS NULL)", chat="c.id", owner="c.owner_id", limit=_LIMIT)
# These two do not depend on the chat, so they are evaluated once.
_ROOM_FOR_ROOTS = HAS_ROOM_FOR_ALL.format(is_root="true", count=_COUNT, limit="$4::int")
_ROOM_FOR_SUBAGENTS = HAS_ROOM_FOR_ALL.format(is_root="false", count=_COUNT, limit="$5::int")
# The statement reads leases before it locks a chat. A chat that has an owner must therefore be unchanged since.
# Slots are counted without the lock of the pool if $6 is false. Chats that need a slot are then acquired only if there
# is a single replica, which acquires chats by one statement at a time.
TAKE = f"""
      WITH {_LAZILY},
           free AS (
           SELECT c.id, wanted.runner_id AS new_runner_id,
                  CASE WHEN c.worker_id IS NULL THEN NULL
                       ELSE EXISTS (SELECT FROM replicas r WHERE r.id = c.worker_id) END AS had_replica
             FROM unnest($1::uuid[], $3::uuid[]) AS wanted (chat_id, runner_id)
             JOIN chats c ON c.id = wanted.chat_id
            WHERE (c.runner_id IS NULL
                   OR (NOT EXISTS (
                       SELECT FROM chat_heartbeats h
                         JOIN replicas r ON r.id = c.worker_id
                        WHERE h.chat_id = c.id
                          AND h.runner_id = c.runner_id
                          AND h.heartbeat_at > clock_timestamp() - r.lease_ttl)
                       AND c.snapshot_version = (SELECT seen.snapshot_version FROM chats seen WHERE seen.id = c.id)))
              AND c.status IN ('running', 'interrupting', 'requires_action')
              AND NOT c.archived
              AND NOT (c.awaits_approval AND c.requires_action_deadline_at IS NULL)
              AND (c.status <> 'running'
                   OR {_LIMIT} = 0
                   OR (($6::boolean OR NOT EXISTS (SELECT FROM replicas WHERE id <> $2))
                       AND CASE WHEN {_COUNT} = 1 THEN ({_ROOM_FOR_ONE})
                                WHEN c.parent_chat_id IS NULL THEN ({_ROOM_FOR_ROOTS})
                                ELSE ({_ROOM_FOR_SUBAGENTS}) END))
              FOR NO KEY UPDATE OF c SKIP LOCKED),
           beat AS (
           INSERT INTO chat_heartbeats (chat_id, runner_id, heartbeat_at)
           SELECT id, new_runner_id, clock_timestamp() FROM free)
    UPDATE chats
       SET snapshot_version = chats.snapshot_version + 1,
           worker_id = $2,
           runner_id = free.new_runner_id
      FROM free, lazily
     WHERE chats.id = free.id
    RETURNING {CHAT_COLUMNS_AT_BEAT.replace("id, owner_id", "chats.id, owner_id", 1)}, free.had_replica
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


# Three transitions: the step is committed, the turn ends, and the worker leaves the chat. A bundle does the same by 16
# round trips. It has to, if the chat does not rest after the step, because a message or a summary waits.
_FENCE = message_rows.STEP_WIDTH + 1
_BILL = _FENCE + 4
_LABEL = _BILL + usage_ledger.CALL_WIDTH
END_TURN = f"""
      WITH rested AS (
           UPDATE chats
              SET snapshot_version = snapshot_version + 1,
                  history_version = snapshot_version + 1,
                  generation_attempt = 0,
                  status = 'waiting',
                  worker_id = NULL,
                  runner_id = NULL,
                  last_model_config_id = coalesce($8, last_model_config_id),
                  last_reasoning_effort = coalesce($9, last_reasoning_effort),
                  {{label}}
                  {transition_update.REST}
            WHERE id = $1
              AND worker_id = ${_FENCE}
              AND runner_id = ${_FENCE + 1}
              AND status = 'running'
              AND history_version = ${_FENCE + 2}
              AND generation_attempt = ${_FENCE + 3}
              AND NOT archived
              AND queue_len = 0
              AND compaction_requested_at IS NULL
           RETURNING {CHAT_COLUMNS}),
           answered AS ({message_rows.INSERT_STEP_FROM.format(source="rested")}),
           billed AS ({usage_ledger.insert_call("rested", "answered", first=_BILL)}),
           freed AS (
           DELETE FROM chat_heartbeats h
            USING rested
            WHERE h.chat_id = rested.id
              AND h.runner_id = ${_FENCE + 1})
    SELECT rested.*, answered.*
      FROM rested, answered
"""
# An UPDATE that assigns the label compares the chat's other metadata, which may be large.
_END_UNLABELLED = END_TURN.format(label="")
_END_LABELLED = END_TURN.format(label=f"last_turn_summary = ${_LABEL},")


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


class EndedTurn(msgspec.Struct, frozen=True):
    """The result of a step that ended its turn: the chat, now at rest and without a worker, and the answer."""

    chat: Chat
    answer: Message


async def end_turn(
    machine: Machine, chat_id: ChatId, answer: NewMessage, bill: Entry, *, fence: Fence, label: str | None = None
) -> EndedTurn | None:
    """Commit an answer that ends its turn, with its bill, and release the chat. Return None if a bundle is needed.

    `label`, if given, becomes the label of the turn. The answer must have no files and no calls that the worker or the
    client has to answer.
    """
    row = message_rows.row_of(answer)
    assert not row.files, "files are linked by a bundle"
    assert row.figures is not None, "an answer has figures"
    result = await machine.run_statement(
        Transition.FINISH_TURN,
        _END_UNLABELLED if label is None else _END_LABELLED,
        *message_rows.arguments(chat_id, row),
        fence.worker_id,
        fence.runner_id,
        fence.history_version,
        fence.generation_attempt,
        *usage_ledger.call_values(bill),
        *(() if label is None else (label,)),
        status_before=Status.RUNNING,
    )
    if result is None:
        return None
    return EndedTurn(result.chat, message_rows.message_of(result.chat, row, *result.rest))


class Taken(msgspec.Struct, frozen=True):
    """An acquired chat. `takeover` is the reason why it could be taken from its owner; None if it had none."""

    chat: Chat
    takeover: Takeover | None = None


async def take(
    machine: Machine, wanted: Mapping[UUID, UUID], *, worker_id: UUID, limits: Limits, has_peers: bool
) -> list[Taken]:
    """Acquire these chats, given with the ids of their new runners, if they have no valid lease.

    Chats that are missing in the result are not changed. They have a lease, are locked, or need a bundle: if the pools
    have no room for all, the order of the chats matters. With `has_peers`, slots are counted under the locks of
    the pools, which takes two more round trips.
    """
    is_locked = has_peers and bool(limits.running_roots or limits.running_subagents)
    arguments = (
        list(wanted),
        worker_id,
        list(wanted.values()),
        limits.running_roots,
        limits.running_subagents,
        is_locked,
    )
    if not is_locked:
        results = await machine.run_statements(Transition.ACQUIRE, TAKE, *arguments)
        return [_taken(result.chat, *result.rest) for result in results]

    async def run(bundle: Bundle) -> list[Taken]:
        return [_taken(tx.chat, *rest) for tx, rest in await bundle.acquire(TAKE, *arguments)]

    # A crash of the database may undo the acquisition. Then the fences of the runners fail.
    return await machine.bundle(run, lazily=True, first=LOCK_POOLS)


def _taken(chat: Chat, had_replica: bool | None) -> Taken:
    if had_replica is None:
        return Taken(chat)
    return Taken(chat, Takeover.LEASE if had_replica else Takeover.LOCK_GONE)


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
