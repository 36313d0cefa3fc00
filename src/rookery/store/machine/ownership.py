"""Ownership of chats: listing candidates, acquiring, renewing leases, abandoning.

Ownership is orthogonal to the execution state: nothing here changes what the chat is doing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import CHAT_COLUMNS_AT_BEAT, Bundle, Tx, transition
from rookery.store.machine.lock import Machine

_TRY_LOCK = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED"

# The pair and its first heartbeat, in one round trip.
_ACQUIRE = f"""
    WITH beat AS (
         INSERT INTO chat_heartbeats (chat_id, runner_id, heartbeat_at)
         VALUES ($1, $3, clock_timestamp())
             ON CONFLICT (chat_id, runner_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at)
    UPDATE chats
       SET worker_id = $2, runner_id = $3
     WHERE id = $1
    RETURNING {CHAT_COLUMNS_AT_BEAT}
"""

# The join detects a lost lease: a pair that was taken over, or whose chat is gone, is not returned. It also keeps one
# deleted chat from failing the beat of all others by its foreign key.
_RENEW = """
    INSERT INTO chat_heartbeats (chat_id, runner_id, heartbeat_at)
    SELECT c.id, c.runner_id, clock_timestamp()
      FROM unnest($1::uuid[], $2::uuid[]) AS k (chat_id, runner_id)
      JOIN chats c ON c.id = k.chat_id AND c.runner_id = k.runner_id
        ON CONFLICT (chat_id, runner_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at
    RETURNING chat_id, runner_id
"""
# Chosen: each further try needs another chat that is deleted at the same moment.
_RENEW_TRIES = 3

# How many working chats each owner has, by pool. From the side of the heartbeats, which are few: from the side of the
# chats, a backlog would have to be walked.
_HELD = """
    SELECT c.owner_id, c.parent_chat_id IS NULL AS is_root, count(*) AS chats
      FROM chat_heartbeats h
      JOIN chats c ON c.id = h.chat_id AND c.runner_id = h.runner_id
      JOIN replicas r ON r.id = c.worker_id
     WHERE h.heartbeat_at > clock_timestamp() - r.lease_ttl
     GROUP BY 1, 2
"""

# The owners of a partition are found one by one, each by one descent of the index, and each contributes its oldest few:
# a backlog is never ranked as a whole, and one owner's backlog cannot hide the first chat of another. Each partition
# has its own limit, so one full pool cannot hide the other. The predicates are literals, because only then do they
# match the partial index chats_acquire. IS TRUE and IS FALSE, because PostgreSQL turns "= false" into IS NOT NULL,
# which is not a column of that index.
OWNERS = """
          (SELECT c.owner_id
             FROM chats c
            WHERE (c.parent_chat_id IS NULL) IS {is_root}
              AND c.status = '{status}'
            ORDER BY c.owner_id
            LIMIT 1)
           UNION ALL
          SELECT (SELECT c.owner_id
                    FROM chats c
                   WHERE (c.parent_chat_id IS NULL) IS {is_root}
                     AND c.status = '{status}'
                     AND c.owner_id > o.owner_id
                   ORDER BY c.owner_id
                   LIMIT 1)
            FROM owners o
           WHERE o.owner_id IS NOT NULL
"""
_PARTITION = (
    f"    (WITH RECURSIVE owners AS ({OWNERS})"
    + """
     SELECT f.id, f.status, (f.parent_chat_id IS NULL) AS is_root, f.owner_id, f.runnable_since,
            coalesce(h.chats, 0) + row_number() OVER (PARTITION BY f.owner_id ORDER BY f.runnable_since, f.id) AS place
       FROM owners o
      CROSS JOIN LATERAL (
            SELECT c.id, c.status, c.parent_chat_id, c.owner_id, c.runnable_since
              FROM chats c
             WHERE (c.parent_chat_id IS NULL) IS {is_root}
               AND c.status = '{status}'
               AND c.owner_id = o.owner_id
               AND NOT c.archived
               AND NOT (c.awaits_approval AND c.requires_action_deadline_at IS NULL)
               AND (c.runner_id IS NULL
                    OR NOT EXISTS (
                       SELECT FROM chat_heartbeats h
                         JOIN replicas r ON r.id = c.worker_id
                        WHERE h.chat_id = c.id
                          AND h.runner_id = c.runner_id
                          AND h.heartbeat_at > clock_timestamp() - r.lease_ttl))
             ORDER BY c.runnable_since, c.id
             LIMIT $1) f
       LEFT JOIN held h ON h.owner_id = f.owner_id AND h.is_root = {is_root}
      ORDER BY place, f.runnable_since, f.id
      LIMIT $1)
"""
)
_STATUS_ORDER = (Status.INTERRUPTING, Status.REQUIRES_ACTION, Status.RUNNING)
LIST_CANDIDATES = f"WITH held AS MATERIALIZED ({_HELD})" + "UNION ALL".join(
    _PARTITION.format(status=status, is_root=is_root) for status in _STATUS_ORDER for is_root in ("true", "false")
)


_IS_REPLICA = "SELECT EXISTS (SELECT FROM replicas WHERE id = $1)"
_HAS_PEERS = "SELECT EXISTS (SELECT FROM replicas WHERE id <> $1)"


class Candidate(msgspec.Struct, frozen=True):
    """A chat that looked free when it was listed; `try_acquire` checks again under its lock."""

    chat_id: ChatId
    status: str
    is_root: bool
    owner_id: UUID


async def list_candidates(conn: Connection, limit: int) -> list[Candidate]:
    """List chats that can run and have no valid lease: at most `limit` for each status and pool (roots, subagents).

    The order is by status: interrupting, requires_action, running. Within a status, roots and subagents alternate.
    Within each of these, a chat's rank is the number of its owner's working chats in the pool plus its own position
    among the owner's candidates, the oldest being first. Lower ranks come first; of equal ranks, the oldest.
    """
    partitions: dict[tuple[str, bool], list[Candidate]] = {}
    records = await conn.fetch(LIST_CANDIDATES, limit)
    for record in sorted(records, key=lambda row: (row["place"], row["runnable_since"], row["id"])):
        key = (record["status"], record["is_root"])
        partitions.setdefault(key, []).append(Candidate(record["id"], *key, record["owner_id"]))
    return [
        candidate
        for status in _STATUS_ORDER
        for candidate in _take_turns(partitions.get((status, True), []), partitions.get((status, False), []))
    ]


async def has_peers(conn: Connection, worker_id: UUID) -> bool:
    """Return whether there is another replica that may take chats, too."""
    found: bool = await conn.fetchval(_HAS_PEERS, worker_id)
    return found


def _take_turns(roots: list[Candidate], children: list[Candidate]) -> list[Candidate]:
    merged: list[Candidate] = []
    for index in range(max(len(roots), len(children))):
        merged.extend(roots[index : index + 1])
        merged.extend(children[index : index + 1])
    return merged


@transition
async def acquire(tx: Tx, *, worker_id: UUID, runner_id: UUID) -> Chat:
    """Make the runner the owner of the chat and start its lease, even if the chat had another owner.

    The caller has checked under the row lock that the chat may be acquired.
    """
    tx.require(Transition.ACQUIRE)
    await tx.settle_by(Transition.ACQUIRE, _ACQUIRE, tx.chat.id, worker_id, runner_id)
    tx.acquired = True
    return tx.chat


LeaseKey: TypeAlias = tuple[UUID, UUID]


async def renew_leases(conn: Connection, keys: Collection[LeaseKey]) -> set[LeaseKey]:
    """Renew the leases of all runners, given as (chat id, runner id). Returns the keys still held; the others are lost.

    Touches no chat, moves no version and publishes nothing. An expired lease, or one whose row is gone, is renewed
    unless the chat was taken over. An uncommitted takeover is not seen: the next beat sees it, and the fence stops
    commits of the old runner until then.
    """
    chat_ids, runner_ids = [chat_id for chat_id, _ in keys], [runner_id for _, runner_id in keys]
    for attempt in range(1, _RENEW_TRIES + 1):
        try:
            records = await conn.fetch(_RENEW, chat_ids, runner_ids)
        except (asyncpg.ForeignKeyViolationError, asyncpg.DeadlockDetectedError):
            # A chat was deleted after the join saw it, or is being deleted. The next try does not see it any more.
            if attempt == _RENEW_TRIES:
                raise
        else:
            return {(record["chat_id"], record["runner_id"]) for record in records}
    raise AssertionError("unreachable")


@transition
async def abandon(tx: Tx) -> Chat:
    """Release the chat. The runner or the sweeper deletes the heartbeat row."""
    source = tx.require(Transition.ABANDON)
    if tx.chat.runner_id is None:
        raise TransitionNotAllowed(Transition.ABANDON, source, "Nobody owns this chat.", cause="not_owned")
    await tx.settle(Transition.ABANDON, "worker_id = NULL, runner_id = NULL")
    return tx.chat


class Takeover(StrEnum):
    """The reason why a chat that has an owner can be taken over.

    `LOCK_GONE`: the owner's replica no longer exists. `LEASE`: the replica exists, but the lease expired or was
    released.
    """

    LOCK_GONE = "lock_gone"
    LEASE = "lease"


async def find_takeover(tx: Tx) -> Takeover | None:
    """Return why this chat, which has no valid lease, can be taken over; None if it has no owner."""
    if tx.chat.worker_id is None:
        return None
    is_there: bool = await tx.conn.fetchval(_IS_REPLICA, tx.chat.worker_id)
    return Takeover.LEASE if is_there else Takeover.LOCK_GONE


class _NotAcquired(Exception):
    """Raised to roll the bundle back. A commit would publish a hint, and every worker would try again in vain."""


async def try_acquire(
    machine: Machine,
    chat_id: UUID,
    *,
    worker_id: UUID,
    runner_id: UUID,
    admit: Callable[[Tx], Awaitable[bool]],
) -> Chat | None:
    """Acquire a candidate if it is still free and `admit` finds capacity for it; otherwise change nothing, return None.

    A row that another transaction has locked is skipped, not waited for. If that is another worker, it gets the chat;
    if it is a transition, its hint causes the next attempt.
    """

    async def run(bundle: Bundle) -> Chat:
        if await bundle.conn.fetchval(_TRY_LOCK, chat_id) is None:
            raise _NotAcquired
        tx = await bundle.open(chat_id)
        if not tx.state.is_runnable or tx.chat.is_parked or tx.chat.leased or not await admit(tx):
            raise _NotAcquired
        return await acquire(tx, worker_id=worker_id, runner_id=runner_id)

    try:
        # If a crash of the database loses it, it never happened: the fence of its runner fails.
        return await machine.bundle(run, lazily=True)
    except _NotAcquired:
        return None
