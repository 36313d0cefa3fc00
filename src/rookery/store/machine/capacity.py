"""Capacity: the limits on chats that run at the same time in the deployment, one pool for roots and one for subagents.

With two pools, a root can wait for its subagents without a deadlock. A chat with a lease holds a slot, whatever its
status is. Slots are not stored but derived from heartbeats, so they cannot leak. Lowering a limit does not stop running
chats. `domain.chat.fair_share` has the rules for sharing a pool. With `give_way`, a chat of an owner above the fair
share releases its slot for a chat of an owner below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat import fair_share
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.fair_share import Claim, Use, WaitingChat
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from rookery.store.db.hints import OwnershipHint
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import Tx, transition
from rookery.store.machine.leases import delete_leases
from rookery.store.machine.ownership import OWNERS

LOCK_CLASS = 0x524B4350  # "RKCP"; the two-integer space of advisory locks

_LOCK = "SELECT pg_advisory_xact_lock($1, $2)"

# All pools, in the order of every transaction that locks several. One round trip with the BEGIN.
LOCK_POOLS = f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, 0), pg_advisory_xact_lock({LOCK_CLASS}, 1)"

# The chats with a lease, found from the heartbeats, which are few. The same rule as `leased` in `bundle.CHAT_COLUMNS`.
_LEASED = """
      FROM chat_heartbeats beat
      JOIN chats o ON o.id = beat.chat_id AND o.runner_id = beat.runner_id
      JOIN replicas owner ON owner.id = o.worker_id
     WHERE beat.heartbeat_at > clock_timestamp() - owner.lease_ttl
"""
# Other chats that hold a slot of the pool. The requesting chat is excluded.
_COUNT_OTHERS = f"""
    SELECT count(*) AS active,
           count(DISTINCT o.owner_id) AS owners,
           count(*) FILTER (WHERE o.owner_id = {{owner}}) AS own
    {_LEASED}
       AND (o.parent_chat_id IS NULL) = {{is_root}}
       AND o.id <> {{chat}}
"""
COUNT_OTHERS = _COUNT_OTHERS.format(is_root="$1", chat="$2", owner="$3")
# True if a chat may take a slot. The rule of `fair_share.may_start` in SQL.
HAS_ROOM = f"""
    SELECT t.active < {{limit}}
           AND (t.own = 0
                OR t.active - t.owners + 1 < {{limit}} - {{limit}} / {fair_share.RESERVED_ONE_IN})
      FROM ({_COUNT_OTHERS}) t
"""
# True if `{count}` chats of any owners may take a slot each: there is room even if all owners hold slots already.
HAS_ROOM_FOR_ALL = f"""
    SELECT t.active + {{count}} <= {{limit}}
           AND t.active - t.owners + {{count}} < {{limit}} - {{limit}} / {fair_share.RESERVED_ONE_IN}
      FROM (SELECT count(*) AS active, count(DISTINCT o.owner_id) AS owners
            {_LEASED}
               AND (o.parent_chat_id IS NULL) = {{is_root}}) t
"""

# A runnable chat that needs a slot and has none. Chats of another status than `running` need none. Index chats_acquire.
_WAITS = """
           c.status = 'running'
       AND NOT c.archived
       AND (c.runner_id IS NULL
            OR NOT EXISTS (
               SELECT FROM chat_heartbeats h
                 JOIN replicas r ON r.id = c.worker_id
                WHERE h.chat_id = c.id
                  AND h.runner_id = c.runner_id
                  AND h.heartbeat_at > clock_timestamp() - r.lease_ttl))
"""
COUNT_POOLS = f"""
    SELECT (SELECT count(*) {_LEASED} AND o.parent_chat_id IS NULL),
           (SELECT count(DISTINCT o.owner_id) {_LEASED} AND o.parent_chat_id IS NULL),
           (SELECT count(*) FROM chats c WHERE (c.parent_chat_id IS NULL) IS true AND {_WAITS}),
           (SELECT count(*) {_LEASED} AND o.parent_chat_id IS NOT NULL),
           (SELECT count(DISTINCT o.owner_id) {_LEASED} AND o.parent_chat_id IS NOT NULL),
           (SELECT count(*) FROM chats c WHERE (c.parent_chat_id IS NULL) IS false AND {_WAITS})
