"""Leases from the owner's side: a worker's queries about its chats, and releasing them.

Only `try_abandon` moves a version. `renew_leases` is in `ownership`, next to the code it races with.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.store.db.hints import ChatHint, OwnershipHint
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import Bundle, Tx
from rookery.store.machine.lock import Machine
from rookery.store.machine.ownership import LeaseKey, abandon

# The fields of `ChatState`, in its order.
STATES = """
    SELECT id, worker_id, runner_id, snapshot_version, history_version, generation_attempt, status, archived,
           requires_action_deadline_at
      FROM chats
     WHERE id = ANY ($1::uuid[])
"""

# Older than any lease may be, so its owner does not matter. SKIP LOCKED: a sweep waits neither for a beat nor for a
# chat that is being deleted, so it cannot be part of a deadlock.
SWEEP = """
    DELETE FROM chat_heartbeats
     WHERE (chat_id, runner_id) IN (
           SELECT chat_id, runner_id
             FROM chat_heartbeats
            WHERE heartbeat_at <= clock_timestamp() - greatest(lease_ttl(), (SELECT max(lease_ttl) FROM replicas))
              FOR UPDATE SKIP LOCKED)
    RETURNING chat_id
"""

DELETE = """
    DELETE FROM chat_heartbeats h
     USING unnest($1::uuid[], $2::uuid[]) AS k (chat_id, runner_id)
     WHERE h.chat_id = k.chat_id AND h.runner_id = k.runner_id
"""

# The pairs stay on the chats: fences are valid until the next acquisition.
RELEASE = f"""
    WITH released AS ({DELETE} RETURNING h.chat_id, h.runner_id)
    SELECT c.id, c.snapshot_version
      FROM released r
      JOIN chats c ON c.id = r.chat_id AND c.runner_id = r.runner_id
     WHERE c.status IN ('running', 'interrupting', 'requires_action')
       AND NOT c.archived
       AND NOT (c.awaits_approval AND c.requires_action_deadline_at IS NULL)
"""


class ChatState(msgspec.Struct, frozen=True):
    """The state of a chat that its runner follows. The status is plain text: a newer version may know more of them."""

    chat_id: ChatId
    worker_id: UUID | None
    runner_id: UUID | None
    snapshot_version: int
    history_version: int
    generation_attempt: int
    status: str
    archived: bool
    requires_action_deadline_at: datetime | None = None

    @classmethod
    def of(cls, chat: Chat) -> ChatState:
        """Return the state of a row that was read, or that a transition returned."""
        return cls(
            chat.id,
            chat.worker_id,
            chat.runner_id,
            chat.snapshot_version,
            chat.history_version,
            chat.generation_attempt,
            chat.status,
            chat.archived,
            chat.requires_action_deadline_at,
        )

    @classmethod
    def told(cls, hint: ChatHint) -> ChatState:
        """Return the state in a hint, which does not carry the deadline: callers that need it read the row."""
        return cls(
            ChatId(hint.chat_id),
            hint.worker_id,
            hint.runner_id,
            hint.snapshot_version,
            hint.history_version,
            hint.generation_attempt,
            hint.status,
            hint.archived,
        )


async def states_of(conn: Connection, chat_ids: Collection[UUID]) -> dict[ChatId, ChatState]:
    """Return the states of many chats by one query. A chat that is not in the answer is deleted."""
    records = await conn.fetch(STATES, list(chat_ids))
    return {record["id"]: ChatState(*record) for record in records}


async def sweep_leases(conn: Connection) -> int:
    """Delete heartbeats that are older than the longest lease of any replica. Returns how many.

    A runner whose row is deleted had lost its lease before; its next beat writes the row again if its chat is still
    free.
    """
    return len(await conn.fetch(SWEEP))


async def delete_leases(conn: Connection, keys: Collection[LeaseKey]) -> None:
    """Delete the heartbeats of finished runners. Rows that are already gone are ignored."""
    await conn.execute(DELETE, *_columns(keys))


async def release_leases(conn: Connection, keys: Collection[LeaseKey]) -> list[OwnershipHint]:
    """Release all chats at the end of a process. Returns the hints to publish: the chats that need a new owner.

    This is no transition: owners stay recorded, so a commit in progress still counts unless the chat was taken over.
    """
    records = await conn.fetch(RELEASE, *_columns(keys))
    return [OwnershipHint(chat_id=record["id"], snapshot_version=record["snapshot_version"]) for record in records]


class _NotOurs(Exception):
    """Raised to roll the bundle back: no version, no hint."""


async def leave(tx: Tx) -> Chat:
    """Abandon the chat together with its heartbeat row, so that no trace of the runner is left after the commit."""
    runner_id = tx.chat.runner_id
    chat = await abandon(tx)
    assert runner_id is not None, "`abandon` refuses a chat that nobody owns"
    await delete_leases(tx.conn, [(chat.id, runner_id)])
    return chat


async def try_abandon(machine: Machine, chat_id: UUID, *, worker_id: UUID, runner_id: UUID) -> Chat | None:
    """Abandon the chat if this runner still owns it, in any state; else change nothing and return None.

    For a chat that was acquired but will not be driven. An archived chat may be abandoned as well.
    """

    async def run(bundle: Bundle) -> Chat:
        tx = await bundle.open(chat_id)
        if (tx.chat.worker_id, tx.chat.runner_id) != (worker_id, runner_id):
            raise _NotOurs
        return await leave(tx)

    try:
        return await machine.bundle(run)
    except (_NotOurs, ChatNotFound):
        return None


def _columns(keys: Collection[LeaseKey]) -> tuple[list[UUID], list[UUID]]:
    return [chat_id for chat_id, _ in keys], [runner_id for _, runner_id in keys]
