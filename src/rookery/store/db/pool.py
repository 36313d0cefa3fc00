"""Connections to PostgreSQL: two pools, a few dedicated connections, and the checks made before they are used.

The API and the worker have a pool each, so that neither can starve the other. Connections carry no session state:
nothing is reset when one returns to its pool, so callers must not leave a SET, a session lock or a LISTEN behind.
Failures to connect leave this module as one sentence for users, without the password.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from rookery.store.db.errors import DatabaseUnreachable, DatabaseUnsuitable, StoreError
from rookery.store.db.pool_waits import PoolWaits, WatchedPool

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy

OLDEST_MAJOR = 15
CONNECT_TIMEOUT_SECONDS = 10.0
FIRST_RECONNECT_SECONDS, LAST_RECONNECT_SECONDS = 0.1, 5.0
DEDICATED_CONNECTIONS = 3  # heartbeat, listen, presence
SPARE_CONNECTIONS = 10  # of the server's, for users, backups and other replicas' first steps
ENCODING = "UTF8"

POOLER = (
    "database_url leads to a connection pooler that shares connections between transactions. Rookery needs LISTEN and "
    "session locks: use the address of PostgreSQL itself, or the pooler's session mode."
)
MALFORMED = "database_url is not a PostgreSQL address. Write it as postgresql://user:password@host:5432/database."


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    url: str = field(repr=False)  # contains the password
    pool_api: int = 8
    pool_worker: int = 8
    statement_timeout_seconds: float = 30.0
    application_name: str = "rookery"

    @property
    def connections(self) -> int:
        """The largest number of connections of one replica."""
        return self.pool_api + self.pool_worker + DEDICATED_CONNECTIONS


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Open connections, idle ones, and the maximum."""

    size: int
    idle: int
    maximum: int


class ConnectionLost(Exception):
    """Raised if a dedicated connection is lost; its owner opens another one."""


