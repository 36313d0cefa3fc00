"""Migrations: applied once and completely, by one process at a time, and refused for an unknown history."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from rookery.store import machine
from rookery.store.db import migrate
from rookery.store.db.errors import DatabaseUnsuitable, LockTimeout, SchemaUnusable
from rookery.store.db.pool import DatabaseConfig
from rookery.store.people import disabled_users
from rookery.testing import FakeClock
from tests.database import Server
from tests.eventually import until
from tests.store.db.fake_postgres import TransactionPooler, listening

PEOPLE = "-- min_schema: 1\nCREATE TABLE people (name text);\n"
PETS = "-- min_schema: 1\nCREATE TABLE pets (name text);\nINSERT INTO pets VALUES ('rook');\n"


@pytest.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


def write(folder: Path, *contents: str) -> Path:
    """Write migrations numbered from 1. Existing files with the same number are replaced."""
    for number, content in enumerate(contents, start=1):
        (folder / f"{number:04}_step{number}.sql").write_text(content)
    return folder


async def tables(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"
    )
    return [row[0] for row in rows]


async def versions(connection: asyncpg.Connection) -> list[int]:
    return [row[0] for row in await connection.fetch("SELECT version FROM schema_migrations ORDER BY version")]


async def test_missing_migrations_are_applied_in_order_and_recorded(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, "-- min_schema: 1\nALTER TABLE people ADD COLUMN age int;\n")

    applied = await migrate.migrate(connection, tmp_path)

    assert [str(each) for each in applied] == ["0001_step1", "0002_step2"]
    assert await connection.fetch("SELECT name, age FROM people") == []
    row = await connection.fetchrow("SELECT name, checksum, min_schema, applied_by FROM schema_migrations LIMIT 1")
    assert row is not None
    assert (row["name"], row["checksum"], row["min_schema"]) == ("step1", applied[0].checksum, 1)
    assert row["applied_by"].startswith("rookery ")


async def test_migrating_again_applies_nothing(connection: asyncpg.Connection, tmp_path: Path) -> None:
    await migrate.migrate(connection, write(tmp_path, PETS))

    assert await migrate.migrate(connection, tmp_path) == []
    assert await connection.fetchval("SELECT count(*) FROM pets") == 1


async def test_only_what_is_new_is_applied_to_an_older_database(connection: asyncpg.Connection, tmp_path: Path) -> None:
    await migrate.migrate(connection, write(tmp_path, PETS))

    applied = await migrate.migrate(connection, write(tmp_path, PETS, PEOPLE))

    assert [each.version for each in applied] == [2]
    assert await connection.fetchval("SELECT count(*) FROM pets") == 1


async def test_a_new_database_is_logged_as_one_step_and_an_upgrade_with_each_migration(
    connection: asyncpg.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        await migrate.migrate(connection, write(tmp_path, PEOPLE, PETS))
        assert caplog.messages == ["schema_created"]
        await migrate.migrate(connection, write(tmp_path, PEOPLE, PETS, PEOPLE.replace("people", "places")))

    assert caplog.messages == ["schema_created", "migration_applied"]


async def test_the_shipped_migrations_make_the_schema_of_this_version(connection: asyncpg.Connection) -> None:
    await migrate.migrate(connection)

    assert await versions(connection) == list(range(1, migrate.SCHEMA_VERSION + 1))
    assert migrate.SCHEMA_VERSION >= 1
    await migrate.check(connection)


async def test_files_and_runnable_chats_of_an_older_schema_survive_the_worker_tables(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    for name in ("0001_core.sql", "0002_models.sql"):
        (tmp_path / name).write_text((migrate.FILES / name).read_text(encoding="utf-8"))
    await migrate.migrate(connection, tmp_path)
    await connection.execute("""
        WITH u AS (INSERT INTO users (username) VALUES ('ada') RETURNING id),
             p AS (INSERT INTO model_providers (type, name) VALUES ('x', 'x') RETURNING id),
             m AS (INSERT INTO model_configs (provider_id, model, context_limit) SELECT id, 'm', 9 FROM p RETURNING id),
             f AS (INSERT INTO chat_files (owner_id, name, mime_type, size_bytes)
                   SELECT id, 'a.txt', 'text/plain', 3 FROM u)
        INSERT INTO chats (owner_id, status, title, last_model_config_id)
        SELECT u.id, 'running', 'A chat', m.id FROM u, m
        """)

    await migrate.migrate(connection)

    file = await connection.fetchrow("SELECT data, origin, sha256 = sha256('') AS is_hashed FROM chat_files")
    assert file is not None
    assert tuple(file) == (b"", "upload", True)
    (candidate,) = await machine.list_candidates(connection, 5)
    assert candidate.status == "running"


async def test_workspaces_of_an_older_schema_say_which_network_they_have(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    for file in migrate.FILES.iterdir():
        if file.name.endswith(".sql") and file.name < "0010":
            (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"))
    await migrate.migrate(connection, tmp_path)
    for name, network, started in (
        ("a", "full", True),
        ("b", "proxy", True),
        ("c", "none", True),
        ("d", "full", False),
    ):
        async with connection.transaction():
            await connection.execute("INSERT INTO templates (name, revision) VALUES ($1, repeat('0', 64))", name)
            await connection.execute(
                """
                INSERT INTO template_revisions (template, revision, manifest, archive)
                VALUES ($1, repeat('0', 64), jsonb_build_object('sandbox', jsonb_build_object('network', $2::text)), '')
                """,
                name,
                network,
            )
            await connection.execute(
                """
                WITH u AS (INSERT INTO users (username) VALUES ($1) RETURNING id)
                INSERT INTO workspaces (owner_id, name, template, template_revision, started_at)
                SELECT u.id, $1, $1, repeat('0', 64), CASE WHEN $2 THEN now() END FROM u
                """,
                name,
                started,
            )

    await migrate.migrate(connection)

    rows = await connection.fetch("SELECT network FROM workspaces ORDER BY name")
    assert [row["network"] for row in rows] == ["host", "hosts", "none", None]


async def test_accounts_that_an_older_version_disabled_count_as_disabled_recently(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    for file in migrate.FILES.iterdir():
        if file.name.endswith(".sql") and file.name < "0010":
            (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"))
    await migrate.migrate(connection, tmp_path)
    await connection.execute("INSERT INTO users (username, status) VALUES ('ada', 'disabled'), ('ben', 'active')")

    await migrate.migrate(connection)

    (found,) = await disabled_users.list_recent(connection, seconds=600)
    assert found.id == await connection.fetchval("SELECT id FROM users WHERE username = 'ada'")
    assert await connection.fetchval("SELECT disabled_at FROM users WHERE username = 'ben'") is None


async def test_a_config_is_migrated_over_a_connection_of_its_own(empty_database_url: str, tmp_path: Path) -> None:
    applied = await migrate.migrate(DatabaseConfig(empty_database_url), write(tmp_path, PEOPLE))

    assert [each.version for each in applied] == [1]


async def test_a_failing_migration_leaves_nothing_of_itself(connection: asyncpg.Connection, tmp_path: Path) -> None:
    write(tmp_path, PEOPLE, "-- min_schema: 1\nCREATE TABLE pets (name text);\nINSERT INTO nowhere VALUES (1);\n")

    with pytest.raises(SchemaUnusable, match=r"0002_step2 failed: .*nowhere.*Nothing of it was applied"):
        await migrate.migrate(connection, tmp_path)

    assert await tables(connection) == ["people", "schema_migrations"]
    assert await versions(connection) == [1]


async def test_a_corrected_migration_goes_on_where_the_failed_one_stopped(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, "-- min_schema: 1\nSELECT 1/0;\n")
    with pytest.raises(SchemaUnusable):
        await migrate.migrate(connection, tmp_path)

    applied = await migrate.migrate(connection, write(tmp_path, PEOPLE, PETS))

    assert [each.version for each in applied] == [2]


async def test_an_edited_applied_file_stops_the_start(connection: asyncpg.Connection, tmp_path: Path) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))
    write(tmp_path, PEOPLE.replace("name", "nick"), PETS)

    for refuse in (migrate.migrate, migrate.plan, migrate.check):
        with pytest.raises(SchemaUnusable, match="0001_step1 was applied with other content"):
            await refuse(connection, tmp_path)

    assert await tables(connection) == ["people", "schema_migrations"]


async def test_line_endings_of_a_checkout_do_not_count_as_an_edit(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))
    (tmp_path / "0001_step1.sql").write_bytes(PEOPLE.replace("\n", "\r\n").encode())

    assert await migrate.migrate(connection, tmp_path) == []


@pytest.mark.parametrize("min_schema", [1, 2])
async def test_a_newer_database_is_used_while_it_still_supports_this_schema(
    connection: asyncpg.Connection, tmp_path: Path, min_schema: int
) -> None:
    newer = f"-- min_schema: {min_schema}\nCREATE TABLE later (id int);\n"
    await migrate.migrate(connection, write(tmp_path, PEOPLE, PETS, newer))

    (tmp_path / "0003_step3.sql").unlink()

    await migrate.check(connection, tmp_path)
    assert await migrate.migrate(connection, tmp_path) == []


async def test_a_database_too_new_for_this_version_is_refused_with_both_numbers(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, "-- min_schema: 2\nDROP TABLE people;\n", "-- min_schema: 1\nSELECT 1;\n")
    await migrate.migrate(connection, tmp_path)

    (tmp_path / "0003_step3.sql").unlink()
    (tmp_path / "0002_step2.sql").unlink()

    for refuse in (migrate.migrate, migrate.plan, migrate.check):
        with pytest.raises(SchemaUnusable, match=r"has schema 3, .* with schema 2 .* has schema 1\."):
            await refuse(connection, tmp_path)


async def test_a_database_with_a_gap_in_its_history_is_refused(connection: asyncpg.Connection, tmp_path: Path) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE, PETS, "-- min_schema: 1\nSELECT 1;\n"))
    await connection.execute("DELETE FROM schema_migrations WHERE version = 2")

    with pytest.raises(SchemaUnusable, match="migration 0002 was not applied"):
        await migrate.migrate(connection, tmp_path)


@pytest.mark.parametrize(
    ("file_name", "content", "complaint"),
    [
        ("0003_late.sql", PEOPLE, "should have number 0002"),
        ("0001_twice.sql", PEOPLE, "should have number 0002"),
        ("2_short.sql", PEOPLE, "is not named NNNN_subject"),
        ("0002_silent.sql", "CREATE TABLE t ();\n-- min_schema: 1\n", "must begin with `-- min_schema: N`"),
        ("0002_early.sql", "-- min_schema: 3\n", "N up to 2"),
    ],
)
async def test_a_folder_that_makes_no_sense_is_refused(
    tmp_path: Path, file_name: str, content: str, complaint: str
) -> None:
    write(tmp_path, PEOPLE)
    (tmp_path / file_name).write_text(content)

    with pytest.raises(SchemaUnusable, match=complaint):
        migrate.load(tmp_path)


async def test_a_dry_run_names_what_is_missing_and_changes_nothing(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, PETS)

    planned = await migrate.plan(connection, tmp_path)

    assert [str(each) for each in planned] == ["0001_step1", "0002_step2"]
    assert await tables(connection) == []


async def test_without_auto_migrate_a_pending_migration_names_the_command(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))

    with pytest.raises(SchemaUnusable, match=r"lacks 1 migration.*0002_step2.*rookery admin migrate"):
        await migrate.check(connection, write(tmp_path, PEOPLE, PETS))
    with pytest.raises(SchemaUnusable, match=r"0002_step2\. Wait\.$"):
        await migrate.check(connection, tmp_path, advice="Wait.")

    assert await tables(connection) == ["people", "schema_migrations"]


async def test_statements_outside_a_transaction_run_one_by_one(connection: asyncpg.Connection, tmp_path: Path) -> None:
    concurrently = (
        "-- no transaction\n-- min_schema: 1\n-- Two indexes; neither may lock out writers.\n"
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS by_name\n  ON people (name);\n"
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS by_upper ON people (upper(name) text_pattern_ops) ;\n"
    )

    await migrate.migrate(connection, write(tmp_path, PEOPLE, concurrently))

    indexes = await connection.fetch("SELECT indexname FROM pg_indexes WHERE tablename = 'people' ORDER BY 1")
    assert [row[0] for row in indexes] == ["by_name", "by_upper"]
    assert await versions(connection) == [1, 2]


async def test_a_failure_outside_a_transaction_says_so_and_can_be_repeated(
    connection: asyncpg.Connection, tmp_path: Path
) -> None:
    broken = "-- no transaction\n-- min_schema: 1\nCREATE TABLE IF NOT EXISTS pets ();\nSELECT 1/0;\n"
    with pytest.raises(SchemaUnusable, match="Part of it may have been applied"):
        await migrate.migrate(connection, write(tmp_path, PEOPLE, broken))
    assert await tables(connection) == ["people", "pets", "schema_migrations"]

    await migrate.migrate(connection, write(tmp_path, PEOPLE, broken.replace("1/0", "1")))

    assert await versions(connection) == [1, 2]


async def test_a_locked_table_is_tried_again_after_its_holder_lets_go(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))
    impatient = (
        "-- min_schema: 1\nSET LOCAL lock_timeout = '20ms';\nCREATE TABLE pets ();\nALTER TABLE people ADD age int;\n"
    )
    write(tmp_path, PEOPLE, impatient)
    clock = FakeClock()
    holder = await asyncpg.connect(empty_database_url)
    await holder.execute("BEGIN; LOCK TABLE people")

    migrating = asyncio.create_task(migrate.migrate(connection, tmp_path, clock=clock))
    await clock.fire("migrate-retry")
    await clock.until_waiting("migrate-retry")
    await holder.execute("COMMIT")
    await clock.fire("migrate-retry")

    assert [each.version for each in await migrating] == [2]
    assert await connection.fetch("SELECT age FROM people") == []
    await holder.close()


async def test_a_table_that_stays_locked_ends_in_a_clear_error(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))
    write(tmp_path, PEOPLE, "-- min_schema: 1\nSET LOCAL lock_timeout = '1ms';\nALTER TABLE people ADD age int;\n")
    clock = FakeClock()
    holder = await asyncpg.connect(empty_database_url)
    await holder.execute("BEGIN; LOCK TABLE people")

    migrating = asyncio.create_task(migrate.migrate(connection, tmp_path, clock=clock))
    for _ in range(10):
        await clock.fire("migrate-retry")

    with pytest.raises(LockTimeout, match="0002_step2 found its tables locked 11 times"):
        await migrating
    assert await versions(connection) == [1]
    await holder.close()


async def test_a_second_migrator_waits_and_finds_the_work_done(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE)
    clock = FakeClock()
    first = await asyncpg.connect(empty_database_url)
    await first.execute(f"SELECT pg_advisory_lock({migrate.LOCK_KEY})")

    second = asyncio.create_task(migrate.migrate(connection, tmp_path, clock=clock))
    await clock.until_waiting("migrate-lock")
    await migrate.migrate(first, tmp_path)
    await first.close()
    await clock.fire("migrate-lock")

    assert await second == []


async def test_a_migrator_that_never_ends_is_not_waited_for_forever(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    first = await asyncpg.connect(empty_database_url)
    await first.execute(f"SELECT pg_advisory_lock({migrate.LOCK_KEY})")

    waiting = asyncio.create_task(migrate.migrate(connection, write(tmp_path, PEOPLE), clock=clock))
    await clock.until_waiting("migrate-lock")
    await clock.advance(migrate.LOCK_WAIT_SECONDS + 1)

    with pytest.raises(LockTimeout, match="more than 5 minutes"):
        await waiting
    assert await tables(connection) == []
    await first.close()


SLEEPERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


async def test_a_cancelled_migration_leaves_nothing_and_frees_the_lock(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, "-- min_schema: 1\nCREATE TABLE pets ();\nSELECT pg_sleep(60);\n")
    observer = await asyncpg.connect(empty_database_url)
    migrating = asyncio.create_task(migrate.migrate(connection, tmp_path))
    await until(lambda: observer.fetchval(SLEEPERS))

    migrating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await migrating

    assert await tables(observer) == ["people", "schema_migrations"]
    assert await observer.fetchval("SELECT pg_try_advisory_lock($1)", migrate.LOCK_KEY)
    await observer.close()


async def test_the_callers_session_limits_are_off_while_migrating_and_back_afterwards(
    empty_database_url: str, tmp_path: Path
) -> None:
    connection = await asyncpg.connect(
        empty_database_url, server_settings={"statement_timeout": "20", "lock_timeout": "30ms"}, command_timeout=0.5
    )
    await migrate.migrate(connection, write(tmp_path, "-- min_schema: 1\nSELECT pg_sleep(0.6);\n"))

    assert await connection.fetchval("SHOW statement_timeout") == "20ms"
    assert await connection.fetchval("SHOW lock_timeout") == "30ms"
    await connection.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER SCHEMA public OWNER TO postgres; REVOKE ALL ON SCHEMA public FROM pg_database_owner", "the owner"),
        (
            "ALTER SCHEMA public OWNER TO postgres; REVOKE CREATE ON SCHEMA public FROM pg_database_owner;"
            "GRANT USAGE ON SCHEMA public TO rookery",
            "the owner",
        ),
        (migrate.TABLE, "permission denied for table schema_migrations.* the owner"),
        ("ALTER ROLE rookery IN DATABASE {database} SET default_transaction_read_only = on", "the primary"),
    ],
)
async def test_a_role_that_may_not_change_the_schema_is_told_what_it_lacks(
    empty_database_url: str, database_server: Server, tmp_path: Path, *, change: str, said: str
) -> None:
    database = urlsplit(empty_database_url).path.strip("/")
    admin = await asyncpg.connect(database_server.url(database, role="postgres"))
    await admin.execute(change.format(database=database))
    before = await tables(admin)
    connection = await asyncpg.connect(empty_database_url)

    with pytest.raises(DatabaseUnsuitable, match=said):
        await migrate.migrate(connection, write(tmp_path, PEOPLE))

    assert await tables(admin) == before
    await connection.close()
    await admin.close()


async def test_a_migration_of_tables_that_belong_to_another_role_says_so(
    connection: asyncpg.Connection, database_server: Server, tmp_path: Path
) -> None:
    await migrate.migrate(connection, write(tmp_path, PEOPLE))
    database = await connection.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(database_server.url(database, role="postgres"))
    await admin.execute("ALTER TABLE people OWNER TO postgres")
    await admin.close()

    with pytest.raises(DatabaseUnsuitable, match="must be owner of table people"):
        await migrate.migrate(
            connection, write(tmp_path, PEOPLE, "-- min_schema: 1\nALTER TABLE people ADD COLUMN age int;\n")
        )


async def test_a_transaction_pooler_is_refused_before_anything_is_created(
    connection: asyncpg.Connection, database_server: Server, tmp_path: Path
) -> None:
    database = await connection.fetchval("SELECT current_database()")
    async with listening(TransactionPooler(database_server)) as port:
        config = DatabaseConfig(f"postgresql://rookery@127.0.0.1:{port}/{database}")

        with pytest.raises(DatabaseUnsuitable, match="connection pooler"):
            await migrate.migrate(config, write(tmp_path, PEOPLE))

    assert await tables(connection) == []


RACER = """
import asyncio, pathlib, sys
from rookery.store import machine
from rookery.store.db import migrate
from rookery.store.db.pool import DatabaseConfig
url, folder = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
print(len(asyncio.run(migrate.migrate(DatabaseConfig(url), pathlib.Path(folder)))), flush=True)
"""


async def test_ten_processes_that_start_at_once_migrate_once(
    connection: asyncpg.Connection, empty_database_url: str, tmp_path: Path
) -> None:
    write(tmp_path, PEOPLE, PETS, "-- no transaction\n-- min_schema: 1\nCREATE INDEX CONCURRENTLY n ON pets (name);\n")
    pipe = asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RACER, empty_database_url, str(tmp_path), stdin=pipe, stdout=pipe
        )
        for _ in range(10)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"

    answers = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))

    assert [racer.returncode for racer in racers] == [0] * 10
    assert sorted(int(out) for out, _ in answers) == [0] * 9 + [3]
    assert await connection.fetchval("SELECT count(*) FROM pets") == 1
    assert await versions(connection) == [1, 2, 3]