"""
IS_WAITING = f"""
    SELECT c.parent_chat_id IS NULL AS is_root, t.active, t.owners, t.own
      FROM chats c
     CROSS JOIN LATERAL (
           SELECT count(*) AS active,
                  count(DISTINCT o.owner_id) AS owners,
                  count(*) FILTER (WHERE o.owner_id = c.owner_id) AS own
           {_LEASED}
              AND (o.parent_chat_id IS NULL) = (c.parent_chat_id IS NULL)) t
     WHERE c.id = $1
       AND {_WAITS}
"""


class Pool(StrEnum):
    ROOT = "root"
    SUBAGENT = "subagent"

    @classmethod
    def of(cls, *, is_root: bool) -> Pool:
        return cls.ROOT if is_root else cls.SUBAGENT


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of both pools. 0 means no limit."""

    running_roots: int = 200
    running_subagents: int = 40

    def of(self, pool: Pool) -> int:
        return self.running_roots if pool is Pool.ROOT else self.running_subagents


# For each owner: the number of slots that it holds in a pool, and its first waiting chat. That chat is found by one
# descent of the index chats_acquire per owner, past the chats that hold a slot. The rest of a backlog is not read.
_CLAIMS = (
    """
    WITH RECURSIVE owners AS ("""
    + OWNERS.replace("{status}", "running")
    + f"""),
         held AS MATERIALIZED (
         SELECT o.owner_id, count(*) AS chats
         {_LEASED}
            AND (o.parent_chat_id IS NULL) = {{is_root}}
          GROUP BY 1),
         waiting AS (
         SELECT o.owner_id, f.id, f.snapshot_version, f.runnable_since
           FROM owners o
          CROSS JOIN LATERAL (
                SELECT c.id, c.snapshot_version, c.runnable_since
                  FROM chats c
                 WHERE (c.parent_chat_id IS NULL) IS {{is_root}}
                   AND c.owner_id = o.owner_id
                   AND {_WAITS}
                 ORDER BY c.runnable_since, c.id
                 LIMIT 1) f)
    SELECT coalesce(h.owner_id, w.owner_id), coalesce(h.chats, 0), w.id, w.snapshot_version, w.runnable_since
      FROM held h
      FULL JOIN waiting w ON w.owner_id = h.owner_id
"""
)
LIST_CLAIMS: Mapping[Pool, str] = {
    Pool.ROOT: _CLAIMS.format(is_root="true"),
    Pool.SUBAGENT: _CLAIMS.format(is_root="false"),
}


class Slot(msgspec.Struct, frozen=True):
    """An owner that holds slots in a pool."""

    owner_id: UUID
    pool: Pool

    @classmethod
    def of(cls, chat: Chat) -> Slot:
        return cls(chat.owner_id, Pool.of(is_root=chat.is_root))


class PoolCounts(msgspec.Struct, frozen=True):
    """`active` chats hold a slot, and `queued` chats wait for one. `queued` is 0 while the pool has room."""

    active: int
    queued: int


async def admit(tx: Tx, limits: Limits) -> bool:
    """Return whether the chat may be acquired now. `try_acquire` calls this inside its transaction.

    Interrupts and deadlines of client calls need no slot. The lock of the pool is held until the commit, so two workers
    cannot take the same last slot. The chat itself is not counted, because a new owner takes over the slot that the
    chat already has.
    """
    if not needs_slot(tx.chat, limits):
        return True
    pool = Pool.of(is_root=tx.chat.is_root)
    # Two statements: one statement that waits for the lock would count the rows from before the wait.
    await lock_pool(tx.conn, pool)
    others = await tx.conn.fetchrow(COUNT_OTHERS, tx.chat.is_root, tx.chat.id, tx.chat.owner_id)
    assert others is not None
    use, limit = Use(*others), limits.of(pool)
    if not fair_share.may_start(limit, use):
        return False
    if use.own == 0 or fair_share.may_start(limit, use.with_one_more()):
        return True
    # This is the last unreserved slot. An owner with fewer slots may be waiting for it.
    return not fair_share.blocks_waiting_owner(limit, use, await list_claims(tx.conn, pool), chat_id=tx.chat.id)


