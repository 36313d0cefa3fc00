"""Hints: delivered locally first, coalesced and split, without exceptions; the listener survives lost connections and
foreign payloads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.runtime.clock import SystemClock
from rookery.store.db import pool
from rookery.store.db.hints import (
    CHANNELS,
    AccessHint,
    ChatHint,
    ConfigHint,
    Hint,
    MiscHint,
    OwnershipHint,
    WatchHint,
    WatchKind,
)
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Listener, Notifier, NotifyProbe, OversizedHint
from rookery.testing import FakeClock
from tests.database import Server
from tests.eventually import until

CHAT = uuid4()


def chat_hint(version: int, chat_id: UUID = CHAT) -> ChatHint:
    return ChatHint(
        chat_id=chat_id,
        snapshot_version=version,
        history_version=1,
        queue_version=1,
        retry_state_version=1,
        generation_attempt=0,
        status="running",
        archived=False,
        worker_id=None,
        runner_id=None,
    )


def misc(topic: str, size: int = 0) -> MiscHint:
    return MiscHint(topic=topic, data={"filler": "x" * size})


@dataclass
class Replica:
    """The hint components of one process: a bus, a notifier and a listener."""

    database: Database
    bus: Bus
    notifier: Notifier
    listener: Listener
    clock: FakeClock
    connections: list[asyncpg.Connection]
    heard: list[Hint] = field(default_factory=list)
    resyncs: int = 0

    def hear(self, *kinds: type[Hint]) -> None:
        for kind in kinds:
            self.bus.subscribe(kind, self.heard.append)

    def count_resync(self) -> None:
        self.resyncs += 1

    async def cut(self) -> None:
        """End the listener's connection on the server."""
        await self.database.api.execute("SELECT pg_terminate_backend($1)", self.connections[-1].get_server_pid())
        await until(lambda: not self.listener.connected)

    async def send_raw(self, channel: str, payload: str) -> None:
        await self.database.api.execute("SELECT pg_notify($1, $2)", channel, payload)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with await Database.connect(DatabaseConfig(database_url)) as database:
        yield database


@contextlib.asynccontextmanager
async def running(database: Database, *, is_alone: bool = False) -> AsyncIterator[Replica]:
    bus, clock = Bus(), FakeClock()
    notifier = Notifier(database.worker, bus, strict=True, is_alone=lambda: is_alone, clock=clock)
    connections: list[asyncpg.Connection] = []

    async def connect() -> asyncpg.Connection:
        connections.append(await database.dedicated("listen"))
        return connections[-1]

    listener = Listener(connect, bus, clock=clock, rng=Random(1))
    replica = Replica(database, bus, notifier, listener, clock, connections)
    bus.on_resync(replica.count_resync)
    tasks = [asyncio.create_task(notifier.run()), asyncio.create_task(listener.run())]
    try:
        await asyncio.wait_for(listener.wait_connected(), 10)
        yield replica
    finally:
        await notifier.close()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def replica(database: Database) -> AsyncIterator[Replica]:
    async with running(database) as replica:
        yield replica


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Replica]:
    async with running(database) as replica:
        yield replica


async def test_every_kind_of_hint_reaches_another_replica_unchanged(replica: Replica, other: Replica) -> None:
    hints: list[Hint] = [
        chat_hint(7),
        OwnershipHint(chat_id=CHAT, snapshot_version=7),
        WatchHint(user_id=uuid4(), kind=WatchKind.STATUS, chat_id=CHAT, snapshot_version=7, users=(uuid4(),)),
        ConfigHint(kind="model", id="m1"),
        AccessHint(kind="session", id=None),
        MiscHint(topic="workspace:1", data={"ready": True, "n": 3, "none": None}),
    ]
    other.hear(*CHANNELS)

    replica.notifier.publish(hints)

    await until(lambda: len(other.heard) == len(hints))
    assert {repr(hint) for hint in other.heard} == {repr(hint) for hint in hints}


async def test_local_subscribers_hear_before_publish_returns_and_once_more_from_the_server(replica: Replica) -> None:
    replica.hear(ChatHint)

    replica.notifier.publish([chat_hint(1)])

    assert replica.heard == [chat_hint(1)]
    await until(lambda: len(replica.heard) == 2)
    assert replica.heard[1] == chat_hint(1)


async def test_hints_of_one_channel_arrive_in_the_order_they_were_published(replica: Replica, other: Replica) -> None:
    other.hear(MiscHint)
    hints = [misc(f"t{number}", size=number) for number in range(600)]

    for hint in hints:
        replica.notifier.publish([hint])

    await until(lambda: len(other.heard) == len(hints))
    assert other.heard == hints


