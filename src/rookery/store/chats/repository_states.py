"""The last known state of each repository that a chat works in. Lists and badges read it without contacting the
workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection, atomic

COLUMNS = "root, branch, remote_origin, additions, deletions, changed_files, refreshed_at"
LIST = f"""
    SELECT {COLUMNS}
      FROM chat_diff_status
     WHERE chat_id = $1
     ORDER BY changed_files DESC, root
"""
# Writes nothing if only the time differs; then no hint is published.
WRITE = """
    INSERT INTO chat_diff_status AS d
           (chat_id, root, branch, remote_origin, additions, deletions, changed_files, refreshed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (chat_id, root) DO UPDATE
       SET branch = excluded.branch, remote_origin = excluded.remote_origin, additions = excluded.additions,
           deletions = excluded.deletions, changed_files = excluded.changed_files, refreshed_at = excluded.refreshed_at
     WHERE (d.branch, d.remote_origin, d.additions, d.deletions, d.changed_files)
       IS DISTINCT FROM
           (excluded.branch, excluded.remote_origin, excluded.additions, excluded.deletions, excluded.changed_files)
    RETURNING root
"""
REMOVE = "DELETE FROM chat_diff_status WHERE chat_id = $1 AND root = ANY ($2::text[]) RETURNING root"
# The repository of a chat `c` with the most changes, for badges. Reads at most about `MAX_ROOTS` rows.
MOST_CHANGED = f"""
    SELECT {COLUMNS}
      FROM chat_diff_status
     WHERE chat_id = c.id
     ORDER BY changed_files DESC, root
     LIMIT 1
"""
MAX_ROOTS = 20


class DiffStatus(msgspec.Struct, frozen=True):
    """The last known state of a repository."""

    root: str
    branch: str | None
    remote_origin: str | None
    additions: int
    deletions: int
    changed_files: int
    refreshed_at: datetime


async def list_diffs(conn: Connection, chat_id: ChatId) -> list[DiffStatus]:
    """List the repositories of a chat, the one with the most changes first."""
    return [DiffStatus(*record) for record in await conn.fetch(LIST, chat_id)]


async def write_diffs(
    conn: Connection, chat_id: ChatId, *, found: Sequence[DiffStatus], removed: Sequence[str] = ()
) -> bool:
    """Store the result of a scan. Returns whether the state changed; if so, the caller notifies the watchers."""
    has_changed = False
    async with atomic(conn):
        for each in found[:MAX_ROOTS]:
            has_changed |= await conn.fetchval(WRITE, chat_id, *msgspec.structs.astuple(each)) is not None
        if removed:
            has_changed |= bool(await conn.fetch(REMOVE, chat_id, list(removed)))
    return has_changed
