"""Numbers about the whole installation, for `rookery admin status` and `doctor`."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from rookery.store.db.pool import Connection, explained_refusals

_SERVER = """
    SELECT current_setting('server_version') AS version,
           current_setting('transaction_read_only')::bool AS read_only
"""
_OVERVIEW = """
    SELECT coalesce(max(version), 0) AS schema_version,
           current_setting('server_version') AS server_version,
           pg_database_size(current_database()) AS size_bytes
      FROM schema_migrations
"""
# Runnable chats are counted exactly, by a small index. There may be millions of other chats, so their number is taken
# from the statistics of the planner.
_BUSY = """
    SELECT status, count(*) AS number, count(*) FILTER (WHERE worker_id IS NULL) AS unowned
      FROM chats
     WHERE status IN ('running', 'interrupting', 'requires_action')
     GROUP BY status
"""
_TOTAL = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'chats'::regclass"
_OWNED = """
    SELECT worker_id, count(*)
      FROM chats
     WHERE status IN ('running', 'interrupting', 'requires_action')
       AND worker_id IS NOT NULL
     GROUP BY worker_id
"""
_CLOCK = "SELECT clock_timestamp()"
_USERS = "SELECT count(*) FROM users WHERE status = 'active'"


class Server(msgspec.Struct, frozen=True):
    version: str
    read_only: bool


class Overview(msgspec.Struct, frozen=True):
    """Numbers about chats.

    `chats` counts runnable chats by status. `total_estimate` is the approximate number of all chats.
    """

    schema_version: int
    server_version: str
    size_bytes: int
    chats: dict[str, int]
    total_estimate: int
    unowned: int


async def read_server(conn: Connection) -> Server:
    record = await conn.fetchrow(_SERVER)
    assert record is not None
    return Server(*record)


async def read_clock(conn: Connection) -> datetime:
    now: datetime = await conn.fetchval(_CLOCK)
    return now


async def count_users(conn: Connection) -> int:
    """Count the active users."""
    number: int = await conn.fetchval(_USERS)
    return number


async def count_owned(conn: Connection) -> dict[UUID, int]:
    """Return the number of runnable chats that each replica owns. Replicas without chats are left out."""
    return {worker_id: count for worker_id, count in await conn.fetch(_OWNED)}


async def read(conn: Connection) -> Overview:
    with explained_refusals():
        record = await conn.fetchrow(_OVERVIEW)
        busy = await conn.fetch(_BUSY)
        total = await conn.fetchval(_TOTAL)
    assert record is not None
    chats = {status: 0 for status in ("running", "interrupting", "requires_action")}
    chats |= {row["status"]: row["number"] for row in busy}
    return Overview(
        schema_version=record["schema_version"],
        server_version=record["server_version"],
        size_bytes=record["size_bytes"],
        chats=chats,
        total_estimate=max(total, sum(chats.values())),
        unowned=sum(row["unowned"] for row in busy),
    )