async def test_a_burst_on_one_chat_is_sent_in_few_statements_and_ends_at_the_newest(
    replica: Replica, other: Replica
) -> None:
    other.hear(ChatHint)

    for version in range(1, 501):
        replica.notifier.publish([chat_hint(version)])
        if version % 50 == 0:
            await asyncio.sleep(0)

    await until(lambda: other.heard and other.heard[-1] == chat_hint(500))
    await replica.notifier.flush()  # what is heard elsewhere is counted here a moment later
    stats = replica.notifier.stats()
    assert stats.statements < 50
    assert stats.published == 500
    assert stats.sent + stats.coalesced == 500


async def test_coalescing_keeps_the_highest_version_even_if_it_was_announced_first(
    replica: Replica, other: Replica
) -> None:
    other.hear(ChatHint)

    replica.notifier.publish([chat_hint(9), chat_hint(8)])
    await replica.notifier.flush()

    await until(lambda: other.heard)
    assert other.heard == [chat_hint(9)]


async def test_hints_of_different_chats_and_kinds_are_never_coalesced(replica: Replica, other: Replica) -> None:
    other.hear(ChatHint, OwnershipHint)
    second = uuid4()

    replica.notifier.publish([chat_hint(1), chat_hint(1, second)])
    replica.notifier.publish([OwnershipHint(chat_id=CHAT, snapshot_version=version) for version in (1, 2)])

    await until(lambda: len(other.heard) == 4)
    assert replica.notifier.stats().coalesced == 0


async def test_a_long_list_is_split_and_arrives_whole(replica: Replica, other: Replica) -> None:
    other.hear(MiscHint)
    hints = [misc(f"t{number}", size=3000) for number in range(20)]

    replica.notifier.publish(hints)
    await replica.notifier.flush()

    await until(lambda: len(other.heard) == 20)
    assert other.heard == hints
    assert replica.notifier.stats().statements == 1


async def test_more_than_one_batch_is_sent_without_waiting_for_more(replica: Replica, other: Replica) -> None:
    other.hear(OwnershipHint)

    replica.notifier.publish(OwnershipHint(chat_id=CHAT, snapshot_version=number) for number in range(600))
    await replica.notifier.flush()

    await until(lambda: len(other.heard) == 600)
    assert replica.notifier.stats().statements == 3


async def test_a_hint_too_long_for_a_notification_raises_in_tests(replica: Replica) -> None:
    with pytest.raises(OversizedHint, match="MiscHint takes 80"):
        replica.notifier.publish([misc("big", size=8000)])


