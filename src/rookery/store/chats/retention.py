"""What has had its time: archived families past the days they are kept for, and files that no chat links.

Removing a family is the machine's work, by `authorized.chats`; removing files is done here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_70757267  # "rookpurg"; the one-key space of advisory locks
# How long a file may wait for the message that it was uploaded for.
UNLINKED_FOR = timedelta(hours=24)

# In the order of the index chats_purge, and on from the last one: those that cannot go must not be met again and again.
LIST_DUE = """
    SELECT id, archived_at
      FROM chats
     WHERE parent_chat_id IS NULL
       AND archived
       AND archived_at < $1
       AND ($2::timestamptz IS NULL OR (archived_at, id) > ($2, $3))
     ORDER BY archived_at, id
     LIMIT $4
"""
COUNT_DUE = """
    SELECT count(*)
      FROM chats
     WHERE parent_chat_id IS NULL
       AND archived
       AND archived_at < $1
"""
TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
# A link that is being made holds its file, which is then passed over. Once the row is locked no link can appear: who
# wants to make one waits for this transaction, and finds the file gone.
LOCK_UNLINKED = """
    SELECT f.id
      FROM chat_files f
     WHERE f.created_at < $1
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
     ORDER BY f.created_at
     LIMIT $2
       FOR UPDATE OF f SKIP LOCKED
"""
# A statement of its own, so that it sees links that were committed between the look and the lock.
DELETE_UNLINKED = """
    DELETE FROM chat_files f
     WHERE f.id = ANY ($1::uuid[])
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
    RETURNING f.id
"""


class DueFamily(msgspec.Struct, frozen=True):
    root_id: ChatId
    archived_at: datetime


async def list_due(
    conn: Connection, before: datetime, *, limit: int, after: DueFamily | None = None
) -> list[DueFamily]:
    """Families that were archived before that, the oldest first; those behind `after` if it is given."""
    at, root_id = (None, None) if after is None else (after.archived_at, after.root_id)
    return [DueFamily(*record) for record in await conn.fetch(LIST_DUE, before, at, root_id, limit)]


async def count_due(conn: Connection, before: datetime) -> int:
    """How many families were archived before that."""
    found: int = await conn.fetchval(COUNT_DUE, before)
    return found


async def try_lock(conn: Connection) -> bool:
    """Be the one replica that removes families. Needs a connection of its own, which holds the lock to its end."""
    taken: bool = await conn.fetchval(TRY_LOCK, LOCK_KEY)
    return taken


async def purge_files(conn: Connection, *, before: datetime, batch: int) -> tuple[int, int]:
    """Remove files from before that which no chat links, at most a batch: how many were looked at, and how many went.

    Fewer looked at than `batch` means that none is left. Of two replicas each takes files of its own.
    """
    async with conn.transaction():
        found = [record["id"] for record in await conn.fetch(LOCK_UNLINKED, before, batch)]
        return len(found), len(await conn.fetch(DELETE_UNLINKED, found)) if found else 0
