"""A database that a test has used is like new for the next one, or is not used again."""

from __future__ import annotations

import asyncpg
import pytest

from tests.database import Server, fresh_database
from tests.store.machine.rig import make_rig

TABLES = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'schema_migrations'
"""


async def test_rows_and_numbers_of_another_test_are_gone(database_server: Server) -> None:
    async with fresh_database(database_server) as url, make_rig(url) as rig:
        await rig.create()
        first = await rig.value("SELECT min(id) FROM chat_messages")
    async with fresh_database(database_server) as again:
        assert again == url
        connection = await asyncpg.connect(again)
        try:
            for record in await connection.fetch(TABLES):
                assert await connection.fetchval(f"SELECT count(*) FROM {record[0]}") == 0, record[0]
        finally:
            await connection.close()
        async with make_rig(again) as rig:
            await rig.create()
            assert await rig.value("SELECT min(id) FROM chat_messages") == first


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE chats DISABLE TRIGGER USER",
        "ALTER TABLE chats RENAME COLUMN title TO name; ALTER TABLE chats RENAME COLUMN name TO title",
        "DROP INDEX chats_label",
        "ALTER TABLE chats DROP CONSTRAINT chats_status",
        "CREATE TABLE more (word text)",
        "CREATE TEMPORARY TABLE more (word text)",
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "INSERT INTO settings (key, value) VALUES ('a', '{}'); ANALYZE settings",
        "DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 1024', current_database()); END $$",
        "INSERT INTO settings (key, value) SELECT n, to_jsonb(repeat('a', 200)) FROM generate_series(1, 2000) AS n",
    ],
)
async def test_database_that_was_changed_is_not_used_again(database_server: Server, change: str) -> None:
    async with fresh_database(database_server) as url:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(change)
        finally:
            await connection.close()
    async with fresh_database(database_server) as again:
        assert again != url


async def test_database_that_somebody_is_connected_to_is_not_used_again(database_server: Server) -> None:
    async with fresh_database(database_server) as url:
        connection = await asyncpg.connect(url)
    try:
        async with fresh_database(database_server) as again:
            assert again != url
    finally:
        connection.terminate()
