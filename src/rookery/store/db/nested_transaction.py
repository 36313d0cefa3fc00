"""Nested transactions: a new transaction, or a savepoint inside an open one.

asyncpg's `conn.transaction()` refuses to nest inside a transaction that was begun by a statement, as bundles are. Code
that also runs in bundles uses this instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.store.db.pool import Connection


@asynccontextmanager
async def atomic(conn: Connection) -> AsyncIterator[None]:
    """Run the body all or nothing: a failure inside is undone, and an outer transaction stays valid."""
    if not conn.is_in_transaction():
        async with conn.transaction():
            yield
        return
    await conn.execute("SAVEPOINT nested")
    try:
        yield
    except Exception:
        # Not after a cancellation: then everything is about to be rolled back anyway.
        await conn.execute("ROLLBACK TO SAVEPOINT nested; RELEASE SAVEPOINT nested")
        raise
    await conn.execute("RELEASE SAVEPOINT nested")
