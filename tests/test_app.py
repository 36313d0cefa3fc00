"""The parts put together: what a start refuses, and in which order it does things."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from rookery import app, settings
from rookery.settings import Settings
from rookery.store.embedded.data_dir import DataDirLock, Use
from rookery.store.errors import DatabaseUnsuitable, DataDirInUse, EmbeddedServerError
from rookery.store.pool import Database


def settings_of(home: Path, **flags: str) -> Settings:
    return settings.load({"data_dir": str(home / "data"), **flags}, {"HOME": str(home)}).settings


def say_nothing(_: str) -> None:
    return


async def test_every_task_of_a_replica_has_a_name_for_the_log(tmp_path: Path, database_url: str) -> None:
    before = asyncio.all_tasks()
    config = settings_of(tmp_path, database_url=database_url)
    async with (
        await Database.connect(app.database_config(config, database_url)) as database,
        app.running_replica(config, database),
    ):
        names = {task.get_name() for task in asyncio.all_tasks() - before}

    assert {"presence-beat", "presence-lost", "listener-check", "listener-lost", "notifier", "lag"} <= names
    assert [name for name in names if re.fullmatch(r"Task-\d+", name)] == []


async def test_replica_that_announced_its_stop_is_not_ready_and_stands_so_in_the_table(
    tmp_path: Path, database_url: str
) -> None:
    config = settings_of(tmp_path, database_url=database_url)
    async with await Database.connect(app.database_config(config, database_url)) as database:
        async with app.running_replica(config, database) as replica:
            await replica.announce_stop()

            assert replica.health.stopping
            assert await database.api.fetchval("SELECT stopping_at IS NOT NULL FROM replicas")
        assert await database.api.fetchval("SELECT count(*) FROM replicas") == 0


async def test_pools_too_large_for_the_server_are_refused_before_anything_is_created(
    tmp_path: Path, empty_database_url: str
) -> None:
    config = settings_of(tmp_path, database_url=empty_database_url, database_pool_api="500")
    async with await Database.connect(app.database_config(config, empty_database_url)) as database:
        with pytest.raises(DatabaseUnsuitable, match="up to 511 connections"):
            await app.prepare_schema(config, database)

        assert await database.api.fetchval("SELECT to_regclass('schema_migrations')") is None


async def test_server_waits_for_a_command_that_holds_the_data_directory(tmp_path: Path) -> None:
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)
    visitor = DataDirLock(config.data_dir, Use.VISITING)
    visitor.acquire()
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        visitor.release()

    async with app.held_data_dir(config, hear) as lock:
        assert lock.held

    assert len(said) == 1
    assert said[0].startswith("waiting for process ")


async def test_command_that_is_not_soon_done_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BUSY_SECONDS", 0.1)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with DataDirLock(config.data_dir, Use.VISITING), pytest.raises(DataDirInUse):
        async with app.held_data_dir(config, say_nothing):
            pass


@pytest.mark.parametrize("use", [Use.STARTING, Use.SERVING])
async def test_server_does_not_wait_for_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    monkeypatch.setattr(app, "BUSY_SECONDS", 1e9)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with DataDirLock(config.data_dir, use), pytest.raises(DataDirInUse):
        async with asyncio.timeout(30), app.held_data_dir(config, say_nothing):
            pass


async def test_command_beside_a_server_that_does_not_get_ready_says_that_it_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BUSY_SECONDS", 0.1)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with (
        DataDirLock(config.data_dir, Use.STARTING),
        pytest.raises(EmbeddedServerError, match=r"\(process \d+\) is still starting"),
    ):
        async with app.visited_database(config, say_nothing):
            pass
