"""Connections to PostgreSQL: two pools, dedicated connections, and checks of the server.

The API and the worker have a pool each, so that neither can use up the connections of the other. A connection that
returns to its pool is not reset, so callers must not leave a SET, a session lock or a LISTEN behind.
A connection failure is raised as an error with one sentence for users, without the password.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from rookery.store.db.errors import DatabaseUnreachable, DatabaseUnsuitable, StoreError
from rookery.store.db.query_spans import query_span
from rookery.telemetry.histogram import Histogram

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy

OLDEST_MAJOR = 15
CONNECT_TIMEOUT_SECONDS = 10.0
FIRST_RECONNECT_SECONDS, LAST_RECONNECT_SECONDS = 0.1, 5.0
DEDICATED_CONNECTIONS = 4  # heartbeat, listen, presence, debug records
SPARE_CONNECTIONS = 10  # connections of the server that replicas leave free for other clients and for starts
ENCODING = "UTF8"

POOLER = (
    "database_url leads to a connection pooler that shares connections between transactions. Rookery needs LISTEN and "
    "session locks: use the address of PostgreSQL itself, or the pooler's session mode."
)
MALFORMED = "database_url is not a PostgreSQL address. Write it as postgresql://user:password@host:5432/database."
# Chosen: a finished wait predicts the next wait for this long.
FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    url: str = field(repr=False)  # contains the password
    pool_api: int = 8
    pool_worker: int = 8
    statement_timeout_seconds: float = 30.0
    application_name: str = "rookery"

    @property
    def connections(self) -> int:
        """Return the largest number of connections of one replica."""
        return self.pool_api + self.pool_worker + DEDICATED_CONNECTIONS


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Open connections, idle ones, and the maximum."""

    size: int
    idle: int
    maximum: int


class ConnectionLost(Exception):
    """Raised if a dedicated connection is lost. Its owner opens another one."""


