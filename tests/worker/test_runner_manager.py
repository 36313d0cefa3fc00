"""The runner manager: start and end of runners, delivery of states, and cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import Status
from rookery.loop.tool import CancelReason
from rookery.store import machine
from rookery.store.machine import ChatState
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


# Start


async def test_key_that_is_spawned_twice_has_one_runner(rig: RunnerRig, replica: Replica) -> None:
    chat_id, runner_id = await replica.acquire(await rig.rig.create())

    assert replica.manager.spawn(ChatId(chat_id), runner_id)
    assert replica.manager.spawn(ChatId(chat_id), runner_id)

    run = await replica.works.started(1)
    await replica.turns()
    assert replica.works.live() == [run]
    assert len(replica.manager) == 1


async def test_key_that_is_being_cleaned_up_is_not_spawned_again(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    run.is_stubborn = True

    replica.manager.request_cleanup(runner.key)
    replica.manager.spawn(runner.chat_id, runner.runner_id)
    await replica.turns()

    assert replica.manager.runner(runner.key) is None
    run.let_go.set()
    await replica.gone(runner)
    assert replica.works.runs == [run]


async def test_nothing_is_spawned_after_the_close(replica: Replica) -> None:
    replica.manager.close()

    assert not replica.manager.spawn(ChatId(uuid4()), uuid4())

    assert len(replica.manager) == 0
    await replica.manager.wait_idle()


async def test_two_runners_of_one_chat_coexist_until_the_old_one_has_left(rig: RunnerRig, replica: Replica) -> None:
    """This process acquires a chat again that it had lost, while the old runner is still ending."""
    chat_id = await rig.rig.create()
    old = await replica.drive(chat_id)
    first = await replica.works.started(1)
    first.is_stubborn = True
    await rig.age_leases()

    new = await replica.drive(chat_id)
    second = await replica.works.started(2)
    await until(lambda: first.is_cancelled)

    assert second.handle.input.runner_id == new.runner_id != old.runner_id
    assert replica.manager.keys() == [new.key]
    assert set(replica.manager.all_keys()) == {old.key, new.key}
    first.let_go.set()
    await replica.gone(old)
    assert replica.works.live() == [second]
    assert await rig.heartbeats() == {new.key}


# End


async def test_cleanup_sends_the_runner_away_once_and_deletes_its_heartbeat(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())
    other = await replica.drive(await rig.rig.create())
    await replica.works.started(2)

    for _ in range(3):
        replica.manager.request_cleanup(runner.key, CancelReason.LEASE_LOST)
    await replica.gone(runner)
    replica.manager.request_cleanup(runner.key)

    run = replica.works.by_chat()[runner.chat_id][0]
    assert run.reason is CancelReason.LEASE_LOST
    assert await rig.heartbeats() == {other.key}
    assert replica.manager.keys() == [other.key]
    assert replica.frees == 1


async def test_cleanup_before_the_first_step_of_the_runner_leaves_nothing(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())

    replica.manager.request_cleanup(runner.key)
    await replica.gone(runner)

    assert replica.works.runs == []
    assert replica.bus.stats().get("ChatHint", 0) == 0
    assert await rig.heartbeats() == set()


async def test_cleanup_of_an_unknown_key_does_nothing(replica: Replica) -> None:
    replica.manager.request_cleanup((uuid4(), uuid4()))

    assert len(replica.manager) == 0


async def test_runner_that_leaves_hears_nothing_any_more(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    run.is_stubborn = True
    assert replica.bus.stats()["ChatHint"] == 1

    replica.manager.request_cleanup(runner.key)
    await until(lambda: run.is_cancelled)

    assert replica.bus.stats().get("ChatHint", 0) == 0
    await replica.machine.chat(runner.chat_id).update(machine.interrupt)
    await replica.turns()
    assert replica.works.runs == [run]


async def test_cleanup_while_the_runner_reads_starts_nothing(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE")
        run.end()
        await until(lambda: runner.active is None)
        await replica.turns()
        replica.manager.request_cleanup(runner.key)
    await replica.gone(runner)

    assert replica.works.runs == [run]


async def test_manager_is_idle_only_when_those_who_leave_have_left(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    run.is_stubborn = True
    replica.manager.request_cleanup(runner.key)
    idle = asyncio.ensure_future(replica.manager.wait_idle())
    await until(lambda: run.is_cancelled)
    await replica.turns()

    assert not idle.done()
    assert len(replica.manager) == 1  # it still uses this process
    run.let_go.set()
    await asyncio.wait_for(idle, 10)
    assert len(replica.manager) == 0


async def test_close_stops_all_runners_and_leaves_their_leases_to_the_caller(rig: RunnerRig, replica: Replica) -> None:
    """The caller announces which chats are free, and finds them by their heartbeats."""
    for _ in range(3):
        await replica.drive(await rig.rig.create())
    await replica.works.started(3)
    keys = set(replica.manager.all_keys())

    replica.manager.close()
    replica.manager.close()
    await replica.manager.wait_idle()
    await replica.inflight.wait_idle()

    assert [run.reason for run in replica.works.runs] == [CancelReason.SHUTDOWN] * 3
    assert replica.manager.is_closed
    assert await rig.heartbeats() == keys
    async with rig.rig.pool.acquire() as conn:
        hints = await machine.release_leases(conn, keys)
    assert {hint.chat_id for hint in hints} == {chat_id for chat_id, _ in keys}


async def test_thousand_runners_leave_nothing_behind(rig: RunnerRig) -> None:
    replica = await rig.replica()
    chat_id = await rig.rig.create()
    tasks = len(asyncio.all_tasks())

    for _ in range(1000):
        assert replica.manager.spawn(chat_id, uuid4())  # it never owned them, so each ends after its first read
        if len(replica.manager) > 50:
            await replica.manager.wait_idle()
    await replica.manager.wait_idle()
    await replica.inflight.wait_idle()

    assert replica.works.runs == []
    assert len(asyncio.all_tasks()) == tasks
    assert replica.bus.stats().get("ChatHint", 0) == 0
    assert (replica.manager._by_chat, replica.manager._cleaning, replica.manager._runners) == ({}, set(), {})


# The sync loop


async def test_sync_tells_runners_what_they_did_not_hear(rig: RunnerRig, replica: Replica) -> None:
    chats = [await rig.rig.create() for _ in range(3)]
    runners = [await replica.drive(chat_id) for chat_id in chats]
    await replica.works.started(3)
    await rig.rig.run(chats[0], machine.interrupt)  # without a hint
    await rig.rig.acquire(chats[1])  # a takeover without a hint
    await replica.turns()
    assert len(replica.works.live()) == 3

    await replica.manager.sync()

    await replica.gone(runners[1])
    await until(lambda: len(replica.works.runs) == 4)
    await until(lambda: len(replica.works.live()) == 2)
    assert replica.works.kinds(chats[0]) == [TaskKind.GENERATION, TaskKind.INTERRUPT]
    assert [run.kind for run in replica.works.live(chats[2])] == [TaskKind.GENERATION]


async def test_sync_ends_the_runners_of_deleted_chats(rig: RunnerRig, replica: Replica) -> None:
    gone, kept = await replica.drive(await rig.rig.create()), await replica.drive(await rig.rig.create())
    await replica.works.started(2)
    await rig.delete(gone.chat_id)

    await replica.manager.sync()
    await replica.gone(gone)

    assert replica.manager.keys() == [kept.key]


async def test_sync_comes_every_interval(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    await replica.drive(chat_id)
    await replica.works.started(1)
    replica.start(replica.manager.run_sync())
    await replica.clock.fire("sync")
    assert replica.clock.monotonic() == 15.0
    await replica.clock.until_waiting("sync")
    await rig.rig.run(chat_id, machine.interrupt)

    await replica.clock.fire("sync")

    interrupt = await replica.works.started(2)
    assert interrupt.kind is TaskKind.INTERRUPT


async def test_sync_without_a_database_changes_nothing(rig: RunnerRig) -> None:
    pool = await asyncpg.create_pool(rig.url, min_size=0, max_size=4)
    replica = await rig.replica(pool=pool)
    runner = await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    pool.terminate()

    await replica.manager.sync()

    assert replica.manager.keys() == [runner.key]
    assert not run.is_over


async def test_sync_without_runners_asks_nothing(rig: RunnerRig) -> None:
    pool = await asyncpg.create_pool(rig.url, min_size=0, max_size=1)
    replica = await rig.replica(pool=pool)

    await replica.manager.sync()

    assert pool.get_size() == 0
    await pool.close()


async def test_old_state_from_a_slow_sync_does_not_end_a_newer_runner(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    unowned = ChatState.of(await rig.rig.load(chat_id))
    runner = await replica.drive(chat_id)

    replica.manager.route(unowned)
    run = await replica.works.started(1)
    replica.manager.route(unowned)
    await replica.turns()

    assert replica.works.live() == [run]
    assert replica.manager.keys() == [runner.key]


# Drain


async def test_drain_lets_steps_end_and_lets_go_of_every_chat(rig: RunnerRig, replica: Replica) -> None:
    chats = [await rig.rig.create() for _ in range(3)]
    for chat_id in chats:
        await replica.drive(chat_id)
    await replica.works.started(3)
    steps = list(replica.works.runs)

    replica.manager.drain()
    replica.manager.drain()
    await replica.turns()
    assert [step.is_over for step in steps] == [False] * 3
    for step in steps:
        step.commit(lambda tx: machine.commit_step(tx, [assistant("the last step here")]))
    await replica.manager.wait_idle()
    await replica.inflight.wait_idle()

    for chat_id in chats:
        row = await rig.rig.load(chat_id)
        assert (row.status, row.worker_id) == (Status.RUNNING, None)
        assert len(await rig.rig.history(chat_id)) == 2
    assert await rig.heartbeats() == set()


async def test_runner_spawned_during_the_drain_lets_go_of_its_chat(rig: RunnerRig, replica: Replica) -> None:
    replica.manager.drain()

    runner = await replica.drive(await rig.rig.create())
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.ABANDON]


async def test_close_cuts_the_drain(rig: RunnerRig, replica: Replica) -> None:
    await replica.drive(await rig.rig.create())
    run = await replica.works.started(1)
    replica.manager.drain()

    replica.manager.close()
    await replica.manager.wait_idle()

    assert run.reason is CancelReason.SHUTDOWN
    assert replica.works.runs == [run]


# Fence


async def test_runner_spawned_while_fenced_does_no_work_before_it_is_resumed(rig: RunnerRig, replica: Replica) -> None:
    replica.manager.fence_off()

    runner = await replica.drive(await rig.rig.create())
    await until(lambda: runner._accepted is not None)
    await replica.turns()
    assert replica.works.runs == []
    replica.manager.resume([runner.key])

    assert (await replica.works.started(1)).kind is TaskKind.GENERATION
    assert not replica.manager.is_fenced


async def test_only_those_whose_lease_was_renewed_go_on(rig: RunnerRig, replica: Replica) -> None:
    one, two = await replica.drive(await rig.rig.create()), await replica.drive(await rig.rig.create())
    await replica.works.started(2)

    replica.manager.fence_off()
    await until(lambda: not replica.works.live())
    replica.manager.resume([one.key])
    await replica.works.started(3)
    await replica.turns()

    assert [run.handle.input.runner_id for run in replica.works.live()] == [one.runner_id]
    assert two.active is None