class SessionConnection(asyncpg.Connection):
    """A connection that handles two cases that asyncpg does not.

    A server that shuts down sends a notice and closes the connection a moment later. In between asyncpg accepts
    statements and raises InternalClientError for them, which callers do not expect; it means a lost connection.

    asyncpg prepares a statement without ending the exchange. If it is cancelled in the same step in which the answer
    arrives, it counts the connection as idle although the server is in a transaction: `is_unfinished`.
    """

    is_unfinished = False

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        try:
            return await super().execute(query, *args, timeout=timeout)
        except BaseException as error:
            self._look_at(error)
            raise

    async def fetch(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().fetch(*args, **options)
        except BaseException as error:
            self._look_at(error)
            raise

    async def fetchrow(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().fetchrow(*args, **options)
        except BaseException as error:
            self._look_at(error)
            raise

    async def fetchval(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().fetchval(*args, **options)
        except BaseException as error:
            self._look_at(error)
            raise

    def _look_at(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.is_unfinished = True
        if isinstance(error, asyncpg.InternalClientError):
            # Its pool must not hand it out again before the server hangs up.
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the server has given up this connection") from error

    async def finish(self) -> None:
        """End what a cancelled statement may have begun, by any other statement. A ROLLBACK would log a warning."""
        if self.is_unfinished:
            self.is_unfinished = False
            await self.execute("SELECT")


class Database:
    """The process's access to PostgreSQL. `api` and `worker` are pools; `dedicated` connections belong to their
    caller.
    """

    def __init__(self, config: DatabaseConfig, *, api: WatchedPool, worker: WatchedPool) -> None:
        self.config = config
        self.api = api
        self.worker = worker

    @classmethod
    async def connect(cls, config: DatabaseConfig) -> Self:
        """Open the pools and refuse a server Rookery cannot work with."""
        pools: list[WatchedPool] = []
        try:
            with _plain_errors(config.url):
                for purpose, size in (("api", config.pool_api), ("worker", config.pool_worker)):
                    pools.append(await _pool(config, purpose, size=size))
                api, worker = pools
                async with api.acquire() as first, worker.acquire() as second:
                    await check_server(first, other=second)
        except BaseException:
            # Not closed gracefully: the server may never answer.
            for opened in pools:
                opened.terminate()
            raise
        return cls(config, api=api, worker=worker)

    async def dedicated(self, purpose: str) -> asyncpg.Connection:
        """Open a connection outside the pools, for work that must not wait behind other work or needs a session."""
        return await connect(self.config, purpose)

    async def ping(self) -> None:
        """Check that the database answers, in the way a request would."""
        await self.api.fetchval("SELECT 1")

    def stats(self) -> dict[str, PoolStats]:
        pools = {"api": self.api, "worker": self.worker}
        return {
            name: PoolStats(pool.get_size(), pool.get_idle_size(), pool.get_max_size()) for name, pool in pools.items()
        }

    def waits(self) -> dict[str, PoolWaits]:
        """How long connections of each pool are waited for."""
        return {"api": self.api.waits, "worker": self.worker.waits}

    async def close(self) -> None:
        """Wait for borrowed connections to return, at most as long as a statement may take, then close all."""
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
    """Open one connection, named after its purpose in pg_stat_activity."""
    with _plain_errors(config.url):
        return await asyncpg.connect(
            config.url,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=_command_timeout(config),
            server_settings=_session_settings(config, purpose),
            connection_class=SessionConnection,
        )


async def check_server(connection: Connection, *, other: Connection | None = None) -> None:
    """Refuse a server that is too old, a pooler that gives each transaction another session, or an old encoding.

    An idle pooler may hand out the same session again and look like a real server. A second connection prevents that:
    it holds a session in a transaction while the first returns for its own.
    """
    if connection.get_server_version().major < OLDEST_MAJOR:
        raise DatabaseUnsuitable(
            f"The database server is PostgreSQL {connection.get_settings().server_version}, and Rookery needs "
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
        # A statement prepared a moment ago is unknown, or another client's: the session was exchanged.
        raise DatabaseUnsuitable(POOLER) from None
    if after != (before[0], str(before[0])):
        raise DatabaseUnsuitable(POOLER)
    if (encoding := await connection.fetchval("SHOW server_encoding")) != ENCODING:
        raise DatabaseUnsuitable(
            f"The database is encoded as {encoding}, which cannot hold everything people write. Make one that can: "
            f"CREATE DATABASE rookery ENCODING '{ENCODING}' TEMPLATE template0."
        )


async def check_capacity(connection: Connection, config: DatabaseConfig, *, replicas: int = 1) -> int:
    """Refuse a server that would run out of connections once its replicas are busy. Returns how many it allows."""
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
    """Turn missing permissions of the database into one sentence: they are a matter of its settings, not a bug."""
    try:
        yield
    except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError) as error:
        raise DatabaseUnsuitable(
            f"The role in database_url lacks a right ({_one_line(error)}). "
            "Make it the owner of the database and of Rookery's tables in it."
        ) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise DatabaseUnsuitable(
            "The database can only be read: it is a standby, or default_transaction_read_only is on. "
            "Use the address of the primary, or switch that off."
        ) from error


def reconnect_delays(rng: Random) -> Iterator[float]:
    """Yield the delays before each further attempt: doubling, with jitter so that replicas do not retry in step."""
    delay = FIRST_RECONNECT_SECONDS
    while True:
        yield delay * rng.uniform(0.5, 1.0)
        delay = min(delay * 2, LAST_RECONNECT_SECONDS)


async def raise_when_lost(lost: asyncio.Event) -> NoReturn:
    """Raise once the connection is lost, to end the task group that works on it."""
    await lost.wait()
    raise ConnectionLost("The server closed the connection.")


def describe_address(url: str) -> str:
    """Return host, port and database of a URL for messages; never its user or password, however it is misspelled."""
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        if "@" in url.partition("?")[0].removeprefix(f"{parts.scheme}://{parts.netloc}"):
            return "the configured address"  # an unescaped / or # in the password: the apparent host is wrong
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
        # asyncpg's own reset is a round trip at every release. An open transaction is rolled back without it, too.
        reset=_keep_session,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=_command_timeout(config),
        server_settings=_session_settings(config, purpose),
        connection_class=SessionConnection,
        record_class=asyncpg.Record,
        # asyncpg's own defaults: it sets them in the function that creates plain pools.
        max_queries=50_000,
        max_inactive_connection_lifetime=300.0,
        loop=None,
    )


async def _keep_session(connection: asyncpg.Connection) -> None:
    """Reset nothing (see the module's docstring) except what a cancelled statement left behind."""
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
        # A host that vanished silently loses its sessions, and with them its locks, in about 11 seconds.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
    }


def _command_timeout(config: DatabaseConfig) -> float:
    """Return a little more than the server's own limit, which gives the better error; this one is for a dead
    network.
    """
    return config.statement_timeout_seconds + 5


@contextlib.contextmanager
def _plain_errors(url: str) -> Iterator[None]:
    """Turn a failure to connect into one sentence that says what to check."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        # Not chained: the text of a parser's error may quote the password.
        raise _plain_error(error, describe_address(url)) from None


def _plain_error(error: Exception, address: str) -> StoreError:
    match error:
        case asyncpg.InvalidCatalogNameError():
            return DatabaseUnreachable(f"There is no such database at {address}. Create it, or correct database_url.")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return DatabaseUnreachable(
                f"The server at {address} refuses the login. Check user and password in database_url."
            )
        case asyncpg.TooManyConnectionsError():
            return DatabaseUnreachable(
                f"The server at {address} has no connection left. Raise max_connections, or lower the pool sizes."
            )
        case asyncpg.ProtocolViolationError():
            # PgBouncer answers unknown start-up settings with this code; PostgreSQL never does.
            return DatabaseUnsuitable(POOLER)
        case asyncpg.PostgresError():
            return DatabaseUnreachable(f"The server at {address} refuses the connection: {_one_line(error)}")
        case asyncpg.UnsupportedServerFeatureError() | asyncpg.InternalClientError():
            return DatabaseUnsuitable(f"What answers at {address} is not PostgreSQL. Correct database_url.")
        case TimeoutError():
            return DatabaseUnreachable(f"Nobody answers at {address} within {CONNECT_TIMEOUT_SECONDS:.0f} s.")
        case socket.gaierror():
            return DatabaseUnreachable(
                f"The name of the host in {address} is not known here. Correct database_url, or this machine's DNS."
            )
        case OSError():
            return DatabaseUnreachable(f"Nobody answers at {address}. Is PostgreSQL running there?")
        case _:
            return DatabaseUnsuitable(MALFORMED)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
