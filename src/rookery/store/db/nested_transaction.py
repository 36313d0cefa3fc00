"""A transaction wherever one is wanted: its own, or a savepoint inside one that is open.

asyncpg's `conn.transaction()` refuses to nest inside a transaction that was begun by a statement, as bundles are. What
runs in bundles too uses this instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.store.db.pool import Connection


@asynccontextmanager
async def atomic(conn: Connection) -> AsyncIterator[None]:
    """All or nothing: what fails inside is undone, and a transaction around it stays good."""
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
