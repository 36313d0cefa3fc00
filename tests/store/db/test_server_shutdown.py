"""A database server that has announced its shutdown but not closed its connections: they count as lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from rookery.store.db.pool import Connection, Database, DatabaseConfig
from tests.database import PASSWORD, Server
from tests.eventually import until
from tests.store.db.fake_postgres import listening, message

# Severity twice, SQLSTATE and text, as PostgreSQL says it when an administrator ends a session.
GOODBYE = message(b"E", b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0")

STATEMENTS: dict[str, Callable[[Connection], Awaitable[object]]] = {
    "execute": lambda conn: conn.execute("BEGIN"),
    "execute with arguments": lambda conn: conn.execute("SELECT $1::int", 1),
    "fetch": lambda conn: conn.fetch("SELECT 1"),
    "fetchrow": lambda conn: conn.fetchrow("SELECT 1"),
    "fetchval": lambda conn: conn.fetchval("SELECT 1"),
}


class ShutdownProxy:
    """A proxy that, on request, announces a shutdown on all connections without closing them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: set[asyncio.StreamWriter] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_unix_connection(
            f"{self._server.socket_dir}/.s.PGSQL.{self._server.port}"
        )
        self._clients.add(writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, to_server))
                group.create_task(_pump(server, writer))
        finally:
            self._clients.discard(writer)
            to_server.close()

    def say_goodbye(self) -> None:
        for writer in self._clients:
            writer.write(GOODBYE)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()


@contextlib.asynccontextmanager
async def parting_database(server: Server, database_url: str) -> AsyncIterator[tuple[ShutdownProxy, Database]]:
    parting = ShutdownProxy(server)
    name = database_url.rpartition("?")[0].rpartition("/")[2]
    async with listening(parting) as port:
        url = f"postgresql://rookery:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/{name}?sslmode=disable"
        async with await Database.connect(DatabaseConfig(url, pool_api=1, pool_worker=1)) as database:
            yield parting, database


async def _refusal(conn: Connection, statement: Callable[[Connection], Awaitable[object]]) -> Exception | None:
    try:
        await statement(conn)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
async def test_statement_after_the_servers_goodbye_fails_like_one_on_a_lost_connection(
    database_server: Server, database_url: str, statement: Callable[[Connection], Awaitable[object]]
) -> None:
    async with parting_database(database_server, database_url) as (parting, database):
        connection = await database.dedicated("test")
        refusals: list[Exception] = []

        async def is_given_up() -> bool:
            # A statement that is under way when the goodbye arrives hears it itself.
            parting.say_goodbye()
            await asyncio.sleep(0.01)
            if (error := await _refusal(connection, statement)) is not None:
                refusals.append(error)
            return any(not isinstance(each, asyncpg.AdminShutdownError) for each in refusals)

        await until(is_given_up)

        assert isinstance(refusals[-1], asyncpg.PostgresConnectionError)
        assert connection.is_closed()


async def test_pool_replaces_a_connection_that_the_server_gave_up(database_server: Server, database_url: str) -> None:
    async with parting_database(database_server, database_url) as (parting, database):
        first = await database.worker.fetchval("SELECT pg_backend_pid()")

        async def is_replaced() -> bool:
            parting.say_goodbye()
            await asyncio.sleep(0.01)
            with contextlib.suppress(asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError):
                return bool(await database.worker.fetchval("SELECT pg_backend_pid()") != first)
            return False

        await until(is_replaced)
