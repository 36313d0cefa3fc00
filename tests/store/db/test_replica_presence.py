"""Presence: a dead replica is detected by its lock and a cut-off one by its heartbeat; a live one is not affected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.runtime.clock import SystemClock
from rookery.store.db import pool, replica_presence
from rookery.store.db.errors import DatabaseUnreachable, DatabaseUnsuitable
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.replica_presence import Presence, Replica, ReplicaState
from rookery.testing import FakeClock
from tests.database import Server
from tests.eventually import until


class Rig:
    """A replica's presence with a separate clock, and the events that it has reported."""

    def __init__(self, database: Database, replica_id: UUID) -> None:
        self.database = database
        self.id = replica_id
        self.clock = FakeClock()
        self.told: list[UUID] = []
        self.callback_fails = False
        self.connections: list[asyncpg.Connection] = []
        replica = Replica(id=self.id, host_id="h", hostname="nest", pid=1, version="0", schema_version=1)
        self.presence = Presence(self._connect, replica, clock=self.clock, rng=Random(1), on_peer_dead=self.tell)
        self._task: asyncio.Task[None] | None = None

    def tell(self, peer: UUID) -> None:
        self.told.append(peer)
        if self.callback_fails:
            raise RuntimeError("broken callback")

    async def _connect(self) -> asyncpg.Connection:
        self.connections.append(await self.database.dedicated("presence"))
        return self.connections[-1]

    async def start(self) -> None:
        await self.presence.start()
        self._task = asyncio.create_task(self.presence.run())
        await self.clock.until_waiting("presence")

    async def tick(self, count: int = 1) -> None:
        """Advance the replica's clock by this many seconds."""
        for _ in range(count):
            await self.clock.fire("presence")
            await self.clock.until_waiting("presence")

    async def cut(self) -> None:
        """End the presence connection on the server."""
        await self.database.api.execute("SELECT pg_terminate_backend($1)", self.connections[-1].get_server_pid())
        await until(lambda: not self.presence.held)

    async def die(self) -> None:
        """Close the socket without a message, as the kernel does for a killed process."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        pid = self.connections[-1].get_server_pid()
        self.connections[-1].terminate()
        await until(lambda: self.database.api.fetchval("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", pid))

    async def end(self) -> None:
        await self.presence.close()
        if self._task is not None:
            await asyncio.wait_for(asyncio.gather(self._task, return_exceptions=True), 10)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with await Database.connect(DatabaseConfig(database_url)) as database:
        yield database


@contextlib.asynccontextmanager
async def alive(database: Database, *ids: UUID) -> AsyncIterator[list[Rig]]:
    rigs = [Rig(database, replica_id) for replica_id in ids]
    try:
        for rig in rigs:
            await rig.start()
        yield rigs
    finally:
        for rig in rigs:
            await rig.end()


async def rows(database: Database) -> set[UUID]:
    return {row["id"] for row in await database.api.fetch("SELECT id FROM replicas")}


async def age(database: Database, replica_id: UUID, seconds: int) -> None:
    await database.api.execute(
        "UPDATE replicas SET heartbeat_at = clock_timestamp() - make_interval(secs => $2) WHERE id = $1",
        replica_id,
        seconds,
    )


async def lock_is_free(database: Database, replica_id: UUID) -> bool:
    async with database.api.acquire() as connection:
        key = (replica_presence.LOCK_CLASS, replica_presence.lock_key(replica_id))
        taken: bool = await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *key)
        if taken:
            await connection.execute("SELECT pg_advisory_unlock($1, $2)", *key)
        return taken


async def test_a_replica_knows_whether_it_is_alone(database: Database) -> None:
    first = Rig(database, uuid4())
    await first.presence.start()
    assert not first.presence.is_alone, "it has not looked yet"
    try:
        await first.start()
        assert first.presence.is_alone

        async with alive(database, uuid4()):
            await first.tick()
            assert not first.presence.is_alone
        await first.tick()
        assert first.presence.is_alone

        await first.cut()
        assert not first.presence.is_alone, "who cannot look does not know"
        await first.clock.fire("presence-reconnect")
        await until(lambda: first.presence.is_alone)
    finally:
        await first.end()


async def test_a_started_replica_is_listed_and_holds_its_lock(database: Database) -> None:
    replica = Replica(
        id=uuid4(),
        host_id="host-1",
        hostname="nest",
        pid=77,
        version="1.2",
        schema_version=3,
        index=2,
        relay_unix="/run/r.sock",
        relay_url="https://r",
        lease_ttl=timedelta(seconds=45),
    )
    presence = Presence(
        lambda: database.dedicated("presence"),
        replica,
        clock=FakeClock(),
        rng=Random(1),
        on_peer_dead=lambda _: None,
    )
    assert not presence.held

    await presence.start()

    assert presence.held
    assert not await lock_is_free(database, replica.id)
    async with database.api.acquire() as connection:
        (status,) = await replica_presence.list_replicas(connection)
    assert status.replica == replica
    assert status.state is ReplicaState.ALIVE
    assert status.stopping_at is None
    await presence.close()


async def test_a_closed_replica_leaves_no_row_and_no_lock(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,):
        await rig.end()

        assert not rig.presence.held
        assert await rows(database) == set()
        await until(lambda: lock_is_free(database, rig.id))
        await rig.presence.close()


async def test_starting_fails_when_the_database_cannot_be_reached() -> None:
    nowhere = DatabaseConfig("postgresql://u@127.0.0.1:1/x")
    presence = Presence(
        lambda: pool.connect(nowhere, "presence"),
        Replica(id=uuid4(), host_id="h", hostname="nest", pid=1, version="0", schema_version=1),
        clock=FakeClock(),
        rng=Random(1),
        on_peer_dead=lambda _: None,
    )

    with pytest.raises(DatabaseUnreachable):
        await presence.start()

    assert not presence.held
    await presence.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE replicas OWNER TO postgres", "Make it the owner"),
        ("ALTER ROLE rookery IN DATABASE {database} SET default_transaction_read_only = on", "is read-only"),
    ],
)
async def test_starting_where_nothing_may_be_written_says_what_to_do(
    database: Database, database_server: Server, change: str, said: str
) -> None:
    name = await database.api.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(database_server.url(name, role="postgres"))
    await admin.execute(change.format(database=name))
    await admin.close()
    rig = Rig(database, uuid4())

    with pytest.raises(DatabaseUnsuitable, match=said):
        await rig.start()

    assert not rig.presence.held


async def test_the_beat_is_renewed_every_five_seconds(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,):
        await age(database, rig.id, 14)
        await rig.tick(4)
        assert await database.api.fetchval("SELECT now() - heartbeat_at > interval '13 s' FROM replicas")

        await rig.tick(1)

        assert await database.api.fetchval("SELECT now() - heartbeat_at < interval '5 s' FROM replicas")


async def test_a_dead_peer_is_removed_at_the_next_look_and_told_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with alive(database, uuid4(), uuid4()) as (watcher, victim):
        await watcher.tick()
        await victim.die()

        await watcher.tick(3)

        assert watcher.told == [victim.id]
        assert await rows(database) == {watcher.id}
        assert [record.message for record in caplog.records] == ["replica_died"]


async def test_every_replica_learns_of_a_death_that_another_noticed(database: Database) -> None:
    async with alive(database, uuid4(), uuid4(), uuid4()) as (first, second, victim):
        await first.tick()
        await second.tick()
        await victim.die()

        await first.tick(2)
        await second.tick(2)

        assert first.told == second.told == [victim.id]


async def test_live_peers_are_left_alone(database: Database) -> None:
    async with alive(database, uuid4(), uuid4()) as (first, second):
        await first.tick(20)
        await second.tick(20)

        assert first.told == second.told == []
        assert await rows(database) == {first.id, second.id}
        assert first.presence.held
        assert second.presence.held


async def test_the_watchers_own_tries_leave_no_lock_behind(database: Database) -> None:
    async with alive(database, uuid4(), uuid4()) as (watcher, victim):
        await victim.die()
        await watcher.tick(2)

        assert await lock_is_free(database, victim.id)


async def test_a_peer_that_stops_on_purpose_is_not_told_as_dead(database: Database) -> None:
    async with alive(database, uuid4(), uuid4()) as (watcher, leaver):
        await leaver.presence.stopping()
        await watcher.tick()
        async with database.api.acquire() as connection:
            states = {each.replica.id: each.state for each in await replica_presence.list_replicas(connection)}
        await leaver.end()
        await watcher.tick(2)

        assert states == {watcher.id: ReplicaState.ALIVE, leaver.id: ReplicaState.STOPPING}
        assert watcher.told == []


async def test_stopping_is_still_known_after_later_beats(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,):
        await rig.presence.stopping()
        since = await database.api.fetchval("SELECT stopping_at FROM replicas")

        await rig.tick(6)

        assert since is not None
        assert await database.api.fetchval("SELECT stopping_at FROM replicas") == since


async def test_a_lost_connection_ends_the_right_to_commit_at_once_and_it_comes_back(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,):
        started = await database.api.fetchval("SELECT started_at FROM replicas")

        await rig.cut()
        assert not rig.presence.held
        await rig.clock.fire("presence-reconnect")
        await until(lambda: rig.presence.held)

        assert len(rig.connections) == 2
        assert not await lock_is_free(database, rig.id)
        assert await database.api.fetchval("SELECT started_at FROM replicas") == started


async def test_a_replica_removed_while_it_was_cut_off_comes_back_under_its_old_id(database: Database) -> None:
    async with alive(database, uuid4(), uuid4()) as (watcher, unlucky):
        started = await database.api.fetchval("SELECT started_at FROM replicas WHERE id = $1", unlucky.id)
        with unlucky.clock.trap("presence-reconnect") as trap:
            await unlucky.cut()
            await trap.caught()
            await watcher.tick(2)
            assert watcher.told == [unlucky.id]
            assert await rows(database) == {watcher.id}
        await unlucky.clock.fire("presence-reconnect")
        await until(lambda: unlucky.presence.held)

        assert await rows(database) == {watcher.id, unlucky.id}
        assert await database.api.fetchval("SELECT started_at FROM replicas WHERE id = $1", unlucky.id) == started
        await watcher.tick(3)
        assert watcher.told == [unlucky.id]


async def test_a_reconnect_does_not_wait_for_a_session_the_server_has_not_given_up_yet(database: Database) -> None:
    async with database.api.acquire() as ghost:
        rig_id = uuid4()
        await ghost.execute(replica_presence.TAKE, replica_presence.LOCK_CLASS, replica_presence.lock_key(rig_id))
        async with alive(database, rig_id) as (rig,):
            assert rig.presence.held
        await ghost.execute("SELECT pg_advisory_unlock_all()")


async def test_reconnecting_goes_on_while_the_server_refuses(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,), database.api.acquire() as admin:
        name = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        await admin.execute("SELECT pg_terminate_backend($1)", rig.connections[-1].get_server_pid())
        for _ in range(3):
            await rig.clock.fire("presence-reconnect")
            await rig.clock.until_waiting("presence-reconnect")
            assert not rig.presence.held

        await admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
        await rig.clock.fire("presence-reconnect")

        await until(lambda: rig.presence.held)


async def test_a_cut_off_peer_is_given_up_when_its_beat_is_old_although_its_lock_is_held(database: Database) -> None:
    async with alive(database, uuid4(), uuid4()) as (watcher, frozen):
        await age(database, frozen.id, 14)
        await watcher.tick(2)
        assert watcher.told == []

        await age(database, frozen.id, 16)
        await watcher.tick(2)

        assert watcher.told == [frozen.id]
        assert await rows(database) == {watcher.id}
        assert not await lock_is_free(database, frozen.id)


async def test_a_replica_that_could_not_beat_for_fifteen_seconds_may_not_commit(database: Database) -> None:
    async with alive(database, uuid4()) as (rig,):
        with rig.clock.trap("presence") as trap:
            await rig.clock.fire("presence")
            await trap.caught()
            await rig.clock.advance(13.9)
            assert rig.presence.held
            await rig.clock.advance(0.2)

            assert not rig.presence.held
        await rig.tick()
        assert rig.presence.held


async def test_a_failing_callback_does_not_stop_the_watch(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with alive(database, uuid4(), uuid4(), uuid4()) as (watcher, first, second):
        watcher.callback_fails = True
        await first.die()
        await watcher.tick()
        await second.die()
        await watcher.tick()

        assert watcher.told == [first.id, second.id]
        assert "on_peer_dead_failed" in caplog.messages


def twins() -> tuple[UUID, UUID, UUID]:
    """Return two ids with the same lock key."""
    first, second, third = (UUID(bytes=os.urandom(12) + b"\x80\x00\x00\x01") for _ in range(3))
    assert replica_presence.lock_key(first) == replica_presence.lock_key(second) == replica_presence.lock_key(third)
    return first, second, third


async def test_two_live_replicas_with_the_same_key_do_not_harm_each_other(database: Database) -> None:
    first_id, second_id, _ = twins()
    async with alive(database, first_id, second_id, uuid4()) as (first, second, watcher):
        for rig in (first, second, watcher):
            await rig.tick(6)

        assert first.told == second.told == watcher.told == []
        assert first.presence.held
        assert second.presence.held


async def test_a_dead_replica_whose_key_lives_on_in_another_is_noticed_by_its_beat(database: Database) -> None:
    first_id, second_id, _ = twins()
    async with alive(database, first_id, second_id, uuid4()) as (victim, twin, watcher):
        await victim.die()
        await watcher.tick(2)
        assert watcher.told == []

        await age(database, victim.id, 16)
        await watcher.tick()

        assert watcher.told == [victim.id]
        assert await rows(database) == {twin.id, watcher.id}


async def test_the_last_of_two_with_the_same_key_notices_the_death_of_the_other_by_its_lock(database: Database) -> None:
    first_id, second_id, third_id = twins()
    async with alive(database, first_id, second_id, third_id) as (survivor, first, second):
        await first.die()
        await second.die()

        await survivor.tick()

        assert set(survivor.told) == {first.id, second.id}
        await survivor.tick()
        assert survivor.presence.held
        assert not await lock_is_free(database, survivor.id)


VICTIM = """
import asyncio, sys
from datetime import timedelta
from random import Random
from uuid import UUID
from rookery.runtime.clock import SystemClock
from rookery.store.db.pool import DatabaseConfig, connect
from rookery.store.db.replica_presence import Presence, Replica