async def test_a_hint_too_long_for_a_notification_is_dropped_in_production(
    replica: Replica, other: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(replica.database.worker, replica.bus)
    other.hear(MiscHint)

    notifier.publish([misc("big", size=8000), misc("small")])
    await notifier.close()

    await until(lambda: other.heard)
    assert other.heard == [misc("small")]
    assert notifier.stats().oversized == 1
    assert "hint_too_long" in caplog.messages


async def test_a_failing_publisher_is_counted_and_logged_and_goes_on_later(
    replica: Replica, other: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    replica.hear(ChatHint)
    other.hear(ChatHint)
    async with replica.database.api.acquire() as admin:
        name = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        await replica.database.worker.expire_connections()

        replica.notifier.publish([chat_hint(1)])
        await replica.notifier.flush()

        assert replica.heard == [chat_hint(1)]
        assert replica.notifier.stats().failed == 1
        assert "hints_not_sent" in caplog.messages
        await admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    replica.notifier.publish([chat_hint(2)])
    await until(lambda: other.heard)
    assert other.heard == [chat_hint(2)]


async def test_hints_published_before_close_are_sent_and_later_ones_stay_local(
    replica: Replica, other: Replica
) -> None:
    other.hear(ChatHint)
    replica.hear(ChatHint)
    await replica.cut()

    replica.notifier.publish([chat_hint(1)])
    await replica.notifier.close()
    replica.notifier.publish([chat_hint(2)])

    await until(lambda: other.heard)
    await replica.notifier.flush()
    assert replica.heard == [chat_hint(1), chat_hint(2)]
    assert other.heard == [chat_hint(1)]


async def test_hints_of_a_replica_that_is_alone_gather_for_a_moment(database: Database, other: Replica) -> None:
    async with running(database, is_alone=True) as replica:
        replica.hear(ChatHint)
        other.hear(ChatHint)

        for version in (1, 2, 3):
            replica.notifier.publish([chat_hint(version)])
            await replica.clock.until_waiting("gather-hints")

        assert replica.heard == [chat_hint(1), chat_hint(2), chat_hint(3)], "here they are heard at once"
        assert replica.notifier.stats().statements == 0
        await replica.clock.fire("gather-hints")
        await until(lambda: other.heard == [chat_hint(3)])
        assert replica.notifier.stats().statements == 1


async def test_hints_sent_only_through_the_server_and_hints_left_at_the_end_are_not_delayed(
    database: Database, other: Replica
) -> None:
    other.hear(MiscHint, ChatHint)
    async with running(database, is_alone=True) as replica:
        replica.notifier.publish([misc("probe")], local=False)
        await until(lambda: other.heard == [misc("probe")])

        replica.notifier.publish([chat_hint(1)])
    await until(lambda: other.heard == [misc("probe"), chat_hint(1)])


async def test_a_receiver_that_reads_at_once_finds_what_the_hint_told_of(replica: Replica, other: Replica) -> None:
    await replica.database.api.execute("CREATE TABLE notes (n int)")
    seen: list[asyncio.Task[int]] = []
    other.bus.subscribe(
        OwnershipHint,
        lambda _: seen.append(asyncio.create_task(other.database.worker.fetchval("SELECT count(*) FROM notes"))),
    )

    await replica.database.api.execute("INSERT INTO notes VALUES (1)")
    replica.notifier.publish([OwnershipHint(chat_id=CHAT, snapshot_version=1)])

    await until(lambda: seen)
    assert await seen[0] == 1


async def test_a_lost_connection_is_replaced_and_all_subscribers_resync(replica: Replica, other: Replica) -> None:
    replica.hear(ChatHint)
    before = replica.resyncs

    await replica.cut()
    other.notifier.publish([chat_hint(1)])
    await other.notifier.flush()
    await replica.clock.until_waiting("listen-reconnect")
    await replica.clock.fire("listen-reconnect")
    await asyncio.wait_for(replica.listener.wait_connected(), 10)
    other.notifier.publish([chat_hint(2)])

    await until(lambda: replica.heard)
    assert replica.heard == [chat_hint(2)], "the hint sent in the gap is lost, which is what the resync is for"
    assert replica.resyncs == before + 1
    assert replica.listener.down_seconds() == 0
    assert replica.listener.stats().connections == 2


async def test_the_listener_listens_again_before_it_asks_for_a_resync(replica: Replica) -> None:
    """With another order, a change between the reads of the resync and the LISTEN would be lost."""
    sending: list[asyncio.Task[None]] = []
    await replica.cut()
    replica.bus.on_resync(
        lambda: sending.append(asyncio.create_task(replica.send_raw("rookery_config", '[{"kind":"settings"}]')))
    )
    replica.hear(ConfigHint)

    await replica.clock.fire("listen-reconnect")

    await until(lambda: replica.heard)
    await asyncio.gather(*sending)
    assert replica.heard == [ConfigHint(kind="settings")]


async def test_reconnecting_goes_on_until_the_server_answers(database: Database) -> None:
    attempts, clock, bus = 0, FakeClock(), Bus()

    async def connect() -> asyncpg.Connection:
        nonlocal attempts
        attempts += 1
        if attempts <= 8:
            raise ConnectionRefusedError("not yet")
        return await database.dedicated("listen")

    listener = Listener(connect, bus, clock=clock, rng=Random(3))
    task = asyncio.create_task(listener.run())
    waits: list[float] = []
    for _ in range(8):
        await clock.until_waiting("listen-reconnect")
        waits.append(clock.waiting("listen-reconnect")[0].due - clock.monotonic())
        assert not listener.connected
        await clock.fire("listen-reconnect")
    await asyncio.wait_for(listener.wait_connected(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert waits[0] <= 0.1
    assert waits[7] >= 2.5
    assert max(waits) <= 5
    assert not listener.connected


async def test_the_time_without_a_listener_is_counted(replica: Replica) -> None:
    assert replica.listener.down_seconds() == 0

    with replica.clock.trap("listen-reconnect") as trap:
        await replica.cut()
        await trap.caught()
        await replica.clock.advance(7)
        assert replica.listener.down_seconds() == 7
    await replica.clock.fire("listen-reconnect")

    await asyncio.wait_for(replica.listener.wait_connected(), 10)
    assert replica.listener.down_seconds() == 0


class SilentProxy:
    """A proxy between client and server that can drop all data without closing the connections."""

    def __init__(self, server: Server) -> None:
        self._path = f"{server.socket_dir}/.s.PGSQL.{server.port}"
        self._tasks: set[asyncio.Task[None]] = set()
        self.plugged = True

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.plugged:
                writer.write(data)
        writer.close()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._path)
        self._tasks.add(asyncio.create_task(self.carry(server_reader, writer)))
        await self.carry(reader, server_writer)


async def test_a_connection_that_no_longer_answers_is_replaced(
    database: Database, database_url: str, database_server: Server
) -> None:
    cable, clock, bus = SilentProxy(database_server), FakeClock(), Bus()
    proxy = await asyncio.start_server(cable, "127.0.0.1", 0)
    name = await database.api.fetchval("SELECT current_database()")
    config = DatabaseConfig(f"postgresql://rookery@127.0.0.1:{proxy.sockets[0].getsockname()[1]}/{name}")
    listener = Listener(
        lambda: pool.connect(config, "listen"), bus, clock=clock, rng=Random(1), check_timeout_seconds=0.05
    )
    task = asyncio.create_task(listener.run())
    await asyncio.wait_for(listener.wait_connected(), 10)
    await clock.fire("listen-check")
    await clock.until_waiting("listen-check")
    assert listener.connected

    cable.plugged = False
    await clock.fire("listen-check")
    await until(lambda: not listener.connected)
    cable.plugged = True
    await clock.fire("listen-reconnect")

    await asyncio.wait_for(listener.wait_connected(), 10)
    assert listener.stats().connections == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    proxy.close()
    await proxy.wait_closed()


async def test_foreign_payloads_on_the_channels_do_not_stop_the_listener(replica: Replica) -> None:
    replica.hear(*CHANNELS)

    for channel in CHANNELS.values():
        for payload in ("", "hello", "[]", "[{}]", "null", '[{"v":99,"chat_id":"x"}]', "[" * 3000):
            await replica.send_raw(channel, payload)
    await replica.send_raw("rookery_config", '[{"v":2,"kind":"model"},{"v":1,"kind":"mcp","new":[1]}]')

    await until(lambda: replica.heard)
    assert replica.heard == [ConfigHint(kind="mcp")]
    assert replica.listener.stats().ignored >= 30
    assert replica.listener.connected


# The probe.


@contextlib.asynccontextmanager
async def probing(replica: Replica) -> AsyncIterator[NotifyProbe]:
    probe = NotifyProbe(replica.notifier, replica.bus, replica_id=uuid4(), clock=replica.clock)
    task = asyncio.create_task(probe.run())
    try:
        yield probe
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_probe_measures_the_way_through_the_server_every_minute(replica: Replica) -> None:
    async with probing(replica) as probe:
        await replica.clock.until_waiting("notify-probe-answer")
        await until(lambda: probe.latency_seconds is not None)
        sent = replica.notifier.stats().published

        await replica.clock.advance(5)
        assert not probe.deaf
        await replica.clock.advance(54.9)
        assert replica.notifier.stats().published == sent
        await replica.clock.advance(0.1)

        await until(lambda: replica.notifier.stats().published == sent + 1)


async def test_the_probe_measures_real_time(database: Database) -> None:
    async with running(database) as replica:
        probe = NotifyProbe(replica.notifier, replica.bus, replica_id=uuid4(), clock=SystemClock())
        task = asyncio.create_task(probe.run())
        await until(lambda: probe.latency_seconds is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert probe.latency_seconds is not None
    assert 0 < probe.latency_seconds < 5


async def test_a_probe_that_does_not_come_back_means_deaf_until_one_does(replica: Replica) -> None:
    """The connection is open but delivers no notifications. Only the probe detects this."""
    await replica.connections[0].execute("UNLISTEN *")

    async with probing(replica) as probe:
        await replica.clock.fire("notify-probe-answer")
        assert probe.deaf
        assert replica.listener.connected
        await replica.clock.fire("notify-probe-answer")
        assert probe.deaf

        before = replica.resyncs
        await replica.clock.until_waiting("listen-check")  # a connection does one thing at a time
        await replica.connections[0].execute("LISTEN rookery_misc")
        await replica.clock.fire("notify-probe-answer")
        await until(lambda: not probe.deaf)

    assert probe.latency_seconds is not None
    assert replica.resyncs == before + 1
