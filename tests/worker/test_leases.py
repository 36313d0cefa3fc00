"""Leases: renewal, loss, and the end of work without a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from rookery.domain.chat.transitions import Transition
from rookery.loop.tool import CancelReason
from rookery.store import machine
from rookery.worker.runner import Runner
from rookery.worker.tasks import TaskKind
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.worker.runner_rig import Replica, RunnerRig, make_site


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RunnerRig]:
    async with make_site(database_url) as made:
        yield made


@pytest.fixture
async def replica(rig: RunnerRig) -> Replica:
    return await rig.replica()


async def drive(rig: RunnerRig, replica: Replica, count: int) -> list[Runner]:
    runners = [await replica.drive(await rig.rig.create()) for _ in range(count)]
    await replica.works.started(count)
    return runners


async def at_rest(replica: Replica) -> None:
    """Wait until the renewal loop and the watch both wait for their time."""
    await replica.clock.until_waiting("heartbeat")
    await replica.clock.until_waiting("self-fence")


# Renewal


async def test_beat_renews_every_lease(rig: RunnerRig, replica: Replica) -> None:
    runners = await drive(rig, replica, 3)
    await rig.age_leases(25)
    assert await rig.fresh() == set()

    await replica.leases.beat()

    assert await rig.fresh() == {runner.key for runner in runners}
    assert len(replica.works.live()) == 3


async def test_renewal_changes_no_version_and_publishes_no_hint(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    before = await rig.rig.load(runner.chat_id)
    replica.published.hints.clear()

    await replica.leases.beat()

    assert (await rig.rig.load(runner.chat_id)).snapshot_version == before.snapshot_version
    assert replica.published.hints == []


async def test_beat_writes_a_row_again_that_was_swept(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    await rig.age_leases()
    await replica.leases.sweep()
    assert await rig.heartbeats() == set()

    await replica.leases.beat()

    assert await rig.fresh() == {runner.key}
    assert len(replica.works.live()) == 1


async def test_deleting_one_chat_while_fifty_beat_renews_the_other_leases(rig: RunnerRig, replica: Replica) -> None:
    runners = await drive(rig, replica, 50)
    await rig.age_leases(25)
    await rig.delete(runners[7].chat_id)

    await replica.leases.beat()

    assert await rig.fresh() == {runner.key for runner in runners} - {runners[7].key}
    await replica.gone(runners[7])
    assert len(replica.manager.keys()) == 49
    assert len(replica.works.live()) == 49


async def test_runners_that_leave_are_not_renewed(rig: RunnerRig, replica: Replica) -> None:
    staying, leaving = await drive(rig, replica, 2)
    run = replica.works.by_chat()[leaving.chat_id][0]
    run.is_stubborn = True
    replica.manager.request_cleanup(leaving.key)
    await rig.age_leases(25)

    await replica.leases.beat()

    assert await rig.fresh() == {staying.key}


async def test_beats_come_every_interval_and_sweep_what_the_dead_left(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    dead = await rig.rig.create()
    await rig.rig.acquire(dead)
    replica.start(replica.leases.run())

    for _ in range(3):
        await rig.age_leases(11)
        await replica.clock.fire("heartbeat")
        await until(lambda: rig.fresh())
    assert len(await rig.heartbeats()) == 2
    await replica.clock.fire("heartbeat")  # at 36 s, the first renewal after the sweep is due

    await until(lambda: _is_swept(rig, dead))
    assert await rig.heartbeats() == {runner.key}


async def _is_swept(rig: RunnerRig, chat_id: object) -> bool:
    return chat_id not in {chat for chat, _ in await rig.heartbeats()}


# Takeover


async def test_takeover_without_notifications_ends_the_old_runner_within_one_beat(
    rig: RunnerRig, replica: Replica
) -> None:
    other = await rig.replica()
    (old,) = await drive(rig, replica, 1)
    step = replica.works.runs[0]
    await rig.age_leases()
    new = await other.drive(old.chat_id)
    await other.works.started(1)

    # The commit of the old runner is refused.
    committed = asyncio.ensure_future(
        step.handle.update(
            lambda tx: machine.commit_step(tx, [assistant("from the past")]), transition=Transition.COMMIT_STEP
        )
    )
    await asyncio.wait([committed])
    assert type(committed.exception()).__name__ == "TaskExit"
    replica.start(replica.leases.run())
    await replica.clock.fire("heartbeat")
    await replica.gone(old)

    assert replica.clock.monotonic() == 9.0
    assert step.reason is CancelReason.LEASE_LOST
    assert len(await rig.rig.history(old.chat_id)) == 1
    assert replica.stats.leases_lost == {"taken": 1}
    assert (await rig.rig.load(old.chat_id)).runner_id == new.runner_id
    assert await rig.heartbeats() == {new.key}
    assert len(other.works.live()) == 1


async def test_lease_given_up_during_the_beat_is_not_counted_as_lost(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chat_heartbeats IN ACCESS EXCLUSIVE MODE")
        beat = asyncio.ensure_future(replica.leases.beat())
        await until(lambda: _waits_for_a_lock(rig))
        await conn.execute(
            "UPDATE chats SET worker_id = NULL, runner_id = NULL, snapshot_version = snapshot_version + 1"
        )
        replica.manager.request_cleanup(runner.key)
    await beat

    assert replica.stats.leases_lost == {}


async def _waits_for_a_lock(rig: RunnerRig) -> bool:
    return bool(
        await rig.rig.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


# Unreachable database


async def test_database_out_of_reach_stops_all_work_in_time_and_lets_it_go_on_afterwards(
    rig: RunnerRig, replica: Replica
) -> None:
    runners = await drive(rig, replica, 3)
    replica.start(replica.leases.run())
    replica.start(replica.leases.run_watch())
    await at_rest(replica)
    replica.cut_off()

    with replica.clock.trap("beat-again") as failed:
        await replica.clock.fire("heartbeat")
        await failed.caught()
        assert len(replica.works.live()) == 3
        await replica.clock.fire("self-fence")
        assert replica.clock.monotonic() == 24.0  # a lease lasts 30 s
        await until(lambda: not replica.works.live())
        assert {run.reason for run in replica.works.runs} == {CancelReason.LEASE_LOST}
        assert replica.leases.is_fenced
        assert replica.stats.leases_lost == {"fenced": 3}
        assert len(replica.manager.keys()) == 3  # the runners stay
        replica.is_cut_off = False
    await replica.clock.fire("beat-again")

    assert replica.clock.monotonic() == 25.0  # before the next regular renewal
    await replica.works.started(6)
    assert {run.handle.input.runner_id for run in replica.works.live()} == {runner.runner_id for runner in runners}
    assert not replica.leases.is_fenced
    assert replica.stats.task_stalls == {}


async def test_after_the_outage_what_is_owned_elsewhere_stays_there(rig: RunnerRig, replica: Replica) -> None:
    other = await rig.replica()
    kept, taken = await drive(rig, replica, 2)
    replica.manager.fence_off()
    await until(lambda: not replica.works.live())
    await rig.age_leases(31, taken.chat_id)
    await other.drive(taken.chat_id)
    await other.works.started(1)

    await replica.leases.beat()

    await replica.works.started(3)
    await replica.gone(taken)
    assert [run.handle.input.runner_id for run in replica.works.live()] == [kept.runner_id]
    assert len(other.works.live()) == 1


async def test_chat_that_moved_during_the_outage_goes_on_from_where_it_is(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    replica.manager.fence_off()
    await until(lambda: not replica.works.live())
    await rig.rig.run(runner.chat_id, machine.interrupt)

    await replica.leases.beat()

    assert (await replica.works.started(2)).kind is TaskKind.INTERRUPT


async def test_watch_fences_while_a_beat_hangs(rig: RunnerRig, replica: Replica) -> None:
    await drive(rig, replica, 2)
    replica.start(replica.leases.run())
    replica.start(replica.leases.run_watch())
    await at_rest(replica)
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chat_heartbeats IN ACCESS EXCLUSIVE MODE")
        for again in ("heartbeat", "beat-again"):
            await replica.clock.fire(again)
            await replica.clock.fire("renew-leases")  # the renewal is given up after 5 s
        await replica.clock.until_waiting("beat-again")
        with replica.clock.trap("renew-leases") as hanging:
            await replica.clock.fire("beat-again")
            await hanging.caught()
            await replica.clock.fire("self-fence")

            await until(lambda: not replica.works.live())
            assert replica.clock.monotonic() == 24.0
    await replica.works.started(4)


async def test_failed_beats_that_are_made_up_for_in_time_stop_nothing(rig: RunnerRig, replica: Replica) -> None:
    await rig.rig.sql("DELETE FROM replicas WHERE id <> $1", replica.worker_id)  # peers would make the fence earlier
    (runner,) = await drive(rig, replica, 1)
    run = replica.works.runs[0]
    replica.start(replica.leases.run())
    replica.start(replica.leases.run_watch())
    await at_rest(replica)
    replica.cut_off()
    await replica.clock.fire("heartbeat")
    await replica.clock.until_waiting("beat-again")
    replica.is_cut_off = False
    await rig.age_leases(25)
    await replica.clock.fire("beat-again")
    await at_rest(replica)
    assert await rig.fresh() == {runner.key}

    with replica.clock.trap("renew-leases"):
        await replica.clock.fire("self-fence")  # was due at 24 s; renewed at 10 s

    assert replica.clock.monotonic() == 24.0
    assert not run.is_over
    assert replica.manager.keys() == [runner.key]


async def test_lost_connection_is_replaced_at_the_next_beat(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    await replica.leases.beat()
    # Only the connection of the leases: its last statement is the renewal or the check for peers.
    beats = (
        "datname = current_database() AND pid <> pg_backend_pid()"
        " AND (query LIKE '%INSERT INTO chat_heartbeats%unnest%' OR query LIKE '%SELECT FROM replicas WHERE id <>%')"
    )
    assert await rig.rig.value(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {beats}") == 1
    await rig.age_leases(25)

    await replica.leases.beat()
    await replica.leases.beat()

    assert await rig.fresh() == {runner.key}


async def test_beat_between_the_servers_farewell_and_the_end_of_the_connection_is_only_a_failed_one(
    rig: RunnerRig, replica: Replica
) -> None:
    """If this error ended the loop, every restart of PostgreSQL would end the process."""
    (runner,) = await drive(rig, replica, 1)
    await replica.leases.beat()
    connection = replica.leases._connection
    assert connection is not None
    fields = b"SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection\x00\x00"
    protocol = connection._protocol  # type: ignore[attr-defined]  # what comes from the server ends up here
    protocol.data_received(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
    await rig.age_leases(25)

    await replica.leases.beat()
    assert await rig.fresh() == set()
    await replica.leases.beat()

    assert await rig.fresh() == {runner.key}


async def test_process_without_runners_is_never_fenced(replica: Replica) -> None:
    replica.start(replica.leases.run_watch())
    replica.cut_off()

    await replica.clock.advance(120.0)

    assert not replica.leases.is_fenced


async def test_full_pool_costs_no_lease(rig: RunnerRig) -> None:
    async with asyncpg.create_pool(rig.url, min_size=0, max_size=1) as pool:
        replica = await rig.replica(pool=pool)
        (runner,) = await drive(rig, replica, 1)
        await rig.age_leases(25)
        async with pool.acquire():
            await replica.leases.beat()

        assert await rig.fresh() == {runner.key}


async def test_runner_that_came_during_the_fence_goes_on_with_a_later_beat(rig: RunnerRig, replica: Replica) -> None:
    """The chat was acquired just before the fence, and its runner was started during the renewal that lifts it."""
    await drive(rig, replica, 1)
    late = await replica.acquire(await rig.rig.create())
    replica.manager.fence_off()
    await until(lambda: not replica.works.live())
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chat_heartbeats IN ACCESS EXCLUSIVE MODE")
        beat = asyncio.ensure_future(replica.leases.beat())
        await until(lambda: _waits_for_a_lock(rig))
        replica.manager.spawn(late[0], late[1])  # type: ignore[arg-type]
    await beat
    await replica.works.started(2)

    await replica.leases.beat()

    await replica.works.started(3)
    assert len(replica.works.live()) == 2


async def test_with_peers_work_stops_before_one_of_them_may_start_it(rig: RunnerRig, replica: Replica) -> None:
    """Peers may take over as soon as the database drops the silent connections, long before a lease ends."""
    await rig.replica()
    await drive(rig, replica, 2)
    await replica.leases.beat()
    replica.start(replica.leases.run_watch())
    await replica.clock.until_waiting("self-fence")
    replica.cut_off()

    await replica.clock.fire("self-fence")

    assert replica.clock.monotonic() == 15.0
    await until(lambda: not replica.works.live())


async def test_failed_beat_is_made_again_at_once(rig: RunnerRig, replica: Replica) -> None:
    (runner,) = await drive(rig, replica, 1)
    await replica.leases.beat()
    replica.start(replica.leases.run())
    replica.start(replica.leases.run_watch())
    await at_rest(replica)
    replica.cut_off()
    await replica.clock.fire("heartbeat")
    await replica.clock.until_waiting("beat-again")
    replica.is_cut_off = False
    await rig.age_leases(25)

    await replica.clock.fire("beat-again")
    await until(lambda: rig.fresh())

    assert replica.clock.monotonic() == 10.0
    assert await rig.fresh() == {runner.key}
    assert not replica.leases.is_fenced
