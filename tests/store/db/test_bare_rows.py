"""The bare table of `rookery bench`."""

from __future__ import annotations

from rookery.store.db import bare_rows
from rookery.store.db.pool import Database, DatabaseConfig


async def test_rows_are_written_and_the_table_is_created_once(database_url: str) -> None:
    async with (
        await Database.connect(DatabaseConfig(database_url)) as database,
        database.api.acquire() as conn,
    ):
        await bare_rows.create_table(conn)
        await bare_rows.create_table(conn)
        await bare_rows.insert(conn, "hello")

        assert [row["content"] for row in await conn.fetch("SELECT content FROM bench_rows")] == ["hello"]
