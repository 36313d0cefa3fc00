"""Schema migrations: numbered SQL files, each applied once, in order, by one process at a time.

A file is named `NNNN_subject.sql`. Its leading comments have `-- min_schema: N`, the oldest schema whose code works
with it. Applied files must not be edited. A file runs in one transaction, unless its first line is `-- no transaction`.
Then each statement runs alone and must end with a semicolon at the end of a line. It must be safe to repeat, because
after a failure the file is run from its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from random import Random

import asyncpg

from rookery import __version__
from rookery.runtime.clock import Clock, SystemClock
from rookery.store.db.errors import DatabaseUnreachable, LockTimeout, SchemaUnusable
from rookery.store.db.pool import Connection, Database, DatabaseConfig, explained_refusals
from rookery.telemetry.log import get_logger

log = get_logger("store.db.migrate")

FILES: Traversable = resources.files("rookery.store.db") / "migrations"
FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
MIN_SCHEMA = re.compile(r"--\s*min_schema:\s*(\d+)\s*")
NO_TRANSACTION = "-- no transaction"

LOCK_KEY = 0x726F6F6B_6D696772  # "rookmigr"; the one-key space of advisory locks
LOCK_WAIT_SECONDS = 300.0
LOCK_POLL_SECONDS = 0.2
TABLE_LOCK_TRIES = 11
LONG_SECONDS = 7 * 24 * 3600.0  # used instead of "no timeout", which asyncpg does not support for a single call

TABLE = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
      version integer PRIMARY KEY,
      name text NOT NULL,
      checksum text NOT NULL,
      min_schema integer NOT NULL,
      applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
      applied_by text NOT NULL
    )
"""
RECORD = """
    INSERT INTO schema_migrations (version, name, checksum, min_schema, applied_by)
    VALUES ($1, $2, $3, $4, $5)
"""
# While DDL waits for a lock, later statements on the table wait as well. DDL therefore has a short lock timeout and is
# retried.
SESSION = "SET statement_timeout = 0; SET lock_timeout = '3s'; SET idle_in_transaction_session_timeout = 0"
SESSION_AFTER = "RESET statement_timeout; RESET lock_timeout; RESET idle_in_transaction_session_timeout"

