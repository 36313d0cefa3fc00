"""Release of leases, and the states of chats that a worker owns.

Only `leave` and `try_abandon` change a version. `renew_leases` is in `ownership`, next to the code that it races with.
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
from rookery.store.machine.bundle_runner import Machine
from rookery.store.machine.ownership import LeaseKey, abandon

# The fields of `ChatState`, in their order.
STATES = """
    SELECT id, worker_id, runner_id, snapshot_version, history_version, generation_attempt, status, archived,
           requires_action_deadline_at
      FROM chats
     WHERE id = ANY ($1::uuid[])
"""

# Deletes heartbeats that are older than any possible lease. With SKIP LOCKED, a sweep does not wait for a heartbeat or
# for the deletion of a chat, so it cannot deadlock.
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

# worker_id and runner_id stay in the chat, so fences are valid until the next acquisition.
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
    """The columns of a chat that its runner reads.

    The status is a `str`, because a newer version may have other statuses.
    """

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
        """Return the state of a chat's row."""
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
    def from_hint(cls, hint: ChatHint) -> ChatState:
        """Return the state in a hint. A hint has no deadline; callers that need it read the row."""
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
    """Return the states of these chats by one query. Deleted chats are missing in the result."""
    records = await conn.fetch(STATES, list(chat_ids))
    return {record["id"]: ChatState(*record) for record in records}


async def sweep_leases(conn: Connection) -> int:
    """Delete heartbeats that are older than the longest lease of any replica. Returns their number.

    The leases of these rows had already expired. A later heartbeat inserts the row again if no other runner has taken
    the chat.
    """
    return len(await conn.fetch(SWEEP))


async def delete_leases(conn: Connection, keys: Collection[LeaseKey]) -> None:
    """Delete the heartbeats of finished runners. Missing rows are ignored."""
    await conn.execute(DELETE, *_columns(keys))


async def release_leases(conn: Connection, keys: Collection[LeaseKey]) -> list[OwnershipHint]:
    """Release chats at the end of a process. Returns the hints to publish, for chats that need a new owner.

    This is not a transition: the owner stays in the row, so a commit in progress succeeds unless another runner has
    taken the chat.
    """
    records = await conn.fetch(RELEASE, *_columns(keys))
    return [OwnershipHint(chat_id=record["id"], snapshot_version=record["snapshot_version"]) for record in records]


class _NotOwner(Exception):
    """Raised to roll the bundle back, so that no version changes and no hint is published."""


async def leave(tx: Tx) -> Chat:
    """Abandon the chat and delete its heartbeat row."""
    runner_id = tx.chat.runner_id
    chat = await abandon(tx)
    assert runner_id is not None, "`abandon` refuses a chat without an owner"
    await delete_leases(tx.conn, [(chat.id, runner_id)])
    tx.has_left = True
    return chat


async def try_abandon(machine: Machine, chat_id: UUID, *, worker_id: UUID, runner_id: UUID) -> Chat | None:
    """Abandon a chat that was acquired but will not be run. Allowed in any state, even if the chat is archived.

    Return None and change nothing if this runner does not own the chat any more.
    """

    async def run(bundle: Bundle) -> Chat:
        tx = await bundle.open(chat_id)
        if (tx.chat.worker_id, tx.chat.runner_id) != (worker_id, runner_id):
            raise _NotOwner
        return await leave(tx)

    try:
        return await machine.bundle(run)
    except (_NotOwner, ChatNotFound):
        return None


def _columns(keys: Collection[LeaseKey]) -> tuple[list[UUID], list[UUID]]:
    return [chat_id for chat_id, _ in keys], [runner_id for _, runner_id in keys]
