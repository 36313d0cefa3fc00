"""Pools and connections: limits are set, unsuitable servers refused, failures told in one line without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import asyncpg
import pytest

from rookery.store import pool
from rookery.store.errors import DatabaseUnreachable, DatabaseUnsuitable, StoreError
from rookery.store.pool import Database, DatabaseConfig, PoolStats
from tests.database import PASSWORD, Server
from tests.waiting import until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """A server on a free port, gone with all its connections at the end."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await handler(reader, writer)
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The client's first message; TLS is declined."""
    while True:
        (length,) = struct.unpack("!i", header := await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        if body != struct.pack("!i", 80877103):
            return header + body
        writer.write(b"N")


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Type and the whole message."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class TransactionPooler:
    """Gives each client two sessions of the real server and changes between them after every transaction."""

    def __init__(self, server: Server) -> None:
        self._path = f"{server.socket_dir}/.s.PGSQL.{server.port}"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await read_startup(reader, writer)
        sessions = [await asyncio.open_unix_connection(self._path) for _ in range(2)]
        active = 0

        async def pass_on(number: int, *, silent: bool) -> None:
            nonlocal active
            while True:
                kind, whole = await read_message(sessions[number][0])
                if not silent:
                    writer.write(whole)
                if kind == b"Z" and whole.endswith(b"I"):
                    active = 1 - number
                    silent = False

        async with asyncio.TaskGroup() as group:
            for number, (_, session) in enumerate(sessions):
                session.write(startup)
                group.create_task(pass_on(number, silent=number == 1))
            try:
                while True:
                    _, whole = await read_message(reader)
                    sessions[active][1].write(whole)
            finally:
                for _, session in sessions:
                    session.close()


async def old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greets like PostgreSQL 14.9 and says nothing more."""
    await read_startup(reader, writer)
    writer.write(message(b"R", struct.pack("!i", 0)))
    for name, value in (("server_version", "14.9"), ("client_encoding", "UTF8"), ("TimeZone", "UTC")):
        writer.write(message(b"S", f"{name}\0{value}\0".encode()))
    writer.write(message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I"))
    await reader.read()


async def stubborn_pooler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuses start-up settings it does not know, with the code PgBouncer uses."""
    await read_startup(reader, writer)
    fields = {"S": "FATAL", "V": "FATAL", "C": "08P01", "M": "unsupported startup parameter: jit"}
    writer.write(message(b"E", b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0"))
    await writer.drain()


async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(8)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def refusal(url: str) -> StoreError:
    """How connecting fails, which must be the same for pools and for single connections."""
    config = DatabaseConfig(url)
    with pytest.raises(StoreError) as of_pools:
        await Database.connect(config)
    assert "\n" not in str(of_pools.value)
    assert of_pools.value.__cause__ is None
    assert PASSWORD not in str(of_pools.value)
    return of_pools.value


async def test_both_pools_answer_and_are_counted(database_url: str) -> None:
    async with await Database.connect(DatabaseConfig(database_url, pool_api=3, pool_worker=2)) as database:
        assert await database.api.fetchval("SELECT 1") == 1
        async with database.worker.acquire() as connection:
            assert await connection.fetchval("SELECT 1") == 1
            assert database.stats() == {"api": PoolStats(1, 1, 3), "worker": PoolStats(1, 0, 2)}


async def test_one_exhausted_pool_does_not_starve_the_other(database_url: str) -> None:
    async with (
        await Database.connect(DatabaseConfig(database_url, pool_api=1, pool_worker=1)) as database,
        database.api.acquire(),
    ):
        with pytest.raises(TimeoutError):
            await database.api.acquire(timeout=0.02)

        assert await database.worker.fetchval("SELECT 1") == 1


async def test_every_connection_carries_its_limits_and_its_name(database_url: str) -> None:
    config = DatabaseConfig(database_url, statement_timeout_seconds=1.5, application_name="nest")
    expected = {
        "statement_timeout": "1500ms",
        "idle_in_transaction_session_timeout": "30s",
        "lock_timeout": "5s",
        "TimeZone": "UTC",
        "jit": "off",
    }
    async with await Database.connect(config) as database:
        dedicated = await database.dedicated("listen")
        async with database.api.acquire() as of_api, database.worker.acquire() as of_worker:
            for connection, name in ((dedicated, "nest:listen"), (of_api, "nest:api"), (of_worker, "nest:worker")):
                for setting, value in expected.items():
                    assert await connection.fetchval(f"SHOW {setting}") == value
                assert await connection.fetchval("SHOW application_name") == name
        await dedicated.close()


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(database_url: str) -> None:
    async with await Database.connect(DatabaseConfig(database_url, statement_timeout_seconds=0.05)) as database:
        with pytest.raises(asyncpg.QueryCanceledError):
            await database.api.execute("SELECT pg_sleep(30)")


async def test_an_open_transaction_is_rolled_back_when_its_connection_goes_back(database_url: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # asyncpg reports it there
    async with await Database.connect(DatabaseConfig(database_url, pool_api=1)) as database:
        async with database.api.acquire() as connection:
            await connection.execute("BEGIN; CREATE TABLE unfinished ()")

        assert await database.api.fetchval("SELECT to_regclass('unfinished')") is None


async def test_giving_a_connection_back_costs_no_round_trip(database_url: str) -> None:
    async with await Database.connect(DatabaseConfig(database_url, pool_api=1)) as database:
        await database.api.execute("SELECT 'mine'")

        async with database.worker.acquire() as observer:
            last = await observer.fetchval(
                "SELECT query FROM pg_stat_activity WHERE application_name = 'rookery:api' "
                "AND datname = current_database()"
            )
    assert last == "SELECT 'mine'"


async def test_a_terminated_pool_connection_is_replaced(database_url: str) -> None:
    async with await Database.connect(DatabaseConfig(database_url, pool_api=1)) as database:
        pid = await database.api.fetchval("SELECT pg_backend_pid()")
        await database.worker.execute("SELECT pg_terminate_backend($1)", pid)
        await until(lambda: database.api.get_size() == 0)

        assert await database.api.fetchval("SELECT pg_backend_pid()") != pid


async def test_closing_leaves_no_connection(database_url: str) -> None:
    database = await Database.connect(DatabaseConfig(database_url))
    await database.close()

    observer = await asyncpg.connect(database_url)
    await until(
        lambda: observer.fetchval(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = $1",
            "client backend",
        )
    )
    await observer.close()


async def test_closing_does_not_wait_forever_for_a_borrowed_connection(database_url: str) -> None:
    database = await Database.connect(DatabaseConfig(database_url, statement_timeout_seconds=0.05))
    borrowed = await database.api.acquire()

    await database.close()

    with pytest.raises(asyncpg.InterfaceError):
        await borrowed.execute("SELECT 1")


async def test_the_real_server_passes_the_check(database_url: str) -> None:
    first, second = await asyncpg.connect(database_url), await asyncpg.connect(database_url)

    await pool.check_server(first)
    await pool.check_server(first, other=second)

    assert not second.is_in_transaction()
    await first.close()
    await second.close()


async def test_a_server_before_15_is_refused_with_its_version() -> None:
    async with listening(old_server) as port:
        error = await refusal(f"postgresql://rookery@127.0.0.1:{port}/rookery")

    assert isinstance(error, DatabaseUnsuitable)
    assert "PostgreSQL 14.9" in str(error)
    assert "15 or newer" in str(error)


async def test_a_transaction_pooler_is_refused(database_server: Server, database_url: str) -> None:
    database = database_url.rpartition("/test_")[2].partition("?")[0]
    async with listening(TransactionPooler(database_server)) as port:
        url = f"postgresql://rookery@127.0.0.1:{port}/test_{database}"
        error = await refusal(url)
        lone = await asyncpg.connect(url)
        with pytest.raises(DatabaseUnsuitable, match="connection pooler"):
            await pool.check_server(lone)
        lone.terminate()

    assert isinstance(error, DatabaseUnsuitable)
    assert "connection pooler" in str(error)


async def test_a_pooler_that_refuses_session_settings_is_named_as_one() -> None:
    async with listening(stubborn_pooler) as port:
        error = await refusal(f"postgresql://rookery@127.0.0.1:{port}/rookery")

    assert isinstance(error, DatabaseUnsuitable)
    assert "connection pooler" in str(error)


async def test_a_wrong_password_is_told_without_it(database_server: Server) -> None:
    error = await refusal(database_server.tcp_url("postgres", password="not the one"))

    assert isinstance(error, DatabaseUnreachable)
    assert "refuses the login" in str(error)
    assert "not the one" not in str(error)


async def test_the_right_password_is_let_in(database_server: Server) -> None:
    async with await Database.connect(DatabaseConfig(database_server.tcp_url("postgres"))) as database:
        assert await database.api.fetchval("SELECT current_user") == "rookery"


async def test_a_missing_database_is_named(database_server: Server) -> None:
    error = await refusal(database_server.url("nowhere"))

    assert isinstance(error, DatabaseUnreachable)
    assert "no such database" in str(error)
    assert "/nowhere" in str(error)


async def test_a_closed_port_is_named() -> None:
    async with listening(web_server) as port:
        pass

    error = await refusal(f"postgresql://rookery:{PASSWORD}@127.0.0.1:{port}/rookery".replace(" ", "%20"))

    assert isinstance(error, DatabaseUnreachable)
    assert f"Nobody answers at 127.0.0.1:{port}/rookery" in str(error)


async def test_an_unknown_host_is_named() -> None:
    error = await refusal("postgresql://rookery@rookery.invalid/rookery")

    assert isinstance(error, DatabaseUnreachable)
    assert "Nobody answers at rookery.invalid:5432/rookery" in str(error)


async def test_another_kind_of_server_is_refused() -> None:
    async with listening(web_server) as port:
        error = await refusal(f"postgresql://rookery@127.0.0.1:{port}/rookery")

    assert f"127.0.0.1:{port}" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://rookery:s3cret@localhost/rookery",
        "localhost:5432",
        "postgresql://rookery:s3cret@localhost:port/rookery",
        "postgresql://rookery:s3cret@localhost/rookery?sslmode=maybe",
        "postgresql://rookery:s3cret@localhost/rookery?host",
        "postgresql://rookery:s3cr#et@localhost/rookery",
        "postgresql://rookery:s3cr/et@localhost/rookery",
    ],
)
async def test_a_malformed_address_is_refused_without_quoting_it(url: str) -> None:
    error = await refusal(url)

    assert isinstance(error, DatabaseUnsuitable)
    assert "postgresql://user:password@host:5432/database" in str(error)
    assert "s3cr" not in str(error)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://u:p@db.example:6000/chats", "db.example:6000/chats"),
        ("postgresql://db.example", "db.example:5432"),
        ("postgresql://u@/chats?host=/run/pg&port=7", "/run/pg:7/chats"),
        ("postgresql://u:12#34@db.example/chats", "the configured address"),
        ("postgresql://u:12/34@db.example/chats", "the configured address"),
        ("postgresql://u:p@db.example:x/chats", "the configured address"),
    ],
)
def test_addresses_are_described_without_credentials(url: str, address: str) -> None:
    assert pool.describe_address(url) == address


def test_a_config_does_not_show_its_password() -> None:
    assert "s3cret" not in repr(DatabaseConfig("postgresql://u:s3cret@h/d"))


def test_reconnecting_backs_off_to_five_seconds_with_jitter() -> None:
    delays = pool.reconnect_delays(Random(7))

    first = [next(delays) for _ in range(20)]

    full = [min(0.1 * 2**n, 5.0) for n in range(20)]
    assert all(most / 2 <= delay <= most for delay, most in zip(first, full, strict=True))
    assert len(set(first)) == 20
