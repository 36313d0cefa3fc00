"""How many chats may be at work at once: two pools for the whole deployment, roots and subagents.

Two, so that a root can wait for its subagents without a deadlock. A slot is held by a chat with a lease, whatever its
status; that is derived from the heartbeats, never stored, so nothing can leak. Lowering a limit evicts nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from rookery.chat.chats import Chat
from rookery.chat.messages import ChatId
from rookery.chat.states import Status
from rookery.store.machine.bundle import Tx
from rookery.store.pool import Connection

LOCK_CLASS = 0x524B4350  # "RKCP"; the two-integer space of advisory locks

_LOCK = "SELECT pg_advisory_xact_lock($1, $2)"

# From the side of the heartbeats, which are few. The same rule as `leased` in `bundle.CHAT_COLUMNS`.
_LEASED = """
      FROM chat_heartbeats beat
      JOIN chats o ON o.id = beat.chat_id AND o.runner_id = beat.runner_id
      JOIN replicas owner ON owner.id = o.worker_id
     WHERE beat.heartbeat_at > clock_timestamp() - lease_ttl()
"""
COUNT_OTHERS_OF = f"SELECT count(*) {_LEASED} AND (o.parent_chat_id IS NULL) = {{is_root}} AND o.id <> {{chat}}"
COUNT_OTHERS = COUNT_OTHERS_OF.format(is_root="$1", chat="$2")

# Index chats_acquire. Runnable ones that a worker would have to wait for: others than `running` are always admitted.
_WAITS = """
           c.status = 'running'
       AND NOT c.archived
       AND (c.runner_id IS NULL
            OR NOT EXISTS (
               SELECT FROM chat_heartbeats h
                 JOIN replicas r ON r.id = c.worker_id
                WHERE h.chat_id = c.id
                  AND h.runner_id = c.runner_id
                  AND h.heartbeat_at > clock_timestamp() - lease_ttl()))
"""
COUNT_POOLS = f"""
    SELECT (SELECT count(*) {_LEASED} AND o.parent_chat_id IS NULL),
           (SELECT count(*) FROM chats c WHERE (c.parent_chat_id IS NULL) IS true AND {_WAITS}),
           (SELECT count(*) {_LEASED} AND o.parent_chat_id IS NOT NULL),
           (SELECT count(*) FROM chats c WHERE (c.parent_chat_id IS NULL) IS false AND {_WAITS})
"""
IS_WAITING = f"""
    SELECT c.parent_chat_id IS NULL AS is_root,
           (SELECT count(*) {_LEASED}
               AND (o.parent_chat_id IS NULL) = (c.parent_chat_id IS NULL)) AS active
      FROM chats c
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
    """How many chats of each pool may be at work; 0 is no limit."""

    running_roots: int = 20
    running_subagents: int = 40

    def of(self, pool: Pool) -> int:
        return self.running_roots if pool is Pool.ROOT else self.running_subagents


class PoolCounts(msgspec.Struct, frozen=True):
    """`active` chats hold a slot; `queued` ones wait for one, which is nobody while the pool has room."""

    active: int
    queued: int


async def admit(tx: Tx, limits: Limits) -> bool:
    """Whether the chat may be acquired now: for `try_acquire`, inside its transaction.

    Interrupts and deadlines of client calls must always run. Who asks for a slot holds the pool's lock until its
    commit, so two workers can never both take the last one. The chat itself does not count: a takeover is neutral.
    """
    if not needs_slot(tx.chat, limits):
        return True
    pool = Pool.of(is_root=tx.chat.is_root)
    # Two statements: one that waits for the lock would count what was there before the wait.
    await tx.conn.execute(_LOCK, LOCK_CLASS, list(Pool).index(pool))
    others: int = await tx.conn.fetchval(COUNT_OTHERS, tx.chat.is_root, tx.chat.id)
    return others < limits.of(pool)


def needs_slot(chat: Chat, limits: Limits) -> bool:
    return chat.status == Status.RUNNING and limits.of(Pool.of(is_root=chat.is_root)) > 0


async def is_queued_for_capacity(conn: Connection, chat_id: ChatId, *, limits: Limits) -> bool:
    """Whether the chat would run, if its pool had room."""
    record = await conn.fetchrow(IS_WAITING, chat_id)
    if record is None:
        return False
    limit = limits.of(Pool.of(is_root=record["is_root"]))
    return _is_full(record["active"], limit)


async def count_pools(conn: Connection, *, limits: Limits) -> Mapping[Pool, PoolCounts]:
    """Who is at work and who waits, in the whole deployment."""
    record = await conn.fetchrow(COUNT_POOLS)
    assert record is not None
    roots, waiting_roots, subagents, waiting_subagents = record
    return {
        Pool.ROOT: _counts(roots, waiting_roots, limits.running_roots),
        Pool.SUBAGENT: _counts(subagents, waiting_subagents, limits.running_subagents),
    }


def _counts(active: int, waiting: int, limit: int) -> PoolCounts:
    return PoolCounts(active, waiting if _is_full(active, limit) else 0)


def _is_full(active: int, limit: int) -> bool:
    return 0 < limit <= active
