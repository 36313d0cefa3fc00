"""A statement that is cancelled right after its preparation: the server is in a transaction that asyncpg does not
know.
"""

from __future__ import annotations

import asyncio
import select
import time

import asyncpg
import pytest

from rookery.store.db.pool import Connection, Database, DatabaseConfig

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


async def cancel_when_prepared(conn: Connection) -> None:
    """Cancel a statement in the event loop step in which the response to its prepare arrives."""
    await conn.fetchval("SELECT 2")  # so that asyncpg has asked all it wants to know
    socket = conn._transport.get_extra_info("socket")  # type: ignore[union-attr]
    statement = asyncio.ensure_future(conn.fetchval("SELECT 1"))
    await asyncio.sleep(0)  # it has asked, and what it hears is read after us
    asyncio.get_running_loop().call_later(0.001, statement.cancel)
    # Blocks the loop, so that answer and timer are due in the same step, in this order.
    select.select([socket.fileno()], [], [], 10)
    time.sleep(0.002)  # noqa: ASYNC251
    with pytest.raises(asyncio.CancelledError):
        await statement


async def test_asyncpg_takes_such_a_connection_for_idle(database_url: str) -> None:
    """If this fails, asyncpg has fixed the problem, and the other test in this file is not needed any more."""
    conn = await asyncpg.connect(database_url)
    try:
        await cancel_when_prepared(conn)
        assert not conn.is_in_transaction()

        with pytest.raises(asyncpg.ActiveSQLTransactionError):
            await conn.execute(BEGIN)
    finally:
        await conn.close()


async def test_pool_hands_out_no_connection_with_an_open_transaction(database_url: str) -> None:
    async with await Database.connect(DatabaseConfig(database_url, pool_api=1, pool_worker=1)) as database:
        async with database.worker.acquire() as conn:
            session = await conn.fetchval("SELECT pg_backend_pid()")
            await cancel_when_prepared(conn)

        async with database.worker.acquire() as conn:
            await conn.execute(BEGIN)
            assert await conn.fetchval("SELECT pg_backend_pid()") == session
            await conn.execute("ROLLBACK")
