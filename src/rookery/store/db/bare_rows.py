"""A bare table with one transaction per write: the floor of `rookery bench` for everything that is stored."""

from __future__ import annotations

from rookery.store.db.pool import Connection

_CREATE = "CREATE TABLE IF NOT EXISTS bench_rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, content text)"
_INSERT = "INSERT INTO bench_rows (content) VALUES ($1)"


async def create_table(conn: Connection) -> None:
    await conn.execute(_CREATE)


async def insert(conn: Connection, content: str) -> None:
    """Insert a row in a transaction of its own."""
    await conn.execute(_INSERT, content)
