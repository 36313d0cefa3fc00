"""Ownership of chats: list candidates, acquire, renew leases, abandon.

Ownership is independent of the execution state. No function here changes that state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
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
from rookery.store.machine.bundle_runner import Machine

_TRY_LOCK = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED"

# Sets the owner and writes its first heartbeat in one round trip.
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

# The join finds lost leases: if another runner has the chat, or the chat is deleted, no row is returned. Without the
# join, the foreign key of one deleted chat would fail the heartbeats of all chats.
_RENEW = """
    INSERT INTO chat_heartbeats (chat_id, runner_id, heartbeat_at, progress_at, phase)
    SELECT c.id, c.runner_id, clock_timestamp(), clock_timestamp() - make_interval(secs => k.silent), k.phase
      FROM unnest($1::uuid[], $2::uuid[], $3::float8[], $4::text[]) AS k (chat_id, runner_id, silent, phase)
      JOIN chats c ON c.id = k.chat_id AND c.runner_id = k.runner_id
        ON CONFLICT (chat_id, runner_id) DO UPDATE
       SET heartbeat_at = excluded.heartbeat_at, progress_at = excluded.progress_at, phase = excluded.phase
    RETURNING chat_id, runner_id
"""
# Chosen. A further try is needed only if another chat is deleted at the same moment.
_RENEW_TRIES = 3

# The number of chats with a lease, by owner and pool. It is counted from the heartbeats, which are few; a count of
# chats would read the whole backlog.
_HELD = """
    SELECT c.owner_id, c.parent_chat_id IS NULL AS is_root, count(*) AS chats
      FROM chat_heartbeats h
      JOIN chats c ON c.id = h.chat_id AND c.runner_id = h.runner_id
      JOIN replicas r ON r.id = c.worker_id
     WHERE h.heartbeat_at > clock_timestamp() - r.lease_ttl
     GROUP BY 1, 2
"""

# The owners of a partition (status and pool), each found by one descent of the index chats_acquire. Of each owner, only
# the oldest chats are read: a backlog is not sorted as a whole, and one owner's backlog does not hide other owners'
# chats. Each partition has its own limit, so a full pool does not hide the other. The predicates are literals, because
# only literals match the partial index. IS TRUE and IS FALSE are used because PostgreSQL rewrites "= false" to IS NOT
# NULL, which is not a column of that index.
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


HAS_TAKEABLE = """
    SELECT EXISTS (
      SELECT FROM chats c
       WHERE c.id = ANY ($1::uuid[])
         AND c.status IN ('running', 'interrupting', 'requires_action')
         AND NOT c.archived
         AND NOT (c.awaits_approval AND c.requires_action_deadline_at IS NULL)
         AND (c.runner_id IS NULL
              OR NOT EXISTS (
                 SELECT FROM chat_heartbeats h
                   JOIN replicas r ON r.id = c.worker_id
                  WHERE h.chat_id = c.id
                    AND h.runner_id = c.runner_id
                    AND h.heartbeat_at > clock_timestamp() - r.lease_ttl)))
