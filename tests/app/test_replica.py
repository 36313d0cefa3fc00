"""A whole replica: refused starts, and the order of start and stop."""

from __future__ import annotations

import asyncio
import re
import socket
import stat
import tempfile
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rookery.app import installation
from rookery.app import replica as app_replica
from rookery.app.replica import Choices
from rookery.cli.serve import metrics_port
from rookery.domain.access.rights import UserActor
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Text
from rookery.live.part_buffer import EpisodeKey
from rookery.llm.errors import TransportError
from rookery.models.key_ring import KeyRing, new_key
from rookery.settings import settings
from rookery.settings.settings import Settings, SettingsError
from rookery.store.db.embedded.data_dir import DataDirLock, Use
from rookery.store.db.errors import DatabaseUnsuitable, DataDirInUse, EmbeddedServerError
from rookery.store.db.pool import Database
from rookery.store.workspaces.lifecycle_requests import Requested
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.connection import Reach
from tests.certificates import make_certificate
from tests.eventually import until
from tests.workspaces.fake_driver import FakeDriver


def settings_of(home: Path, **flags: str) -> Settings:
    return settings.load({"data_dir": str(home / "data"), **flags}, {"HOME": str(home)}).settings


def say_nothing(_: str) -> None:
    return


async def test_every_task_of_a_replica_has_a_name_for_the_log(tmp_path: Path, database_url: str) -> None:
    before = asyncio.all_tasks()
    config = settings_of(tmp_path, database_url=database_url)
    async with (
        await Database.connect(installation.database_config(config, database_url)) as database,
        app_replica.running_replica(config, database),
    ):
        names = {task.get_name() for task in asyncio.all_tasks() - before}

    assert {"presence-beat", "presence-lost", "listener-check", "listener-lost", "notifier", "lag"} <= names
    assert [name for name in names if re.fullmatch(r"Task-\d+", name)] == []


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_server_takes_chats_unless_its_worker_is_off(tmp_path: Path, database_url: str, is_enabled: bool) -> None:
    config = settings_of(tmp_path, database_url=database_url, **{"worker.enabled": str(is_enabled).lower()})
    async with (
        await Database.connect(installation.database_config(config, database_url)) as database,
        app_replica.running_replica(config, database) as replica,
    ):
        assert replica.worker._may_acquire() is is_enabled
        assert set((await replica.health.checks()).values()) == {"ok"}


async def test_figures_of_the_settings_reach_the_worker_and_its_peers(tmp_path: Path, database_url: str) -> None:
    flags = {
        "worker.lease_ttl": "45s",
        "worker.connect_timeout": "100ms",
        "worker.max_output_tokens": "1234",
        "worker.part_flush": "70ms",
        "worker.part_flush_chars": "99",
        "worker.watch_publish_timeout": "3s",
    }
    config = settings_of(tmp_path, database_url=database_url, **flags)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with (
            await Database.connect(installation.database_config(config, database_url)) as database,
            app_replica.running_replica(config, database) as replica,
        ):
            services = replica.worker._services
            assert await database.api.fetchval("SELECT lease_ttl FROM replicas") == timedelta(seconds=45)
            assert (services.max_output_tokens, services.config.watch_publish_seconds) == (1234, 3.0)
            assert (services.tick.seconds, services.part_limits.merge_chars) == (0.07, 99)
            url = f"https://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(TransportError, match=r"No connection within 0\.1 s"):
                await services.connector._clients.get(url, "/", headers={})


async def test_replica_that_announced_its_stop_is_not_ready_and_stands_so_in_the_table(
    tmp_path: Path, database_url: str
) -> None:
    config = settings_of(tmp_path, database_url=database_url)
    async with await Database.connect(installation.database_config(config, database_url)) as database:
        async with app_replica.running_replica(config, database) as replica:
            await replica.announce_stop()

            assert replica.health.stopping
            assert await database.api.fetchval("SELECT stopping_at IS NOT NULL FROM replicas")
        assert await database.api.fetchval("SELECT count(*) FROM replicas") == 0


