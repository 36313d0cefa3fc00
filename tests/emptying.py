"""Makes a database that a test has used like new, or says that it cannot.

Only rows are taken back. Where a test changed a table, a function, a setting or the statistics of the planner, left
somebody connected, or filled more than a few pages, its database is not used again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg

# What was ever written to the tables that describe the schema, its functions and its statistics, or to the list of
# migrations. The processes of the database tell it at their end, so nobody may be connected.
COUNT_CHANGES = """
    SELECT sum(
        pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid)
    )::bigint
    FROM pg_class
    WHERE relkind = 'r' AND NOT relisshared
        AND (relnamespace = 'pg_catalog'::regnamespace OR relname = 'schema_migrations')
"""
HAS_SETTINGS = """
    SELECT age(xmin) < age($1::text::xid) OR EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = pg_database.oid)
    FROM pg_database WHERE datname = current_database()
"""
COUNT_OTHERS = """
    SELECT count(*) FROM pg_stat_get_activity(NULL)
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
"""
FIND_TABLES = """
    SELECT oid::regclass::text AS name, pg_relation_size(oid) AS size FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'schema_migrations'
        AND pg_relation_size(oid) > 0
"""
# Neither triggers nor references: some tables refuse to have rows deleted.
UNGUARDED = "SET session_replication_role = replica; SET lock_timeout = '2s';"
RESTART_SEQUENCES = """
    SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences
    WHERE last_value IS NOT NULL;
"""

# The planner takes a table that was never counted for this large while it is smaller: deleted rows change no plan.
MAX_BYTES = 10 * 8192
PATIENCE_SECONDS = 1.0  # chosen: connections end a little after they were closed


@dataclass(frozen=True, slots=True)
class Made:
    """What a database was like when it was made: a transaction of that time, and what was written to its catalog."""

    transaction: str
    changes: int


async def look_at(url: str) -> Made:
    connection = await asyncpg.connect(url)
    try:
        transaction = await connection.fetchval("SELECT pg_current_xact_id()::text")
        return Made(transaction, await connection.fetchval(COUNT_CHANGES))
    finally:
        await connection.close()


async def empty(url: str, made: Made) -> bool:
    """Whether the database is like new now. `url` is a superuser's."""
    try:
        connection = await asyncpg.connect(url)
    except (asyncpg.PostgresError, OSError):
        return False
    try:
        if not await _is_left(connection) or await _is_changed(connection, made):
            return False
        tables = await connection.fetch(FIND_TABLES)
        if any(table["size"] > MAX_BYTES for table in tables):
            return False
        deletes = "".join(f"DELETE FROM {table['name']};" for table in tables)
        await connection.execute(UNGUARDED + deletes + RESTART_SEQUENCES)
    except (asyncpg.PostgresError, OSError):
        return False
    finally:
        await connection.close()
    return True


async def _is_left(connection: asyncpg.Connection) -> bool:
    waited, pause = 0.0, 0.002
    while is_used := bool(await connection.fetchval(COUNT_OTHERS)):
        if waited > PATIENCE_SECONDS:
            break
        # Longer each time: on a busy machine those who leave need the processor more than who asks for them.
        await asyncio.sleep(pause)
        waited, pause = waited + pause, pause * 2
    return not is_used


async def _is_changed(connection: asyncpg.Connection, made: Made) -> bool:
    if await connection.fetchval(COUNT_CHANGES) != made.changes:
        return True
    return bool(await connection.fetchval(HAS_SETTINGS, made.transaction))