"""
_IS_REPLICA = "SELECT EXISTS (SELECT FROM replicas WHERE id = $1)"
_HAS_PEERS = "SELECT EXISTS (SELECT FROM replicas WHERE id <> $1)"


class Candidate(msgspec.Struct, frozen=True):
    """A chat that had no lease when it was listed. `try_acquire` checks this again under the lock."""

    chat_id: ChatId
    status: str
    is_root: bool
    owner_id: UUID


async def list_candidates(conn: Connection, limit: int) -> list[Candidate]:
    """List runnable chats without a valid lease: at most `limit` for each status and pool.

    They are ordered by status: interrupting, requires_action, running. Within a status, roots and subagents alternate.
    Within each of these, they are ordered by rank, then by age. The rank is the number of chats of the owner that hold
    a slot of the pool, plus the position of the chat among the owner's candidates, the oldest first.
    """
    partitions: dict[tuple[str, bool], list[Candidate]] = {}
    records = await conn.fetch(LIST_CANDIDATES, limit)
    for record in sorted(records, key=lambda row: (row["place"], row["runnable_since"], row["id"])):
        key = (record["status"], record["is_root"])
        partitions.setdefault(key, []).append(Candidate(record["id"], *key, record["owner_id"]))
    return [
        candidate
        for status in _STATUS_ORDER
        for candidate in _alternate(partitions.get((status, True), []), partitions.get((status, False), []))
    ]


async def has_takeable(conn: Connection, chat_ids: Collection[ChatId]) -> bool:
    """Return whether one of these chats is runnable and has no valid lease."""
    found: bool = await conn.fetchval(HAS_TAKEABLE, list(chat_ids))
    return found


async def has_peers(conn: Connection, worker_id: UUID) -> bool:
    """Return whether there is another replica, which may acquire chats as well."""
    found: bool = await conn.fetchval(_HAS_PEERS, worker_id)
    return found


def _alternate(roots: list[Candidate], children: list[Candidate]) -> list[Candidate]:
    merged: list[Candidate] = []
    for index in range(max(len(roots), len(children))):
        merged.extend(roots[index : index + 1])
        merged.extend(children[index : index + 1])
    return merged


@transition
async def acquire(tx: Tx, *, worker_id: UUID, runner_id: UUID) -> Chat:
    """Make the runner the owner of the chat and start a lease, even if the chat has another owner.

    The caller has checked under the lock of the row that the chat may be acquired.
    """
    tx.require(Transition.ACQUIRE)
    await tx.settle_by(Transition.ACQUIRE, _ACQUIRE, tx.chat.id, worker_id, runner_id)
    tx.acquired = True
    return tx.chat


LeaseKey: TypeAlias = tuple[UUID, UUID]


class Activity(msgspec.Struct, frozen=True):
    """The activity of a runner: the seconds since it last made progress, and its phase. None if unknown."""

    silent_seconds: float | None = None
    phase: str | None = None


_UNKNOWN = Activity()


async def renew_leases(
    conn: Connection, keys: Collection[LeaseKey], activities: Mapping[LeaseKey, Activity] = MappingProxyType({})
) -> set[LeaseKey]:
    """Renew the leases of these runners, given as (chat id, runner id). Returns the keys that are renewed.

    The other leases are lost. The activity of each runner is stored with its lease, for other replicas. No chat is
    changed and no hint is published. A lease that has expired, or whose row was deleted, is renewed unless another
    runner has taken the chat. An uncommitted takeover is seen by the next heartbeat; until then the fence refuses
    commits of the old runner.
    """
    chat_ids, runner_ids = [chat_id for chat_id, _ in keys], [runner_id for _, runner_id in keys]
    seen = [activities.get(key, _UNKNOWN) for key in keys]
    silent, phases = [each.silent_seconds for each in seen], [each.phase for each in seen]
    for attempt in range(1, _RENEW_TRIES + 1):
        try:
            records = await conn.fetch(_RENEW, chat_ids, runner_ids, silent, phases)
        except (asyncpg.ForeignKeyViolationError, asyncpg.DeadlockDetectedError):
            # A chat was deleted after the join had read it, or is being deleted. The next try does not find it.
            if attempt == _RENEW_TRIES:
                raise
        else:
            return {(record["chat_id"], record["runner_id"]) for record in records}
    raise AssertionError("unreachable")


@transition
async def abandon(tx: Tx) -> Chat:
    """Release the chat. Its heartbeat row is deleted by the runner or by `sweep_leases`."""
    source = tx.require(Transition.ABANDON)
    if tx.chat.runner_id is None:
        raise TransitionNotAllowed(Transition.ABANDON, source, "No worker owns this chat.", cause="not_owned")
    await tx.settle(Transition.ABANDON, "worker_id = NULL, runner_id = NULL")
    return tx.chat


class Takeover(StrEnum):
    """The reason why a chat can be taken over from its owner.

    `LOCK_GONE`: the owner's replica no longer exists. `LEASE`: the replica exists, but the lease expired or was
    released.
    """

    LOCK_GONE = "lock_gone"
    LEASE = "lease"


async def find_takeover(tx: Tx) -> Takeover | None:
    """Return why this chat without a valid lease can be taken over. Return None if it has no owner."""
    if tx.chat.worker_id is None:
        return None
    is_there: bool = await tx.conn.fetchval(_IS_REPLICA, tx.chat.worker_id)
    return Takeover.LEASE if is_there else Takeover.LOCK_GONE


class _NotAcquired(Exception):
    """Raised to roll the bundle back. A commit would publish a hint, and all workers would try to acquire the chat."""


async def try_acquire(
    machine: Machine,
    chat_id: UUID,
    *,
    worker_id: UUID,
    runner_id: UUID,
    admit: Callable[[Tx], Awaitable[bool]],
) -> Chat | None:
    """Acquire a candidate if it has no lease and `admit` finds capacity for it. Otherwise return None.

    If the row is locked, return None without waiting. The lock is held by another worker, which gets the chat, or by a
    transition, whose hint causes another attempt.
    """

    async def run(bundle: Bundle) -> Chat:
        if await bundle.conn.fetchval(_TRY_LOCK, chat_id) is None:
            raise _NotAcquired
        tx = await bundle.open(chat_id)
        if not tx.state.is_runnable or tx.chat.is_parked or tx.chat.leased or not await admit(tx):
            raise _NotAcquired
        return await acquire(tx, worker_id=worker_id, runner_id=runner_id)

    try:
        # A crash of the database may undo the acquisition. Then the fence of the runner fails.
        return await machine.bundle(run, lazily=True)
    except _NotAcquired:
        return None
