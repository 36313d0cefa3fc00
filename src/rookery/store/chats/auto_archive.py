"""Queries for families that are due for automatic archiving. The machine archives them one by one.

The cutoff is a midnight in UTC, so families become due once a day.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_61726368  # "rookarch"; the one-key space of advisory locks
MAX_FAMILIES = 1000

# There is no index for this query, because every transition would have to update it, and the query runs once an hour at
# most. The newest message of each member is one descent of messages_live: in a chat, ids ascend with time.
LIST_DUE = """
    SELECT c.id, c.owner_id, c.title
      FROM chats c
     WHERE c.parent_chat_id IS NULL
       AND NOT c.archived
       AND c.status IN ('waiting', 'error')
       AND c.created_at < $1
       AND NOT EXISTS (SELECT FROM chat_pins p WHERE p.chat_id = c.id)
       AND NOT EXISTS (
           SELECT FROM chats k
            WHERE k.root_chat_id = c.id
              AND (k.status NOT IN ('waiting', 'error') OR k.created_at >= $1))
       AND NOT EXISTS (
           SELECT FROM (SELECT c.id UNION ALL SELECT k.id FROM chats k WHERE k.root_chat_id = c.id) AS member (id)
            CROSS JOIN LATERAL (
                  SELECT m.created_at
                    FROM chat_messages m
                   WHERE m.chat_id >= member.id AND m.chat_id <= member.id
                     AND NOT m.deleted
                   ORDER BY m.chat_id DESC, m.id DESC
                   LIMIT 1) newest
            WHERE newest.created_at >= $1)
     ORDER BY c.created_at, c.id
     LIMIT $2
"""
COUNT_DUE = f"SELECT count(*) FROM ({LIST_DUE}) due"
TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
UNLOCK = "SELECT pg_advisory_unlock($1)"


class DueFamily(msgspec.Struct, frozen=True):
    """A root to archive with its subagents' chats. The title is shown in the notice to the owner."""

    root_id: ChatId
    owner_id: UUID
    title: str


def cutoff(now: datetime, days: int) -> datetime:
    """Return the midnight (UTC) `days` days ago. A family that was last used before it is due."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=days)


async def list_due(conn: Connection, before: datetime, *, limit: int = MAX_FAMILIES) -> list[DueFamily]:
    """List families at rest without a pin whose newest message is older than `before`, oldest families first."""
    return [DueFamily(*record) for record in await conn.fetch(LIST_DUE, before, limit)]


async def count_due(conn: Connection, before: datetime, *, limit: int = MAX_FAMILIES) -> int:
    """Count the families that `list_due` finds, up to `limit`. Counting all of them could take long."""
    found: int = await conn.fetchval(COUNT_DUE, before, limit)
    return found


async def try_lock(conn: Connection) -> bool:
    """Take the lock of the replica that archives; `conn` holds it until `unlock`. Returns False if it is taken."""
    taken: bool = await conn.fetchval(TRY_LOCK, LOCK_KEY)
    return taken


async def unlock(conn: Connection) -> None:
    await conn.execute(UNLOCK, LOCK_KEY)