async def main():
    config = DatabaseConfig(sys.argv[1])
    replica = Replica(id=UUID(sys.argv[2]), host_id="h", hostname="n", pid=2, version="0", schema_version=1)
    presence = Presence(lambda: connect(config, "presence"), replica, clock=SystemClock(), rng=Random(),
                        on_peer_dead=lambda peer: None)
    await presence.start()
    print("ready", flush=True)
    await presence.run()

asyncio.run(main())
"""


async def test_a_killed_process_is_noticed_within_two_seconds(database: Database) -> None:
    told = asyncio.Event()
    me = Replica(id=uuid4(), host_id="h", hostname="n", pid=1, version="0", schema_version=1)
    victim_id = uuid4()
    watcher = Presence(
        lambda: database.dedicated("presence"),
        me,
        clock=SystemClock(),
        rng=Random(1),
        on_peer_dead=lambda peer: told.set() if peer == victim_id else None,
    )
    await watcher.start()
    watching = asyncio.create_task(watcher.run())
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, database.config.url, str(victim_id), stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    assert await victim.stdout.readline() == b"ready\n"
    assert victim_id in await rows(database)

    killed_at = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    await asyncio.wait_for(told.wait(), 10)
    noticed_after = time.monotonic() - killed_at

    await victim.communicate()
    await watcher.close()
    await asyncio.gather(watching, return_exceptions=True)
    assert noticed_after < 2.5, "two seconds, and half a second for a busy machine"
