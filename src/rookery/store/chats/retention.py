"""Retention: queries for archived families whose period has ended, and deletion of files that no chat links.

`authorized.chats` deletes the families.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_70757267  # "rookpurg"; the one-key space of advisory locks
# An upload that no message has used for this long is deleted.
UNLINKED_FOR = timedelta(hours=24)

# In the order of the index chats_purge. It continues after a given family, so that families that cannot be deleted are
# not listed again.
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
# A file is skipped while another transaction links it, which holds a lock on its row. A transaction that links it later
# waits for this one, and then finds the file deleted.
LOCK_UNLINKED = """
    SELECT f.id
      FROM chat_files f
     WHERE f.created_at < $1
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
     ORDER BY f.created_at
     LIMIT $2
       FOR UPDATE OF f SKIP LOCKED
"""
# A separate statement, which sees links that were committed between the check and the lock.
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
    """List families that were archived before this time, oldest first. With `after`, list only those after it."""
    at, root_id = (None, None) if after is None else (after.archived_at, after.root_id)
    return [DueFamily(*record) for record in await conn.fetch(LIST_DUE, before, at, root_id, limit)]


async def count_due(conn: Connection, before: datetime) -> int:
    """Count the families that were archived before this time."""
    found: int = await conn.fetchval(COUNT_DUE, before)
    return found


async def try_lock(conn: Connection) -> bool:
    """Take the lock of the replica that deletes families; `conn` holds it until it is closed.

    Returns False if it is taken.
    """
    taken: bool = await conn.fetchval(TRY_LOCK, LOCK_KEY)
    return taken


async def purge_files(conn: Connection, *, before: datetime, batch: int) -> tuple[int, int]:
    """Delete at most `batch` unlinked files from before this time. Returns the numbers of examined and deleted files.

    If fewer than `batch` were examined, no more are left. Concurrent replicas lock different files.
    """
    async with conn.transaction():
        found = [record["id"] for record in await conn.fetch(LOCK_UNLINKED, before, batch)]
        return len(found), len(await conn.fetch(DELETE_UNLINKED, found)) if found else 0
