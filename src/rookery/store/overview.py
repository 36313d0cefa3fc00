"""The whole installation at a glance, for operators: what `rookery admin status` and `doctor` show."""

from __future__ import annotations

from datetime import datetime

import msgspec

from rookery.store.pool import Connection

_SERVER = """
    SELECT current_setting('server_version') AS version,
           current_setting('max_connections')::int AS max_connections
"""
_OVERVIEW = """
    SELECT coalesce(max(version), 0) AS schema_version,
           current_setting('server_version') AS server_version,
           pg_database_size(current_database()) AS size_bytes
      FROM schema_migrations
"""
# Runnable chats are counted exactly, by their small index. At rest there may be millions of them; the planner's
# statistics are good enough for a glance.
_BUSY = """
    SELECT status, count(*) AS number, count(*) FILTER (WHERE worker_id IS NULL) AS unowned
      FROM chats
     WHERE status IN ('running', 'interrupting', 'requires_action')
     GROUP BY status
"""
_TOTAL = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'chats'::regclass"
_CLOCK = "SELECT clock_timestamp()"


class Server(msgspec.Struct, frozen=True):
    version: str
    max_connections: int


class Overview(msgspec.Struct, frozen=True):
    """`chats` counts by status what is at work, and all of them about."""

    schema_version: int
    server_version: str
    size_bytes: int
    chats: dict[str, int]
    unowned: int


async def read_server(conn: Connection) -> Server:
    record = await conn.fetchrow(_SERVER)
    assert record is not None
    return Server(*record)


async def read_clock(conn: Connection) -> datetime:
    now: datetime = await conn.fetchval(_CLOCK)
    return now


async def read(conn: Connection) -> Overview:
    record = await conn.fetchrow(_OVERVIEW)
    assert record is not None
    busy = await conn.fetch(_BUSY)
    chats = {status: 0 for status in ("running", "interrupting", "requires_action")}
    chats |= {row["status"]: row["number"] for row in busy}
    total = await conn.fetchval(_TOTAL)
    return Overview(
        schema_version=record["schema_version"],
        server_version=record["server_version"],
        size_bytes=record["size_bytes"],
        chats={**chats, "all, about": max(total, sum(chats.values()))},
        unowned=sum(row["unowned"] for row in busy),
    )
