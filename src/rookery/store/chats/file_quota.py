"""The quota of files that no chat links: a user's uploads, and copies of shared files."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rookery.store.db.pool import Connection
from rookery.store.people.errors import QuotaExceeded

MAX_UNLINKED_FILES = 200
MAX_UNLINKED_BYTES = 500 * 1024 * 1024

# Uploads of one user are serialized, so that together they stay within the limit.
LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
UNLINKED = """
    SELECT count(*), coalesce(sum(f.size_bytes), 0)::bigint
      FROM chat_files f
     WHERE f.owner_id = $1
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
"""


async def require_room(conn: Connection, user_id: UUID, *, sizes: Sequence[int]) -> None:
    """Raise `QuotaExceeded` if files of these sizes would exceed the number or the size."""
    await conn.execute(LOCK_USER, user_id)
    record = await conn.fetchrow(UNLINKED, user_id)
    assert record is not None
    if record[0] + len(sizes) > MAX_UNLINKED_FILES or record[1] + sum(sizes) > MAX_UNLINKED_BYTES:
        raise QuotaExceeded("You have uploaded too many files that no chat uses. Send or delete some first.")
