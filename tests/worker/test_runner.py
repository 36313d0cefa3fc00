"""The runner: follows the committed state of its chat, whatever the order of states, and runs tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.loop.tool import CancelReason
from rookery.store import machine
from rookery.store.db.hints import ChatHint, OwnershipHint
from rookery.store.machine import ChatState
from rookery.worker.runner import Runner
from rookery.worker.tasks import RetryTask, TaskHandle, TaskKind
from tests.eventually import until
from tests.store.machine.machine_rig import FAILED, assistant, text
from tests.worker.runner_rig import Replica, Run, RunnerRig, make_site

STALL = "task-stall-generation"


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RunnerRig]:
    async with make_site(database_url) as made:
        yield made


@pytest.fixture
async def replica(rig: RunnerRig) -> Replica:
    return await rig.replica()


async def at_work(replica: Replica, chat_id: ChatId) -> tuple[Runner, Run]:
    """Return a runner whose first task has started its work."""
    before = len(replica.works.runs)
    runner = await replica.drive(chat_id)
    return runner, await replica.works.started(before + 1)


def hint_of(state: ChatState) -> ChatHint:
    fields = {name: getattr(state, name) for name in state.__struct_fields__ if name != "requires_action_deadline_at"}
    return ChatHint(**fields, queue_version=1, retry_state_version=1)


async def state_of(rig: RunnerRig, chat_id: ChatId) -> ChatState:
    return ChatState.of(await rig.rig.load(chat_id))


# The task for a state


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (State.R0, TaskKind.GENERATION),
        (State.R1, TaskKind.GENERATION),
        (State.I0, TaskKind.INTERRUPT),
        (State.A0, TaskKind.ACTION_TIMEOUT),
    ],
)
async def test_first_task_is_that_of_the_row(rig: RunnerRig, replica: Replica, state: State, kind: TaskKind) -> None:
    chat_id = await rig.rig.chat(state)

    runner, run = await at_work(replica, chat_id)

    assert run.kind is kind
    assert runner.active == run.handle.input
    row = await rig.rig.load(chat_id)
    assert run.handle.input.fence().find_mismatch(row) is None


@pytest.mark.parametrize("state", [State.W, State.E0, State.XW])
async def test_chat_with_nothing_to_do_is_let_go_of(rig: RunnerRig, replica: Replica, state: State) -> None:
    """The chat was acquired just before it came to rest."""
    chat_id = await rig.rig.create()
    key = await replica.acquire(chat_id)
    if state is State.E0:
        await rig.rig.run(chat_id, machine.finish_error, FAILED)
    else:
        await rig.rig.run(chat_id, machine.finish_turn)
    if state is State.XW:
        await rig.rig.run(chat_id, machine.set_archived, True)

    replica.manager.spawn(chat_id, key[1])
    await replica.manager.wait_idle()
    await replica.inflight.wait_idle()

    assert replica.works.kinds() == [TaskKind.ABANDON]
    row = await rig.rig.load(chat_id)
    assert (row.worker_id, row.runner_id) == (None, None)
    assert await rig.heartbeats() == set()


async def test_turn_of_two_steps_and_its_end(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    runner, first = await at_work(replica, chat_id)

    first.commit(lambda tx: machine.commit_step(tx, [assistant("one")]))
    second = await replica.works.started(2)
    second.commit(machine.finish_turn)
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.GENERATION, TaskKind.ABANDON]
    assert await rig.rig.state(chat_id) is State.W
    assert (await rig.rig.load(chat_id)).runner_id is None
    assert replica.stats.task_stalls == {}
    assert replica.frees == 1


async def test_status_of_a_newer_version_is_left_to_newer_replicas(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    state = await state_of(rig, runner.chat_id)

    runner.deliver(msgspec.structs.replace(state, snapshot_version=state.snapshot_version + 1, status="dreaming"))
    await replica.gone(runner)

    assert run.is_cancelled
    assert await rig.heartbeats() == set()


# Old states


async def test_duplicate_and_older_states_do_nothing(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    unowned = await state_of(rig, chat_id)
    runner, run = await at_work(replica, chat_id)
    current = await state_of(rig, chat_id)

    for state in (current, unowned, current, msgspec.structs.replace(unowned, status="interrupting")):
        replica.bus.dispatch(hint_of(state))
        await replica.turns()

    assert replica.works.live() == [run]
    assert replica.manager.runner(runner.key) is runner


async def test_attempts_and_retries_do_not_restart_the_task(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)

    await replica.machine.chat(chat_id).update(machine.record_generation_attempt)
    retry = RetryState(attempt=1, delay_ms=1000, error="Overloaded.", retrying_at=replica.clock.now())
    await replica.machine.chat(chat_id).update(lambda tx: machine.record_retry_state(tx, retry))
    await replica.turns()

    assert replica.works.runs == [run]
    assert not run.is_over


async def test_message_that_is_queued_does_not_restart_the_task(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)

    queued = rig.rig.message("later")
    await replica.machine.chat(chat_id).update(lambda tx: machine.send_message(tx, queued, BusyBehavior.QUEUE))
    await replica.turns()

    assert replica.works.live() == [run]


async def test_stale_state_heard_during_the_bootstrap_does_not_end_the_new_runner(
    rig: RunnerRig, replica: Replica
) -> None:
    chat_id = await rig.rig.create()
    unowned = await state_of(rig, chat_id)
    key = await replica.acquire(chat_id)
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        # Delays the first read until the old states have arrived.
        await conn.execute("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE")
        replica.manager.spawn(chat_id, key[1])
        await replica.turns()
        assert replica.works.runs == []
        replica.bus.dispatch(hint_of(unowned))
        replica.manager.route(unowned)
    run = await replica.works.started(1)
    await replica.turns()

    assert replica.works.live() == [run]
    assert replica.manager.keys() == [key]


async def test_news_heard_during_the_bootstrap_is_not_lost(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    key = await replica.acquire(chat_id)
    state = await state_of(rig, chat_id)
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE")
        replica.manager.spawn(chat_id, key[1])
        await replica.turns()
        newer = msgspec.structs.replace(state, snapshot_version=state.snapshot_version + 1, status="interrupting")
        replica.bus.dispatch(hint_of(newer))

    await until(lambda: [run.kind for run in replica.works.live()] == [TaskKind.INTERRUPT])


async def test_bootstrap_that_cannot_read_gives_the_lease_back(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    key = await replica.acquire(chat_id)
    await rig.rig.sql("ALTER TABLE chats RENAME COLUMN queue_len TO hidden")

    replica.manager.spawn(chat_id, key[1])
    await replica.manager.wait_idle()
    await replica.inflight.wait_idle()

    assert replica.works.runs == []
    assert await rig.heartbeats() == set()
    assert replica.frees == 1


async def test_bootstrap_of_a_chat_that_is_gone_ends_the_runner(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    key = await replica.acquire(chat_id)
    await rig.delete(chat_id)

    replica.manager.spawn(chat_id, key[1])
    await replica.manager.wait_idle()

    assert replica.works.runs == []


async def test_runner_ends_if_another_has_taken_its_chat_at_the_start(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    key = await replica.acquire(chat_id)
    await rig.rig.acquire(chat_id)

    replica.manager.spawn(chat_id, key[1])
    await replica.manager.wait_idle()

    assert replica.works.runs == []


async def test_mailbox_keeps_only_the_newest(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    state = await state_of(rig, runner.chat_id)

    def later(by: int) -> ChatState:
        return msgspec.structs.replace(
            state, snapshot_version=state.snapshot_version + by, history_version=state.history_version + by
        )

    for by in (1, 3, 2, 3):
        runner.deliver(later(by))
    await until(lambda: len(replica.works.runs) == 2)
    await replica.turns()

    assert [each.handle.input.history_version - state.history_version for each in replica.works.runs] == [0, 3]
    assert run.is_cancelled


# Replacement of a task


async def test_interrupt_starts_beside_the_generation_that_still_unwinds(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, generation = await at_work(replica, chat_id)
    generation.is_stubborn = True

    await replica.machine.chat(chat_id).update(machine.interrupt)
    interrupt = await replica.works.started(2)

    assert interrupt.kind is TaskKind.INTERRUPT
    assert generation.reason is CancelReason.USER
    assert not generation.is_over


async def test_replacement_with_the_same_key_waits_until_the_old_one_has_left(rig: RunnerRig, replica: Replica) -> None:
    runner, first = await at_work(replica, await rig.rig.create())
    first.is_stubborn = True

    runner.fence_off()
    await until(lambda: first.is_cancelled)
    runner.resume()
    await until(lambda: runner.active is not None and runner.active != first.handle.input)
    await replica.turns()
    assert replica.works.runs == [first]
    first.let_go.set()

    second = await replica.works.started(2)
    assert second.handle.input.key == first.handle.input.key
    assert first.is_over


async def test_replacement_waits_for_every_predecessor_with_its_key(rig: RunnerRig, replica: Replica) -> None:
    """The second task is cancelled while it waits for the first.

    The third must not start before the first has ended.
    """
    runner, first = await at_work(replica, await rig.rig.create())
    first.is_stubborn = True
    seen = {first.handle.input.task_id}

    for _ in range(2):
        runner.fence_off()
        await replica.turns()
        runner.resume()
        await until(lambda: runner.active is not None and runner.active.task_id not in seen)
        assert runner.active is not None
        seen.add(runner.active.task_id)
    await replica.turns()
    assert replica.works.runs == [first]
    first.let_go.set()

    second = await replica.works.started(2)
    await replica.turns()
    assert replica.works.live() == [second]


# Reasons of cancellations


async def test_own_commit_supersedes_the_task(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)
    was_reached = asyncio.Event()

    async def work(handle: TaskHandle) -> None:
        await handle.update(machine.record_generation_attempt, transition=Transition.RECORD_GENERATION_ATTEMPT)
        await handle.update(
            lambda tx: machine.commit_step(tx, [assistant("one")]), transition=Transition.COMMIT_STEP, attempt=1
        )
        was_reached.set()
        await asyncio.Event().wait()

    run.do(work)
    await replica.works.started(2)
    await until(lambda: run.is_over)

    assert run.reason is CancelReason.SUPERSEDED


async def test_edit_cancels_on_behalf_of_the_user_also_after_the_task_recorded_its_attempt(
    rig: RunnerRig, replica: Replica
) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)
    recorded = asyncio.Event()

    async def work(handle: TaskHandle) -> None:
        await handle.update(machine.record_generation_attempt, transition=Transition.RECORD_GENERATION_ATTEMPT)
        recorded.set()
        await asyncio.Event().wait()

    run.do(work)
    await recorded.wait()
    first = (await rig.rig.history(chat_id))[0]
    await replica.machine.chat(chat_id).update(
        lambda tx: machine.edit_message(tx, first.id, content=text("rather this"), edited_by=rig.rig.user)
    )
    await replica.works.started(2)
    await until(lambda: run.is_over)

    assert run.reason is CancelReason.USER


async def test_interrupt_cancels_on_behalf_of_the_user(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)

    await replica.machine.chat(chat_id).update(machine.interrupt)
    await until(lambda: run.is_over)

    assert run.reason is CancelReason.USER


async def test_takeover_cancels_as_a_lost_lease(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)

    await replica.machine.chat(chat_id).update(
        lambda tx: machine.acquire(tx, worker_id=rig.rig.worker, runner_id=uuid4())
    )
    await replica.gone(runner)

    assert run.reason is CancelReason.LEASE_LOST


async def test_deleted_chat_ends_its_runner(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)
    state = await state_of(rig, chat_id)
    await rig.delete(chat_id)

    replica.bus.dispatch(msgspec.structs.replace(hint_of(state), gone=True))
    await replica.gone(runner)

    assert run.is_cancelled


async def test_cancelled_task_leaves_no_error_on_the_chat(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)

    await replica.machine.chat(chat_id).update(machine.interrupt)
    await until(lambda: run.is_over)

    row = await rig.rig.load(chat_id)
    assert (row.status, row.last_error, row.retry_state) == (Status.INTERRUPTING, None, None)


async def test_runner_that_is_sent_away_starts_nothing_more(rig: RunnerRig, replica: Replica) -> None:
    """This also holds if a state is pending and the cancellation of the runner has not arrived."""
    runner, run = await at_work(replica, await rig.rig.create())
    state = await state_of(rig, runner.chat_id)

    runner.cancel_tasks(CancelReason.SHUTDOWN)
    runner.deliver(msgspec.structs.replace(state, snapshot_version=state.snapshot_version + 1, status="interrupting"))
    await until(lambda: run.is_over)
    await replica.turns()

    assert run.reason is CancelReason.SHUTDOWN
    assert replica.works.runs == [run]


# Stalls


async def test_task_that_leaves_the_chat_as_it_is_is_started_again_later_and_later(
    rig: RunnerRig, replica: Replica
) -> None:
    await at_work(replica, await rig.rig.create())
    waits = []

    for count in range(1, 8):
        run = await replica.works.started(count)
        run.end()
        await replica.clock.until_waiting(STALL)
        waits.append(replica.clock.waiting(STALL)[0].due - replica.clock.monotonic())
        await replica.clock.fire(STALL)

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert replica.stats.task_stalls == {TaskKind.GENERATION: 7}


async def test_step_that_moves_the_chat_resets_the_stall_guard(rig: RunnerRig, replica: Replica) -> None:
    _, run = await at_work(replica, await rig.rig.create())
    run.end()
    await replica.clock.fire(STALL)
    run = await replica.works.started(2)

    run.commit(lambda tx: machine.commit_step(tx, [assistant("one")]))
    run = await replica.works.started(3)
    run.end()
    await replica.clock.until_waiting(STALL)

    assert replica.clock.waiting(STALL)[0].due - replica.clock.monotonic() == 1.0


async def test_task_that_exits_because_the_chat_moved_unheard_is_no_stall(rig: RunnerRig, replica: Replica) -> None:
    """The hint was lost. The fence ends the task, and the runner reads the row."""
    chat_id = await rig.rig.create()
    _, run = await at_work(replica, chat_id)
    await rig.rig.run(chat_id, machine.interrupt)

    run.commit(lambda tx: machine.commit_step(tx, [assistant("too late")]))
    interrupt = await replica.works.started(2)

    assert interrupt.kind is TaskKind.INTERRUPT
    assert replica.stats.task_stalls == {}
    assert len(await rig.rig.history(chat_id)) == 1


async def test_task_that_exits_because_the_chat_was_taken_ends_the_runner(rig: RunnerRig, replica: Replica) -> None:
    """Status and history are the same, but the owner is different."""
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)
    await rig.rig.acquire(chat_id)

    run.commit(lambda tx: machine.commit_step(tx, [assistant("too late")]))
    await replica.gone(runner)

    assert replica.works.runs == [run]
    assert replica.stats.task_stalls == {}
    assert len(await rig.rig.history(chat_id)) == 1


async def test_task_that_exits_because_the_chat_is_gone_ends_the_runner(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)
    await rig.delete(chat_id)

    run.commit(lambda tx: machine.commit_step(tx, [assistant("to nobody")]))
    await replica.gone(runner)

    assert replica.works.runs == [run]


async def test_normal_steps_cost_no_extra_read(rig: RunnerRig) -> None:
    reads: list[str] = []

    async def note(conn: asyncpg.Connection) -> None:
        conn.add_query_logger(lambda query: reads.append(query.query) if "false AS leased" in query.query else None)

    async with asyncpg.create_pool(rig.url, min_size=0, max_size=4, init=note) as pool:
        replica = await rig.replica(pool=pool)
        runner, run = await at_work(replica, await rig.rig.create())
        for count in range(2, 12):
            run.commit(lambda tx: machine.commit_step(tx, [assistant("one more")]))
            run = await replica.works.started(count)
        run.commit(machine.finish_turn)
        await replica.gone(runner)

    assert len(reads) == 1  # the first read


async def test_runner_that_cannot_look_tries_again_and_meanwhile_hears_news(rig: RunnerRig) -> None:
    pool = await asyncpg.create_pool(rig.url, min_size=0, max_size=4)
    replica = await rig.replica(pool=pool)
    runner, run = await at_work(replica, await rig.rig.create())
    state = await state_of(rig, runner.chat_id)
    pool.terminate()

    run.end()
    await replica.clock.fire("runner-read")
    await replica.clock.until_waiting("runner-read")
    runner.deliver(msgspec.structs.replace(state, snapshot_version=state.snapshot_version + 1, status="interrupting"))
    second = await replica.works.started(2)

    assert second.kind is TaskKind.INTERRUPT
    assert replica.stats.task_stalls == {}


# Fence


async def test_fenced_runner_stops_its_work_and_starts_none_until_it_is_resumed(
    rig: RunnerRig, replica: Replica
) -> None:
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)

    runner.fence_off()
    await until(lambda: run.is_over)
    assert run.reason is CancelReason.LEASE_LOST
    await replica.machine.chat(chat_id).update(machine.interrupt)
    await replica.turns()
    assert replica.works.live() == []
    runner.resume()

    second = await replica.works.started(2)
    assert second.kind is TaskKind.INTERRUPT
    assert replica.stats.task_stalls == {}


async def test_step_committed_while_the_fence_comes_is_followed_by_the_next_after_it(
    rig: RunnerRig, replica: Replica
) -> None:
    """The fence arrived during the COMMIT."""
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)

    replica.bus.subscribe(ChatHint, lambda _: runner.fence_off(), key=chat_id)
    run.commit(lambda tx: machine.commit_step(tx, [assistant("one")]))
    await until(lambda: run.is_over)
    await replica.turns()
    assert replica.works.runs == [run]
    runner.resume()

    second = await replica.works.started(2)
    assert second.handle.input.history_version > run.handle.input.history_version
    assert replica.stats.task_stalls == {}


async def test_resuming_a_runner_that_was_not_fenced_does_nothing(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())

    runner.resume()
    await replica.turns()

    assert replica.works.live() == [run]


# Drain


async def test_draining_lets_the_step_end_and_then_lets_go_of_the_chat(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)

    runner.drain()
    await replica.turns()
    assert not run.is_over
    run.commit(lambda tx: machine.commit_step(tx, [assistant("one")]))
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]
    row = await rig.rig.load(chat_id)
    assert (row.status, row.runner_id) == (Status.RUNNING, None)
    assert len(await rig.rig.history(chat_id)) == 2
    assert [hint.chat_id for hint in replica.published.hints if isinstance(hint, OwnershipHint)] == [chat_id]


async def test_draining_does_not_sit_out_a_planned_wait(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    run.do(lambda handle: handle.wait(600.0, "planned"))
    await replica.clock.until_waiting("planned")

    runner.drain()
    await replica.gone(runner)

    assert run.reason is CancelReason.SHUTDOWN
    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


async def test_wait_that_begins_during_the_drain_is_cut_as_well(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())

    runner.drain()
    run.do(lambda handle: handle.wait(600.0, "planned"))
    await replica.gone(runner)

    assert run.reason is CancelReason.SHUTDOWN
    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


async def test_draining_does_not_sit_out_the_wait_between_two_tries(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    run.fail(RetryTask("Not now."))
    await replica.clock.until_waiting("task-retry-generation")

    runner.drain()
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


async def test_draining_does_not_sit_out_a_stall(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    run.end()
    await replica.clock.until_waiting(STALL)

    runner.drain()
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


async def test_stalled_step_in_a_drain_is_let_go_of_at_once(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())

    runner.drain()
    run.end()
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]
    assert replica.stats.task_stalls == {}


async def test_interrupt_is_finished_in_a_drain_however_often_it_has_to_be_tried(
    rig: RunnerRig, replica: Replica
) -> None:
    runner, run = await at_work(replica, await rig.rig.chat(State.I0))

    runner.drain()
    run.fail(RetryTask("Not now."))
    await replica.clock.fire("task-retry-interrupt")
    run = await replica.works.started(2)
    run.commit(lambda tx: machine.finish_interruption(tx, ()))
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.INTERRUPT, TaskKind.INTERRUPT, TaskKind.ABANDON]


async def test_runner_drained_before_its_bootstrap_lets_go_of_the_chat(rig: RunnerRig, replica: Replica) -> None:
    runner = await replica.drive(await rig.rig.create())

    runner.drain()
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.ABANDON]


async def test_drain_of_a_fenced_runner_waits_for_its_lease(rig: RunnerRig, replica: Replica) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    runner.fence_off()

    runner.drain()
    await until(lambda: run.is_over)
    await replica.turns()
    assert replica.works.live() == []
    runner.resume()
    await replica.gone(runner)

    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


async def test_runner_fenced_in_its_drain_stops_its_step_and_lets_go_afterwards(
    rig: RunnerRig, replica: Replica
) -> None:
    runner, run = await at_work(replica, await rig.rig.create())
    runner.drain()

    runner.fence_off()
    await until(lambda: run.is_over)
    runner.resume()
    await replica.gone(runner)

    assert run.reason is CancelReason.LEASE_LOST
    assert replica.works.kinds() == [TaskKind.GENERATION, TaskKind.ABANDON]


# A database that lost its last commits


async def test_chat_whose_last_versions_a_crash_of_the_database_took_is_driven_on(
    rig: RunnerRig, replica: Replica
) -> None:
    """Attempts are committed lazily, so a crash may undo them.

    Later versions are then lower than those that the runner knows.
    """
    chat_id = await rig.rig.create()
    runner, run = await at_work(replica, chat_id)
    known = await rig.rig.load(chat_id)
    lost = msgspec.structs.replace(ChatState.of(known), snapshot_version=known.snapshot_version + 5)
    runner.deliver(lost)
    await until(lambda: runner._accepted is not None and runner._accepted.snapshot_version == lost.snapshot_version)
    await rig.rig.run(chat_id, machine.interrupt)

    run.end()
    interrupt = await replica.works.started(2)

    assert interrupt.kind is TaskKind.INTERRUPT
