"""Kills of the embedded server and of the process that owns it, at the most difficult moments."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import asyncpg
import pytest

from rookery.store.db.embedded import os_account as accounts
from rookery.store.db.embedded import postmaster
from tests.store.db.embedded.embedded_rig import (
    RECALL,
    REMEMBER,
    Rig,
    execute,
    fetch,
    is_running,
    kill_owner_when_started,
    owner_process,
    processes_of,
    rig,
    seed,
    stranger_process,
    until,
)

__all__ = ["rig", "seed"]  # fixtures


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


async def test_adopted_server_is_stopped_without_pidfds_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)  # as on macOS, and in containers that forbid it
    data_dir = rig.made_data_dir()
    pid = kill_owner_when_started(data_dir)
    server = await rig.started(data_dir)
    assert (server.adopted, server.pid) == (True, pid)

    await server.stop()

    await until(lambda: not is_running(pid))  # reaped by its new parent


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
    pid_file = postmaster.read_pid_file(data_dir / "postgres")
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


async def test_pid_file_of_another_process_does_not_block_the_start(rig: Rig) -> None:
    data_dir = rig.made_data_dir()
    account = accounts.server_account(data_dir / "postgres")
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


def _write_pid_file(data_dir: Path, pid: int) -> None:
    cluster = data_dir / "postgres"
    lines = [pid, cluster, 1, 5432, data_dir / "run" / "pg", "", "    123         0", "ready   "]
    (cluster / "postmaster.pid").write_text("".join(f"{line}\n" for line in lines))
