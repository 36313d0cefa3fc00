"""Pools and connections: limits, unsuitable servers, and error messages in one line without secrets."""

from __future__ import annotations

import asyncio
from random import Random

import asyncpg
import pytest

from rookery.store.db import pool
from rookery.store.db.errors import DatabaseUnreachable, DatabaseUnsuitable, StoreError
from rookery.store.db.pool import Database, DatabaseConfig, PoolStats
from tests.database import PASSWORD, Server
from tests.eventually import until
from tests.store.db.fake_postgres import TransactionPooler, listening, old_server, stubborn_pooler, web_server


async def refusal(url: str) -> StoreError:
    """Return the error of a connection attempt, which must be the same for pools and for single connections."""
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


async def test_a_database_that_is_not_utf_8_is_refused_with_its_encoding(database_server: Server) -> None:
    admin = await asyncpg.connect(database_server.superuser_url)
    await admin.execute("CREATE DATABASE latin OWNER rookery ENCODING 'LATIN1' TEMPLATE template0")
    try:
        error = await refusal(database_server.url("latin"))
    finally:
        await admin.execute("DROP DATABASE latin WITH (FORCE)")
        await admin.close()

    assert isinstance(error, DatabaseUnsuitable)
    assert "encoding LATIN1" in str(error)
    assert "ENCODING 'UTF8'" in str(error)


async def test_pools_that_would_leave_too_few_connections_are_refused_with_the_numbers(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    allowed = int(await connection.fetchval("SHOW max_connections"))
    fits = DatabaseConfig(database_url, pool_api=allowed - 10 - 4 - 2, pool_worker=1)
    too_many = DatabaseConfig(database_url, pool_api=allowed - 10 - 4 - 1, pool_worker=1)

    assert await pool.check_capacity(connection, fits) == allowed
    with pytest.raises(DatabaseUnsuitable, match=rf"up to {allowed - 10} connections.* server's {allowed} free"):
        await pool.check_capacity(connection, too_many)
    await connection.close()


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
    assert f"No server answers at 127.0.0.1:{port}/rookery" in str(error)


async def test_an_unknown_host_is_named() -> None:
    error = await refusal("postgresql://rookery@rookery.invalid/rookery")

    assert isinstance(error, DatabaseUnreachable)
    assert "The host name in rookery.invalid:5432/rookery cannot be resolved" in str(error)


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