# Errors that callers translate for users.
TRANSLATED_BY_CALLERS = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
)


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    checksum: str
    min_schema: int
    in_transaction: bool
    sql: str

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A row of schema_migrations."""

    version: int
    name: str
    checksum: str
    min_schema: int


async def migrate(
    target: DatabaseConfig | Database | Connection,
    files: Traversable = FILES,
    *,
    clock: Clock | None = None,
    rng: Random | None = None,
) -> list[Migration]:
    """Apply the pending migrations and return them. Other processes wait for the one that migrates.

    With a config, `Database` checks the server before anything is created. After a failure or a cancellation, finished
    migrations stay. An unfinished migration that runs in a transaction is rolled back.
    """
    if isinstance(target, DatabaseConfig):
        async with await Database.connect(target) as database:
            return await migrate(database, files, clock=clock, rng=rng)
    if isinstance(target, Database):
        connection = await target.dedicated("migrate")
        try:
            return await migrate(connection, files, clock=clock, rng=rng)
        finally:
            connection.terminate()
    if not await plan(target, files):
        return []
    runner = _Runner(target, clock or SystemClock(), rng or Random())  # noqa: S311 - jitter only
    try:
        with explained_refusals():
            async with runner.locked():
                pending = await plan(target, files)
                is_new = pending[:1] == load(files)[:1]
                for migration in pending:
                    await runner.apply(migration)
                    # An operator who upgrades sees each step. A new database is one step, however many files it has.
                    if not is_new:
                        log.info("migration_applied", migration=str(migration))
                if pending and is_new:
                    log.info("schema_created", newest_migration=str(pending[-1]))
                return pending
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError) as error:
        raise DatabaseUnreachable(
            "The connection to the database was lost during the migration of its schema. Start again."
        ) from error


async def plan(connection: Connection, files: Traversable = FILES) -> list[Migration]:
    """Return the pending migrations, in order. Raises `SchemaUnusable` as `migrate` does. Changes nothing."""
    known = load(files)
    return pending_after(known, await read_applied(connection))


async def check(
    connection: Connection, files: Traversable = FILES, *, advice: str = "Run `rookery admin migrate`."
) -> None:
    """Raise `SchemaUnusable` if migrations are pending, for processes that may not migrate.

    `advice` is the end of the message.
    """
    if pending := await plan(connection, files):
        raise SchemaUnusable(f"The database lacks {len(pending)} migration(s); the first is {pending[0]}. {advice}")


def load(files: Traversable = FILES) -> list[Migration]:
    """Return the migrations of this version, in order. Raises `SchemaUnusable` if a number is missing."""
    found = sorted(
        (_parse(entry) for entry in files.iterdir() if entry.name.endswith(".sql")), key=lambda each: each.version
    )
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            raise SchemaUnusable(
                f"Migration {migration} should have number {expected:04}: numbers start at 0001 and have no gaps and "
                "no repeats. This installation is damaged; install it again."
            )
    return found


def pending_after(known: Sequence[Migration], applied: Mapping[int, Applied]) -> list[Migration]:
    """Return the migrations after the applied ones. Raises `SchemaUnusable` if these are not those of this version."""
    own_schema = len(known)
    for migration in known:
        done = applied.get(migration.version)
        if done is not None and done.checksum != migration.checksum:
            raise SchemaUnusable(
                f"Migration {migration} was applied with other content: it was edited afterwards, or the database "
                "belongs to another build. Install the version that created this schema."
            )
    newest = max(applied, default=0)
    if gaps := [version for version in range(1, newest) if version not in applied]:
        raise SchemaUnusable(
            f"The database has schema {newest}, but migration {gaps[0]:04} was not applied to it. "
            "Restore it from a backup."
        )
    if newest > own_schema:
        min_schema = max(done.min_schema for version, done in applied.items() if version > own_schema)
        if min_schema > own_schema:
            raise SchemaUnusable(
                f"The database has schema {newest}, which needs a version with schema {min_schema} or newer; this "
                f"version has schema {own_schema}. Install a newer version."
            )
    return [migration for migration in known if migration.version > newest]


async def read_applied(connection: Connection) -> dict[int, Applied]:
    if await connection.fetchval("SELECT to_regclass('schema_migrations')") is None:
        return {}
    with explained_refusals():
        rows = await connection.fetch(
            "SELECT version, name, checksum, min_schema FROM schema_migrations ORDER BY version"
        )
    return {row["version"]: Applied(*row) for row in rows}


class _Runner:
    """Applies migrations on one connection."""

    def __init__(self, connection: Connection, clock: Clock, rng: Random) -> None:
        self._connection = connection
        self._clock = clock
        self._rng = rng

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the migration lock, with the session timeouts of migrations."""
        connection = self._connection
        await self._lock()
        try:
            await connection.execute(SESSION)
            await connection.execute(TABLE)
            yield
        finally:
            # If this fails, the connection is lost, and the lock is released.
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.execute(SESSION_AFTER)
                await connection.execute(f"SELECT pg_advisory_unlock({LOCK_KEY})")

    async def _lock(self) -> None:
        # The lock is polled. A statement that waits for the lock has a snapshot, and CREATE INDEX CONCURRENTLY in the
        # migrating process would wait for that snapshot.
        deadline = self._clock.monotonic() + LOCK_WAIT_SECONDS
        while not await self._connection.fetchval("SELECT pg_try_advisory_lock($1)", LOCK_KEY):
            if self._clock.monotonic() >= deadline:
                raise LockTimeout(
                    f"Another process has been migrating this database for more than {LOCK_WAIT_SECONDS / 60:.0f} "
                    "minutes. Check that process, then start again."
                )
            await self._clock.sleep(LOCK_POLL_SECONDS, "migrate-lock")

    async def apply(self, migration: Migration) -> None:
        for attempt in range(1, TABLE_LOCK_TRIES + 1):
            try:
                await self._run(migration)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
                if attempt == TABLE_LOCK_TRIES:
                    raise LockTimeout(
                        f"Migration {migration} found its tables locked {attempt} times. End the long transactions "
                        "that lock them, then start again."
                    ) from error
                log.warning("migration_waits_for_lock", migration=str(migration), attempt=attempt)
                await self._clock.sleep(self._rng.uniform(0.5, 1.5) * min(0.1 * 2**attempt, 5.0), "migrate-retry")
            except TRANSLATED_BY_CALLERS:
                raise
            except asyncpg.PostgresError as error:
                rest = "Nothing of it was applied" if migration.in_transaction else "Part of it may have been applied"
                raise SchemaUnusable(
                    f"Migration {migration} failed: {' '.join(str(error).split())}. {rest}."
                ) from error
            else:
                return

    async def _run(self, migration: Migration) -> None:
        if migration.in_transaction:
            async with self._connection.transaction():
                await self._connection.execute(migration.sql, timeout=LONG_SECONDS)
                await self._record(migration)
            return
        for statement in split_statements(migration.sql):
            await self._connection.execute(statement, timeout=LONG_SECONDS)
        await self._record(migration)

    async def _record(self, migration: Migration) -> None:
        await self._connection.execute(
            RECORD,
            migration.version,
            migration.name,
            migration.checksum,
            migration.min_schema,
            f"rookery {__version__} on {socket.gethostname()}",
        )


def split_statements(sql: str) -> list[str]:
    """Return the statements of a `-- no transaction` file.

    If they were sent together, they would be one implicit transaction.
    """
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    statements = re.split(r";[ \t]*(?:\n|$)", "\n".join(lines))
    return [statement for each in statements if (statement := each.strip())]


def _parse(entry: Traversable) -> Migration:
    name = FILE_NAME.fullmatch(entry.name)
    if name is None:
        raise SchemaUnusable(f"Migration file {entry.name} is not named NNNN_subject.sql.")
    sql = entry.read_text(encoding="utf-8").replace("\r\n", "\n")
    lines = sql.splitlines()
    version, min_schema = int(name[1]), _min_schema(lines)
    if min_schema is None or not 0 <= min_schema <= version:
        raise SchemaUnusable(f"Migration file {entry.name} must begin with `-- min_schema: N`, with N up to {version}.")
    return Migration(
        version=version,
        name=name[2],
        checksum=hashlib.sha256(sql.encode()).hexdigest(),
        min_schema=min_schema,
        in_transaction=not lines or lines[0].strip() != NO_TRANSACTION,
        sql=sql,
    )


def _min_schema(lines: Sequence[str]) -> int | None:
    for line in lines:
        if not line.startswith("--"):
            return None
        if found := MIN_SCHEMA.fullmatch(line):
            return int(found[1])
    return None


SCHEMA_VERSION = max(
    (int(match[1]) for entry in FILES.iterdir() if (match := FILE_NAME.fullmatch(entry.name))), default=0
)