class SessionConnection(asyncpg.Connection):
    """A connection that handles two cases that asyncpg does not.

    A server that shuts down sends a notice and closes the connection a moment later. In between, asyncpg raises
    InternalClientError for statements. Here, that error becomes a lost connection.

    asyncpg prepares a statement without a Sync message. If the call is cancelled at the moment when the answer arrives,
    asyncpg counts the connection as idle although the server is in a transaction. `is_unfinished` marks this case.
    """

    is_unfinished = False

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        with query_span(query):
            try:
                return await super().execute(query, *args, timeout=timeout)
            except BaseException as error:
                self._handle_error(error)
                raise

    async def executemany(self, command: str, *args: Any, **options: Any) -> None:
        with query_span(command):
            await super().executemany(command, *args, **options)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        with query_span(query):
            try:
                return await super().fetch(query, *args, **options)
            except BaseException as error:
                self._handle_error(error)
                raise

    async def fetchmany(self, query: str, *args: Any, **options: Any) -> Any:
        with query_span(query):
            return await super().fetchmany(query, *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        with query_span(query):
            try:
                return await super().fetchrow(query, *args, **options)
            except BaseException as error:
                self._handle_error(error)
                raise

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        with query_span(query):
            try:
                return await super().fetchval(query, *args, **options)
            except BaseException as error:
                self._handle_error(error)
                raise

    def _handle_error(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.is_unfinished = True
        if isinstance(error, asyncpg.InternalClientError):
            # Otherwise the pool could hand the connection out again before the server closes it.
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the server is closing this connection") from error

    async def finish(self) -> None:
        """Run an empty statement to end the transaction of a cancelled one. A ROLLBACK would log a warning."""
        if self.is_unfinished:
            self.is_unfinished = False
            await self.execute("SELECT")


class Database:
    """The connections of a process. `api` and `worker` are pools; `dedicated` opens further connections."""

    def __init__(self, config: DatabaseConfig, *, api: WatchedPool, worker: WatchedPool) -> None:
        self.config = config
        self.api = api
        self.worker = worker

    @classmethod
    async def connect(cls, config: DatabaseConfig) -> Self:
        """Open the pools and check the server. Raises `StoreError` if it cannot be used."""
        pools: list[WatchedPool] = []
        try:
            with _connection_errors(config.url):
                for purpose, size in (("api", config.pool_api), ("worker", config.pool_worker)):
                    pools.append(await _pool(config, purpose, size=size))
                api, worker = pools
                async with api.acquire() as first, worker.acquire() as second:
                    await check_server(first, other=second)
        except BaseException:
            # `terminate` is used because `close` waits for the server.
            for opened in pools:
                opened.terminate()
            raise
        return cls(config, api=api, worker=worker)

    async def dedicated(self, purpose: str) -> asyncpg.Connection:
        """Open a connection outside of the pools, for work that must not wait for a pool or needs its own session."""
        return await connect(self.config, purpose)

    async def ping(self) -> None:
        """Check that the database answers on the pool of the API. Raises the error of the driver if it does not."""
        await self.api.fetchval("SELECT 1")

    def stats(self) -> dict[str, PoolStats]:
        pools = {"api": self.api, "worker": self.worker}
        return {
            name: PoolStats(pool.get_size(), pool.get_idle_size(), pool.get_max_size()) for name, pool in pools.items()
        }

    def waits(self) -> dict[str, PoolWaits]:
        """Return the waits for connections of each pool."""
        return {"api": self.api.waits, "worker": self.worker.waits}

    async def close(self) -> None:
        """Wait until connections have been returned, at most for the statement timeout, and close them."""
        for pool in (self.api, self.worker):
            try:
                async with asyncio.timeout(self.config.statement_timeout_seconds):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def connect(config: DatabaseConfig, purpose: str) -> asyncpg.Connection:
    """Open one connection. pg_stat_activity shows its purpose."""
    with _connection_errors(config.url):
        return await asyncpg.connect(
            config.url,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=_command_timeout(config),
            server_settings=_session_settings(config, purpose),
            connection_class=SessionConnection,
        )


async def check_server(connection: Connection, *, other: Connection | None = None) -> None:
    """Raise `DatabaseUnsuitable` for a server that is too old, a transaction pooler, or an encoding other than UTF-8.

    An idle pooler may give the same session to both checks and look like a server. The second connection prevents that:
    its open transaction occupies a session while the first connection is checked.
    """
    if connection.get_server_version().major < OLDEST_MAJOR:
        raise DatabaseUnsuitable(
            f"The database server is PostgreSQL {connection.get_settings().server_version}; Rookery needs "
            f"{OLDEST_MAJOR} or newer. Upgrade the server, or leave database_url unset to use the embedded one."
        )
    try:
        async with contextlib.AsyncExitStack() as stack:
            before = await _session(connection)
            if other is not None:
                await stack.enter_async_context(other.transaction())
                if (await _session(other))[0] == before[0]:
                    raise DatabaseUnsuitable(POOLER)
            await connection.execute("SELECT set_config('rookery.probe', pg_backend_pid()::text, false)")
            after = await _session(connection)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        # A statement that was just prepared is unknown, or belongs to another client: the session has changed.
        raise DatabaseUnsuitable(POOLER) from None
    if after != (before[0], str(before[0])):
        raise DatabaseUnsuitable(POOLER)
    if (encoding := await connection.fetchval("SHOW server_encoding")) != ENCODING:
        raise DatabaseUnsuitable(
            f"The database has the encoding {encoding}; Rookery needs {ENCODING}. Create another one: "
            f"CREATE DATABASE rookery ENCODING '{ENCODING}' TEMPLATE template0."
        )


async def check_capacity(connection: Connection, config: DatabaseConfig, *, replicas: int = 1) -> int:
    """Return max_connections of the server. Raises `DatabaseUnsuitable` if the replicas could use all connections."""
    allowed: int = await connection.fetchval("SELECT current_setting('max_connections')::int")
    needed = replicas * config.connections
    if needed >= allowed - SPARE_CONNECTIONS:
        who = "A replica uses" if replicas == 1 else f"{replicas} replicas use"
        each = "" if replicas == 1 else "each of them "
        raise DatabaseUnsuitable(
            f"{who} up to {needed} connections ({each}database_pool_api {config.pool_api}, "
            f"database_pool_worker {config.pool_worker} and {DEDICATED_CONNECTIONS} more), and must leave more than "
            f"{SPARE_CONNECTIONS} of the server's {allowed} free. Raise max_connections, or lower the pool sizes."
        )
    return allowed


@contextlib.contextmanager
def explained_refusals() -> Iterator[None]:
    """Raise `DatabaseUnsuitable` for missing permissions and for a read-only server, which are no bugs."""
    try:
        yield
    except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError) as error:
        raise DatabaseUnsuitable(
            f"The role in database_url lacks a permission ({_one_line(error)}). "
            "Make it the owner of the database and of Rookery's tables."
        ) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise DatabaseUnsuitable(
            "The database is read-only: it is a standby, or default_transaction_read_only is on. "
            "Use the address of the primary, or turn the setting off."
        ) from error


def reconnect_delays(rng: Random) -> Iterator[float]:
    """Yield the delays between attempts. They double, with jitter so that replicas do not retry at the same time."""
    delay = FIRST_RECONNECT_SECONDS
    while True:
        yield delay * rng.uniform(0.5, 1.0)
        delay = min(delay * 2, LAST_RECONNECT_SECONDS)


async def raise_when_lost(lost: asyncio.Event) -> NoReturn:
    """Raise `ConnectionLost` when the connection is lost, to end the task group that uses it."""
    await lost.wait()
    raise ConnectionLost("The server closed the connection.")


def describe_address(url: str) -> str:
    """Return host, port and database of a URL for messages, without user and password, even if the URL is wrong."""
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        if "@" in url.partition("?")[0].removeprefix(f"{parts.scheme}://{parts.netloc}"):
            return "the configured address"  # the password has an unescaped / or #, so the host is wrong
        host = query.get("host", [parts.hostname or "localhost"])[-1]
        port = query.get("port", [str(parts.port or 5432)])[-1]
    except ValueError:
        return "the configured address"
    database = unquote(parts.path.strip("/"))
    return f"{host}:{port}/{database}" if database else f"{host}:{port}"


async def _session(connection: Connection) -> tuple[int, str]:
    row = await connection.fetchrow("SELECT pg_backend_pid(), coalesce(current_setting('rookery.probe', true), '')")
    assert row is not None
    return row[0], row[1]


def _pool(config: DatabaseConfig, purpose: str, *, size: int) -> WatchedPool:
    return WatchedPool(
        config.url,
        min_size=0,
        max_size=size,
        # asyncpg's reset would be a round trip at every release. An open transaction is rolled back without it.
        reset=_keep_session,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=_command_timeout(config),
        server_settings=_session_settings(config, purpose),
        connection_class=SessionConnection,
        record_class=asyncpg.Record,
        # The defaults of `asyncpg.create_pool`, which is not used here.
        max_queries=50_000,
        max_inactive_connection_lifetime=300.0,
        loop=None,
    )


async def _keep_session(connection: asyncpg.Connection) -> None:
    """End the transaction of a cancelled statement. Nothing else is reset (see the docstring of the module)."""
    if isinstance(connection, SessionConnection):
        await connection.finish()


def _session_settings(config: DatabaseConfig, purpose: str) -> dict[str, str]:
    return {
        "application_name": f"{config.application_name}:{purpose}",
        "statement_timeout": f"{round(config.statement_timeout_seconds * 1000)}",
        "lock_timeout": "5s",
        "idle_in_transaction_session_timeout": "30s",
        "timezone": "UTC",
        # JIT compilation costs more than these short statements can gain.
        "jit": "off",
        # The sessions of a host that is cut off end after about 11 seconds, and their locks are released.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
    }


def _command_timeout(config: DatabaseConfig) -> float:
    """Return a little more than the timeout of the server, whose error message is better.

    This timeout is for a lost network.
    """
    return config.statement_timeout_seconds + 5


@contextlib.contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    """Raise a failure to connect as a `StoreError` with a message for users."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        # The cause is not chained, because the text of a parser's error may contain the password.
        raise _connection_error(error, describe_address(url)) from None


def _connection_error(error: Exception, address: str) -> StoreError:
    match error:
        case asyncpg.InvalidCatalogNameError():
            return DatabaseUnreachable(f"There is no such database at {address}. Create it, or correct database_url.")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return DatabaseUnreachable(
                f"The server at {address} refuses the login. Check the user and password in database_url."
            )
        case asyncpg.TooManyConnectionsError():
            return DatabaseUnreachable(
                f"The server at {address} has no connection left. Raise max_connections, or lower the pool sizes."
            )
        case asyncpg.ProtocolViolationError():
            # PgBouncer answers unknown start-up settings with this code; PostgreSQL does not.
            return DatabaseUnsuitable(POOLER)
        case asyncpg.PostgresError():
            return DatabaseUnreachable(f"The server at {address} refuses the connection: {_one_line(error)}")
        case asyncpg.UnsupportedServerFeatureError() | asyncpg.InternalClientError():
            return DatabaseUnsuitable(f"The server at {address} is not PostgreSQL. Correct database_url.")
        case TimeoutError():
            return DatabaseUnreachable(f"No server answers at {address} within {CONNECT_TIMEOUT_SECONDS:.0f} s.")
        case socket.gaierror():
            return DatabaseUnreachable(
                f"The host name in {address} cannot be resolved. Correct database_url, or the DNS of this machine."
            )
        case OSError():
            return DatabaseUnreachable(f"No server answers at {address}. Check that PostgreSQL is running there.")
        case _:
            return DatabaseUnsuitable(MALFORMED)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class PoolWaits:
    """The waits for connections of one pool. A replica with long waits acquires no more chats."""

    __slots__ = ("_last", "_last_at", "_monotonic", "_since", "seconds")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since: dict[object, float] = {}  # the oldest wait is first
        self._last = 0.0
        self._last_at = 0.0
        self.seconds = Histogram()

    @property
    def current_seconds(self) -> float:
        """Estimate the wait of the next caller, from the current waits and the last finished one."""
        now = self._monotonic()
        oldest = next(iter(self._since.values()), now)
        return max(now - oldest, self._last if now - self._last_at < FRESH_SECONDS else 0.0)

    def begin(self) -> object:
        waiter = object()
        self._since[waiter] = self._monotonic()
        return waiter

    def end(self, waiter: object) -> None:
        self._last_at = self._monotonic()
        self._last = self._last_at - self._since.pop(waiter)
        self.seconds.observe(self._last)


class WatchedPool(asyncpg.Pool):
    """A pool that measures how long its callers wait for a connection, including the time to open one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits = PoolWaits()

    async def _acquire(self, timeout: float | None) -> Any:
        waiter = self.waits.begin()
        try:
            return await super()._acquire(timeout)  # type: ignore[misc]  # not in its stubs
        finally:
            self.waits.end(waiter)


@asynccontextmanager
async def atomic(conn: Connection) -> AsyncIterator[None]:
    """Run the body in a transaction, or in a savepoint if the connection is in a transaction already.

    asyncpg's `conn.transaction()` does not nest in a transaction that was begun by a BEGIN statement, as bundles are.
    """
    if not conn.is_in_transaction():
        async with conn.transaction():
            yield
        return
    await conn.execute("SAVEPOINT nested")
    try:
        yield
    except Exception:
        # A cancellation is not handled here: it rolls back the whole transaction.
        await conn.execute("ROLLBACK TO SAVEPOINT nested; RELEASE SAVEPOINT nested")
        raise
    await conn.execute("RELEASE SAVEPOINT nested")
