"""The advisory lock for changes of providers and model configs, and the choice of the default model.

The lock protects one rule: while there is any model config, exactly one of them is the default. Readers do not take it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from rookery.store.db.pool import Connection

LOCK_KEY = 0x726F6F6B_6D6F646C  # "rookmodl"; the one-key space of advisory locks
LOCK = "SELECT pg_advisory_xact_lock($1)"

# Usable configs come first, older ones before newer ones. The config $1, which was the default until now, comes last.
PROMOTE = """
    UPDATE model_configs
       SET is_default = true
     WHERE id = (
             SELECT c.id
               FROM model_configs c
               JOIN model_providers p ON p.id = c.provider_id
              WHERE NOT c.deleted
              ORDER BY c.id = $1, NOT (c.enabled AND p.enabled AND NOT p.deleted), c.created_at, c.id
              LIMIT 1)
"""
DEMOTE_UNUSABLE = """
    UPDATE model_configs c
       SET is_default = false
      FROM model_providers p
     WHERE c.is_default
       AND p.id = c.provider_id
       AND p.deleted
    RETURNING c.id
"""


@asynccontextmanager
async def held(conn: Connection) -> AsyncIterator[None]:
    """Open a transaction that takes the lock and holds it until the transaction ends."""
    async with conn.transaction():
        await conn.execute(LOCK, LOCK_KEY)
        yield


async def promote(conn: Connection, *, instead_of: UUID | None = None) -> None:
    """Make the first suitable config the default. There must be no default when this is called."""
    await conn.execute(PROMOTE, instead_of)


async def promote_if_unusable(conn: Connection) -> None:
    """Choose another default if the provider of the current one was deleted."""
    demoted = await conn.fetchval(DEMOTE_UNUSABLE)
    if demoted is not None:
        await promote(conn, instead_of=demoted)