async def test_replica_that_is_not_known_to_be_alive_neither_takes_chats_nor_commits(
    tmp_path: Path, database_url: str
) -> None:
    config = settings_of(tmp_path, database_url=database_url)
    async with (
        await Database.connect(installation.database_config(config, database_url)) as database,
        app_replica.running_replica(config, database) as replica,
    ):
        services = replica.worker._services
        assert (services.may_acquire(), services.may_commit()) == (True, True)

        replica.presence._disconnect()

        assert (services.may_acquire(), services.may_commit()) == (False, False)
        await until(services.may_commit)  # it reconnects


async def test_pools_too_large_for_the_server_are_refused_before_anything_is_created(
    tmp_path: Path, empty_database_url: str
) -> None:
    config = settings_of(tmp_path, database_url=empty_database_url, database_pool_api="500")
    async with await Database.connect(installation.database_config(config, empty_database_url)) as database:
        with pytest.raises(DatabaseUnsuitable, match="up to 512 connections"):
            await installation.prepare_schema(config, database)

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

    async with installation.locked_data_dir(config, hear) as lock:
        assert lock.held

    assert len(said) == 1
    assert said[0].startswith("waiting for process ")


async def test_command_that_is_not_soon_done_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "BUSY_SECONDS", 0.1)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with DataDirLock(config.data_dir, Use.VISITING), pytest.raises(DataDirInUse):
        async with installation.locked_data_dir(config, say_nothing):
            pass


@pytest.mark.parametrize("use", [Use.STARTING, Use.SERVING])
async def test_server_does_not_wait_for_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    monkeypatch.setattr(installation, "BUSY_SECONDS", 1e9)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with DataDirLock(config.data_dir, use), pytest.raises(DataDirInUse):
        async with asyncio.timeout(30), installation.locked_data_dir(config, say_nothing):
            pass


async def test_command_beside_a_server_that_does_not_get_ready_says_that_it_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUSY_SECONDS", 0.1)
    config = settings_of(tmp_path)
    config.data_dir.mkdir(mode=0o700)

    with (
        DataDirLock(config.data_dir, Use.STARTING),
        pytest.raises(EmbeddedServerError, match=r"\(process \d+\) is still starting"),
    ):
        async with installation.command_database(config, say_nothing):
            pass


async def test_replica_is_found_at_its_socket_and_takes_it_along(tmp_path: Path, database_url: str) -> None:
    config = settings_of(tmp_path, database_url=database_url)
    config.data_dir.mkdir(mode=0o700)
    async with await Database.connect(installation.database_config(config, database_url)) as database:
        async with (
            app_replica.running_replica(config, database) as first,
            app_replica.running_replica(config, database) as second,
        ):
            rows = await database.api.fetch("SELECT id, host_id, relay_unix FROM replicas")
            text = await metrics_port.fetch(rows[0]["relay_unix"])

            assert {row["id"] for row in rows} == {first.id, second.id}
            assert len({row["host_id"] for row in rows}) == 1
            assert [mode_of(row["relay_unix"]) for row in rows] == [0o600, 0o600]
            assert b"rookery_build_info" in text
        assert [mode_of(row["relay_unix"]) for row in rows] == [None, None]


async def test_socket_of_a_killed_replica_is_removed_by_the_next_one(tmp_path: Path, database_url: str) -> None:
    config = settings_of(tmp_path, database_url=database_url)
    run = config.data_dir / "run"
    run.mkdir(mode=0o700, parents=True)
    config.data_dir.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(run / "r0.s"))
    async with (
        await Database.connect(installation.database_config(config, database_url)) as database,
        app_replica.running_replica(config, database) as replica,
    ):
        assert [path.name for path in run.glob("r*.s")] == [Path(replica.presence.replica.relay_unix or "").name]


