"""Retention: archived families past their retention period, and files that no chat links.

`authorized.chats` deletes families through the machine; files are deleted here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_70757267  # "rookpurg"; the one-key space of advisory locks
# How long a file may wait for the message that it was uploaded for.
UNLINKED_FOR = timedelta(hours=24)

# In the order of the index chats_purge, continuing after the last one: families that cannot be deleted must not be met
# repeatedly.
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
# A link in progress holds its file, which is then skipped. Once the row is locked no link can appear: a transaction
# that wants to link it waits for this one, and finds the file gone.
LOCK_UNLINKED = """
    SELECT f.id
      FROM chat_files f
     WHERE f.created_at < $1
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
     ORDER BY f.created_at
     LIMIT $2
       FOR UPDATE OF f SKIP LOCKED
"""
# A separate statement, so that it sees links that were committed between the check and the lock.
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
    """List families that were archived before this time, oldest first; only those behind `after` if it is given."""
    at, root_id = (None, None) if after is None else (after.archived_at, after.root_id)
    return [DueFamily(*record) for record in await conn.fetch(LIST_DUE, before, at, root_id, limit)]


async def count_due(conn: Connection, before: datetime) -> int:
    """Count the families that were archived before this time."""
    found: int = await conn.fetchval(COUNT_DUE, before)
    return found


async def try_lock(conn: Connection) -> bool:
    """Try to become the one replica that deletes families. Needs its own connection, which holds the lock to
    its end.
    """
    taken: bool = await conn.fetchval(TRY_LOCK, LOCK_KEY)
    return taken


async def purge_files(conn: Connection, *, before: datetime, batch: int) -> tuple[int, int]:
    """Delete unlinked files older than this time, at most a batch. Returns how many were examined and deleted.

    Fewer examined than `batch` means that none is left. Concurrent replicas take different files.
    """
    async with conn.transaction():
        found = [record["id"] for record in await conn.fetch(LOCK_UNLINKED, before, batch)]
        return len(found), len(await conn.fetch(DELETE_UNLINKED, found)) if found else 0