async def list_claims(conn: Connection, pool: Pool) -> list[Claim]:
    """Return a claim for each owner who has a running or waiting chat in this pool."""
    return [
        Claim(owner_id, held, None if chat_id is None else WaitingChat(chat_id, version, since))
        for owner_id, held, chat_id, version, since in await conn.fetch(LIST_CLAIMS[pool])
    ]


async def lock_pool(conn: Connection, pool: Pool) -> None:
    """Lock the pool until the end of the transaction.

    No other transaction can take or release one of its slots meanwhile.
    """
    await conn.execute(_LOCK, LOCK_CLASS, list(Pool).index(pool))


def needs_slot(chat: Chat, limits: Limits) -> bool:
    return chat.status == Status.RUNNING and limits.of(Pool.of(is_root=chat.is_root)) > 0


async def is_queued_for_capacity(conn: Connection, chat_id: ChatId, *, limits: Limits) -> bool:
    """Return whether the chat waits only because its pool has no room for its owner."""
    record = await conn.fetchrow(IS_WAITING, chat_id)
    if record is None:
        return False
    limit = limits.of(Pool.of(is_root=record["is_root"]))
    if limit == 0:
        return False
    return not fair_share.may_start(limit, Use(record["active"], record["owners"], record["own"]))


async def count_pools(conn: Connection, *, limits: Limits) -> Mapping[Pool, PoolCounts]:
    """Count the running and waiting chats of the whole deployment."""
    record = await conn.fetchrow(COUNT_POOLS)
    assert record is not None
    return {
        Pool.ROOT: _counts(*record[:3], limit=limits.running_roots),
        Pool.SUBAGENT: _counts(*record[3:], limit=limits.running_subagents),
    }


def _counts(active: int, owners: int, waiting: int, *, limit: int) -> PoolCounts:
    """Return the counts. The pool has room if it could start one more chat for an owner that runs one chat."""
    has_room = limit == 0 or fair_share.may_start(limit, Use(active, owners, min(active, 1)))
    return PoolCounts(active, 0 if has_room else waiting)


async def find_donors(conn: Connection, limits: Limits) -> set[Slot]:
    """Return the owners above their fair share while other owners wait, each with the pool.

    Each of these owners has to release a slot.
    """
    return {
        Slot(owner_id, pool)
        for pool in Pool
        if (limit := limits.of(pool))
        for owner_id in fair_share.find_donors(limit, await list_claims(conn, pool))
    }


@transition
async def give_way(tx: Tx, *, to: WaitingChat) -> Chat:
    """Release a running chat between two steps, so that another chat can run. The released chat keeps its position in
    the order.

    The hint names the other chat, because workers acquire the chat that a hint names, and the released chat has to
    wait.
    """
    source, runner_id = tx.require(Transition.GIVE_WAY), tx.chat.runner_id
    if runner_id is None:
        raise TransitionNotAllowed(Transition.GIVE_WAY, source, "No worker owns this chat.", cause="not_owned")
    await tx.settle(Transition.GIVE_WAY, "worker_id = NULL, runner_id = NULL")
    await delete_leases(tx.conn, [(tx.chat.id, runner_id)])
    tx.has_left = True
    tx.successor = OwnershipHint(chat_id=to.chat_id, snapshot_version=to.snapshot_version)
    return tx.chat


async def find_receiver(tx: Tx, limits: Limits) -> WaitingChat | None:
    """Return the chat that gets the slot of this chat; None if this chat may continue. Locks the pool."""
    slot = Slot.of(tx.chat)
    if not (limit := limits.of(slot.pool)):
        return None
    await lock_pool(tx.conn, slot.pool)
    claims = await list_claims(tx.conn, slot.pool)
    return fair_share.find_receiver(limit, claims, donor=slot.owner_id)