async def test_replicas_of_two_machines_show_each_others_chats_over_tls(tmp_path: Path, database_url: str) -> None:
    cert = make_certificate(tmp_path)
    homes = [tmp_path / "a", tmp_path / "b"]
    tls = {"relay_tls_cert": cert, "relay_tls_key": cert, "relay_tls_ca": cert}
    key = EpisodeKey(ChatId(uuid4()), 1, 1)
    ring = KeyRing.parse(new_key("k1"))
    async with AsyncExitStack() as stack:
        sites = []
        for home in homes:
            (home / "data").mkdir(mode=0o700, parents=True)
            config = settings_of(home, database_url=database_url, relay_bind="127.0.0.1:0", **tls)
            database = await stack.enter_async_context(
                await Database.connect(installation.database_config(config, database_url))
            )
            sites.append(
                await stack.enter_async_context(app_replica.running_replica(config, database, Choices(ring=ring)))
            )
        here, there = sites
        episode = there.worker.buffer.create_episode(key)
        episode.add_part(Role.ASSISTANT, Text("over the wire"))
        episode.flush()

        source = here.relay.hub.source(there.id)
        assert source is not None
        woken = asyncio.Event()
        subscription = source.subscribe(key, wake=woken.set)
        async with asyncio.timeout(20):
            while not (batch := subscription.pull()):
                woken.clear()
                await woken.wait()
        subscription.close()

        assert b"over the wire" in batch[0][2]
        assert (there.presence.replica.relay_url or "").startswith("wss://127.0.0.1:")
        assert here.presence.replica.host_id != there.presence.replica.host_id


async def test_certificate_that_cannot_be_read_is_a_problem_of_the_settings(tmp_path: Path, database_url: str) -> None:
    missing = str(tmp_path / "missing.pem")
    config = settings_of(
        tmp_path,
        database_url=database_url,
        relay_bind="127.0.0.1:0",
        relay_tls_cert=missing,
        relay_tls_key=missing,
    )
    config.data_dir.mkdir(mode=0o700)
    async with await Database.connect(installation.database_config(config, database_url)) as database:
        with pytest.raises(SettingsError, match="relay_bind"):
            async with app_replica.running_replica(config, database):
                pass


def mode_of(path: str) -> int | None:
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except FileNotFoundError:
        return None


async def test_workspace_of_one_machine_is_used_from_another(tmp_path: Path, database_url: str) -> None:
    """Each simulated machine has its own data directory and sockets."""
    ring = KeyRing.parse(new_key("k1"))
    async with AsyncExitStack() as stack:

        async def machine(name: str) -> tuple[app_replica.Replica, AsyncExitStack]:
            (tmp_path / name).mkdir()
            config = settings_of(tmp_path / name, database_url=database_url, relay_bind="127.0.0.1:0")
            config.data_dir.mkdir(mode=0o700)
            driver = FakeDriver(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rkm"))))
            stack.push_async_callback(driver.close)
            life = await stack.enter_async_context(AsyncExitStack())
            connecting = Database.connect(installation.database_config(config, database_url))
            database = await life.enter_async_context(await connecting)
            choices = Choices(ring=ring, drivers={"local": driver})
            return await life.enter_async_context(app_replica.running_replica(config, database, choices)), life

        (here, _), (there, its_life) = await machine("here"), await machine("there")
        pool = there.database.api
        await until(lambda: pool.fetchval("SELECT count(*) > 0 FROM templates WHERE name = 'blank'"))
        owner = await pool.fetchval("INSERT INTO users (username) VALUES ('ada') RETURNING id")
        made = await there.workspaces.service.request_create(
            there.store.as_actor(UserActor(owner)), owner, template="blank"
        )
        assert isinstance(made, Requested)
        assert made.operation is not None
        await there.workspaces.service.wait_operation(made.operation.id, seconds=60)

        place = await here.workspaces.directory.find(made.workspace.id)
        assert place is not None
        assert (place.status, place.reach) == ("running", Reach.RELAYED)
        health = await here.workspaces.directory.connect(place, ChatHeaders()).health()
        assert health.generation == place.generation

        await its_life.aclose()
        place = await here.workspaces.directory.find(made.workspace.id)
        assert place is not None
        assert place.reach is Reach.OFFLINE
