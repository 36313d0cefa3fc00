"""Tasks: fences, watchdog, retries and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import ChatNotFound, StaleFence, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import Transition
from rookery.loop.tool import CancelReason
from rookery.store import machine
from rookery.store.chats.step_reads import read_fenced
from rookery.store.db.errors import CommitOutcomeUnknown, DatabaseUnavailable, LockTimeout
from rookery.store.machine import ChatState, Machine, Tx
from rookery.testing.clock import FakeClock
from rookery.worker import commit_shield
from rookery.worker.config import WorkerConfig
from rookery.worker.stats import WorkerStats
from rookery.worker.tasks import (
    RetryTask,
    TaskExit,
    TaskHandle,
    TaskInput,
    TaskKind,
    TaskLoop,
    TaskRecord,
    Work,
    as_task_error,
)
from tests.eventually import until
from tests.store.machine.lossy_proxy import Fault, Proxy
from tests.store.machine.machine_rig import FAILED, Recorder, Rig, assistant, make_rig

CONFIG = WorkerConfig()
IDLE = "task-idle-generation"
RETRY = "task-retry-generation"
MINUTE = 60.0


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


class Bench:
    """One task of a chat that it owns, without a runner."""

    def __init__(self, machine_: Machine, task: TaskInput) -> None:
        self.clock = FakeClock()
        self.stats = WorkerStats()
        self.routed: list[ChatState] = []
        self.tries = 0
        self.is_done = False
        self.is_present = True
        self.handle = TaskHandle(
            task,
            machine=machine_,
            clock=self.clock,
            config=CONFIG,
            route=self.routed.append,
            may_commit=lambda: self.is_present,
        )
        self._loop = TaskLoop(clock=self.clock, config=CONFIG, stats=self.stats)

    def start(self, *works: Work) -> TaskRecord:
        """Start the task. Each try runs the next work; the last one is repeated."""

        async def work(handle: TaskHandle) -> None:
            self.tries += 1
            await works[min(self.tries, len(works)) - 1](handle)

        def done(_: TaskRecord) -> None:
            self.is_done = True

        record = TaskRecord(self.handle, work)
        record.start(lambda started: self._loop.run(started, after=(), delay_seconds=0.0), done)
        return record


async def bench_for(rig: Rig, chat_id: ChatId, *, machine_: Machine | None = None) -> Bench:
    fence = await rig.acquire(chat_id)
    task = TaskInput(
        task_id=uuid4(),
        kind=TaskKind.GENERATION,
        chat_id=chat_id,
        worker_id=fence.worker_id,
        runner_id=fence.runner_id,
        history_version=fence.history_version,
        status=fence.status,
    )
    return Bench(machine_ or rig.machine, task)


@pytest.fixture
async def chat(rig: Rig) -> ChatId:
    return await rig.create()


@pytest.fixture
async def bench(rig: Rig, chat: ChatId) -> Bench:
    return await bench_for(rig, chat)


async def nothing(_: TaskHandle) -> None:
    """Return immediately."""


async def hang(_: TaskHandle) -> None:
    await asyncio.Event().wait()


def raising(error: BaseException) -> Work:
    async def work(_: TaskHandle) -> None:
        raise error

    return work


def updating(fn: Callable[[Tx], Awaitable[object]], *, attempt: int | None = None) -> Work:
    async def work(handle: TaskHandle) -> None:
        await handle.update(fn, transition=Transition.COMMIT_STEP, attempt=attempt)

    return work


def step(words: str) -> Callable[[Tx], Awaitable[object]]:
    return lambda tx: machine.commit_step(tx, [assistant(words)])


async def commit(handle: TaskHandle, words: str) -> object:
    return await handle.update(step(words), transition=Transition.COMMIT_STEP)


# The fence


async def test_update_commits_while_the_fence_holds(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await bench.start(updating(step("done"))).wait_ended()

    assert len(await rig.history(chat)) == 2
    assert bench.tries == 1
    assert bench.stats.task_retries == {}


async def test_task_behind_a_lost_fence_leaves_quietly_and_changes_nothing(
    rig: Rig, chat: ChatId, bench: Bench
) -> None:
    await rig.acquire(chat)  # a takeover
    before = await rig.trace(chat)

    await bench.start(updating(step("too late"))).wait_ended()

    assert await rig.trace(chat) == before
    assert bench.tries == 1
    assert bench.stats.task_retries == {}
    assert bench.stats.fence_rejections == {"commit_step": 1}


async def test_look_behind_a_lost_fence_is_counted_as_a_look(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await rig.acquire(chat)

    async def look(handle: TaskHandle) -> None:
        await handle.read(lambda: read_fenced(rig.machine, chat, fence=handle.input.fence()))

    await bench.start(look).wait_ended()

    assert bench.stats.fence_rejections == {"read": 1}


async def test_task_whose_attempt_is_over_leaves_quietly(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await rig.run(chat, machine.record_generation_attempt)

    await bench.start(updating(step("of the attempt before"), attempt=0)).wait_ended()

    assert len(await rig.history(chat)) == 1
    assert bench.tries == 1


async def test_task_of_a_deleted_chat_leaves_quietly(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await rig.sql("DELETE FROM chats WHERE id = $1", chat)

    await bench.start(updating(step("to nobody"))).wait_ended()

    assert bench.tries == 1


@pytest.mark.parametrize("kind", TaskKind)
def test_only_the_abandon_task_may_touch_an_archived_chat(kind: TaskKind) -> None:
    task = TaskInput(
        task_id=uuid4(),
        kind=kind,
        chat_id=ChatId(uuid4()),
        worker_id=uuid4(),
        runner_id=uuid4(),
        history_version=3,
        status=Status.RUNNING,
    )

    assert task.fence().allow_archived is (kind is TaskKind.ABANDON)
    assert task.fence(attempt=2).generation_attempt == 2
    assert task.key == (3, Status.RUNNING)


# Translation of failures


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (StaleFence(ChatId(uuid4()), "runner_id"), TaskExit),
        (ChatNotFound(ChatId(uuid4())), TaskExit),
        (DatabaseUnavailable("No answer."), RetryTask),
        (CommitOutcomeUnknown("Lost."), RetryTask),
        (LockTimeout("Busy."), RetryTask),
        (ConnectionRefusedError("Nobody answers."), RetryTask),
        (TimeoutError(), RetryTask),
        (asyncpg.ConnectionDoesNotExistError("It closed."), RetryTask),
        (asyncpg.AdminShutdownError("Going down."), RetryTask),
        (asyncpg.SerializationError("Again."), RetryTask),
        (asyncpg.DeadlockDetectedError("Again."), RetryTask),
        (asyncpg.TooManyConnectionsError("Full."), RetryTask),
        (asyncpg.InterfaceError("The connection is closed."), RetryTask),
        (asyncpg.InternalClientError("Another operation is in progress."), RetryTask),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
async def test_failures_of_the_store_mean_to_leave_or_to_try_again(
    bench: Bench, error: Exception, meaning: type[Exception]
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(meaning) as raised:
        await bench.handle.read(fail)

    assert raised.value.__cause__ is error
    assert str(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        TransitionNotAllowed(Transition.COMMIT_STEP, State.W, cause="state"),
        asyncpg.UndefinedTableError("A bug."),
        ValueError("A bug."),
        TaskExit("Said already."),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_refusals_and_bugs_stay_what_they_are(bench: Bench, error: Exception) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await bench.handle.read(fail)

    assert raised.value is error
    assert error.__cause__ is None  # following the causes ends
    assert as_task_error(error) is error


# Retries


@pytest.mark.parametrize("error", [RetryTask("The database is away."), ValueError("A bug."), MemoryError()])
async def test_failing_work_is_tried_again_until_it_is_through(bench: Bench, error: Exception) -> None:
    bench.start(raising(error), raising(error), nothing)

    await bench.clock.fire(RETRY)
    assert (bench.tries, bench.is_done) == (2, False)
    await bench.clock.fire(RETRY)

    await until(lambda: bench.is_done)
    assert bench.tries == 3
    assert bench.stats.task_retries == {TaskKind.GENERATION: 2}


async def test_waits_between_tries_double_up_to_their_limit(bench: Bench) -> None:
    record = bench.start(raising(RetryTask("No.")))
    waits = []

    for _ in range(8):
        await bench.clock.until_waiting(RETRY)
        waits.append(round(bench.clock.waiting(RETRY)[0].due - bench.clock.monotonic(), 6))
        await bench.clock.fire(RETRY)

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    record.cancel(CancelReason.SHUTDOWN)
    await record.wait_ended()


async def test_cancellation_raised_by_a_library_is_retried(bench: Bench) -> None:
    bench.start(raising(asyncio.CancelledError()), nothing)

    await bench.clock.fire(RETRY)

    await until(lambda: bench.is_done)
    assert bench.tries == 2


# Cancellation


async def test_cancelled_work_knows_the_reason_writes_nothing_and_is_not_tried_again(
    rig: Rig, chat: ChatId, bench: Bench
) -> None:
    before = await rig.trace(chat)
    record = bench.start(hang)
    await bench.clock.until_waiting(IDLE)

    record.cancel(CancelReason.USER)
    record.cancel(CancelReason.SHUTDOWN)
    await record.wait_ended()

    assert bench.handle.cancellation.reason is CancelReason.USER  # the first reason counts
    assert bench.tries == 1
    assert await rig.trace(chat) == before


async def test_cancelled_work_that_fails_in_another_way_is_not_tried_again(bench: Bench) -> None:
    async def work(_: TaskHandle) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TimeoutError("a library's way to say that it was cancelled") from None

    record = bench.start(work)
    await bench.clock.until_waiting(IDLE)

    record.cancel(CancelReason.SUPERSEDED)
    async with asyncio.timeout(10):
        await record.wait_ended()

    assert bench.tries == 1
    assert bench.stats.task_retries == {}
    assert bench.clock.waiting() == []


async def test_task_cancelled_before_its_first_step_never_starts_its_work(bench: Bench) -> None:
    record = bench.start(nothing)

    record.cancel(CancelReason.USER)
    await record.wait_ended()

    assert bench.tries == 0
    assert bench.is_done


async def test_task_cancelled_between_two_tries_leaves_at_once(bench: Bench) -> None:
    record = bench.start(raising(RetryTask("No.")))
    await bench.clock.until_waiting(RETRY)

    record.cancel(CancelReason.LEASE_LOST)
    await record.wait_ended()

    assert bench.tries == 1


# The watchdog


async def test_work_that_hangs_is_stopped_and_tried_again(bench: Bench) -> None:
    seen: list[CancelReason | None] = []

    async def work(handle: TaskHandle) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(handle.cancellation.reason)

    record = bench.start(work, hang)

    await bench.clock.fire(IDLE)
    await bench.clock.fire(RETRY)

    assert bench.clock.monotonic() == pytest.approx(15 * MINUTE + 0.1)
    assert bench.tries == 2
    assert seen == [CancelReason.TIMEOUT]
    assert bench.handle.cancellation.reason is None  # the second try was not stopped
    record.cancel(CancelReason.USER)
    await record.wait_ended()
    assert bench.handle.cancellation.reason is CancelReason.USER


@pytest.mark.parametrize(
    "surfaces_as", [TaskExit("I was cancelled."), ConnectionResetError("cancelled"), DatabaseUnavailable("57014")]
)
async def test_watchdog_is_a_reason_to_try_again_however_it_surfaces(bench: Bench, surfaces_as: Exception) -> None:
    async def work(_: TaskHandle) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise surfaces_as from None

    bench.start(work, nothing)

    await bench.clock.fire(IDLE)
    await bench.clock.fire(RETRY)

    await until(lambda: bench.is_done)
    assert bench.tries == 2


async def test_progress_keeps_the_watchdog_away(bench: Bench) -> None:
    record = bench.start(hang)

    for _ in range(4):
        await bench.clock.until_waiting(IDLE)
        await bench.clock.advance(14 * MINUTE)
        bench.handle.progress()

    assert bench.tries == 1
    assert bench.clock.waiting(RETRY) == []
    await bench.clock.advance(15 * MINUTE)
    assert len(bench.clock.waiting(RETRY)) == 1
    record.cancel(CancelReason.USER)
    await record.wait_ended()


async def test_planned_wait_is_not_a_hang(bench: Bench) -> None:
    async def work(handle: TaskHandle) -> None:
        await handle.wait(40 * MINUTE, "planned")
        await asyncio.Event().wait()

    record = bench.start(work)
    await bench.clock.until_waiting("planned")
    assert bench.handle.is_waiting

    await bench.clock.advance(40 * MINUTE)

    assert not bench.handle.is_waiting
    assert bench.clock.waiting(IDLE)[0].due == bench.clock.monotonic() + 15 * MINUTE  # counted from its end
    await bench.clock.advance(15 * MINUTE)
    assert len(bench.clock.waiting(RETRY)) == 1
    record.cancel(CancelReason.USER)
    await record.wait_ended()


async def test_forty_minute_tool_with_a_deadline_of_an_hour_is_not_killed(bench: Bench) -> None:
    record = bench.start(hang)
    await bench.clock.until_waiting(IDLE)

    bench.handle.tool_progress(bench.clock.monotonic() + 60 * MINUTE)
    await bench.clock.advance(MINUTE)
    bench.handle.progress()  # progress of another tool does not shorten the time of the first
    await bench.clock.advance(39 * MINUTE)
    assert bench.clock.waiting(RETRY) == []
    await bench.clock.advance(21 * MINUTE)  # its deadline and the grace period

    assert len(bench.clock.waiting(RETRY)) == 1
    record.cancel(CancelReason.USER)
    await record.wait_ended()


async def test_patience_is_back_to_normal_when_no_tool_runs(bench: Bench) -> None:
    record = bench.start(hang)
    await bench.clock.until_waiting(IDLE)

    bench.handle.tool_progress(bench.clock.monotonic() + 4 * 60 * MINUTE)
    bench.handle.tool_progress(None)

    assert bench.clock.waiting(IDLE)[0].due == bench.clock.monotonic() + 15 * MINUTE
    record.cancel(CancelReason.USER)
    await record.wait_ended()


async def test_short_tool_does_not_shorten_the_patience_with_the_task(bench: Bench) -> None:
    record = bench.start(hang)
    await bench.clock.until_waiting(IDLE)

    bench.handle.tool_progress(bench.clock.monotonic() + 5.0)

    assert bench.clock.waiting(IDLE)[0].due == bench.clock.monotonic() + 15 * MINUTE
    record.cancel(CancelReason.USER)
    await record.wait_ended()


# The version of the task's own commit


async def test_task_claims_the_version_by_which_it_moves_the_chat_on(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await commit(bench.handle, "done")

    assert bench.handle.own_commit_version == (await rig.load(chat)).snapshot_version


@pytest.mark.parametrize("fn", [machine.record_generation_attempt])
async def test_task_claims_nothing_by_an_update_that_leaves_history_and_status(
    bench: Bench, fn: Callable[[Tx], Awaitable[object]]
) -> None:
    await bench.handle.update(fn, transition=Transition.RECORD_GENERATION_ATTEMPT)

    assert bench.handle.own_commit_version is None


async def test_task_claims_a_change_of_status(rig: Rig, chat: ChatId, bench: Bench) -> None:
    await bench.handle.update(lambda tx: machine.finish_error(tx, FAILED), transition=Transition.FINISH_ERROR)

    assert bench.handle.own_commit_version == (await rig.load(chat)).snapshot_version


async def test_task_claims_nothing_by_an_update_that_is_rolled_back(bench: Bench) -> None:
    async def stumble(tx: Tx) -> None:
        await machine.commit_step(tx, [assistant("half")])
        raise ValueError("after the transition")

    with pytest.raises(ValueError, match="after the transition"):
        await bench.handle.update(stumble, transition=Transition.COMMIT_STEP)

    assert bench.handle.own_commit_version is None


# A process without its presence lock


async def test_commit_waits_until_the_process_is_known_to_be_alive_again(rig: Rig, chat: ChatId, bench: Bench) -> None:
    bench.is_present = False
    record = bench.start(updating(step("done")))
    await bench.clock.fire("presence-wait")
    await bench.clock.until_waiting("presence-wait")
    assert len(await rig.history(chat)) == 1

    bench.is_present = True
    await bench.clock.fire("presence-wait")
    await record.wait_ended()

    assert len(await rig.history(chat)) == 2
    assert bench.tries == 1  # the result that waits for the commit is not made again


async def test_attempt_is_not_counted_by_a_process_that_may_be_taken_for_dead(
    rig: Rig, chat: ChatId, bench: Bench
) -> None:
    bench.is_present = False

    async def count(handle: TaskHandle) -> None:
        await handle.count_attempt(25)

    record = bench.start(count)
    await bench.clock.until_waiting("presence-wait")
    assert (await rig.load(chat)).generation_attempt == 0

    bench.is_present = True
    await bench.clock.fire("presence-wait")
    await record.wait_ended()

    assert (await rig.load(chat)).generation_attempt == 1


async def test_task_that_waits_with_its_commit_leaves_when_it_is_told_to(rig: Rig, chat: ChatId, bench: Bench) -> None:
    """This also holds for a shielded commit, which does not receive the cancellation."""
    bench.is_present = False

    async def work(handle: TaskHandle) -> None:
        await commit_shield.run_to_end(commit(handle, "done"))

    record = bench.start(work)
    await bench.clock.until_waiting("presence-wait")

    record.cancel(CancelReason.LEASE_LOST)
    await bench.clock.fire("presence-wait")
    await record.wait_ended()

    assert len(await rig.history(chat)) == 1
    assert bench.tries == 1


# A COMMIT without a response


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(database_url).listen() as proxy:
        yield proxy


@pytest.fixture
async def behind(rig: Rig, chat: ChatId, door: Proxy) -> AsyncIterator[Bench]:
    """A task whose commits pass through the proxy."""
    pool = await asyncpg.create_pool(door.url, min_size=0, max_size=4)
    try:
        yield await bench_for(rig, chat, machine_=Machine(pool, Recorder()))
    finally:
        pool.terminate()


async def test_commit_that_happened_although_its_answer_was_lost_counts_once(
    rig: Rig, chat: ChatId, door: Proxy, behind: Bench
) -> None:
    results: list[object] = []

    async def work(handle: TaskHandle) -> None:
        door.fault = Fault.LOSE_ANSWER
        results.append(await commit(handle, "once"))

    await behind.start(work).wait_ended()

    assert behind.tries == 1
    assert len(results) == 1
    assert len(await rig.history(chat)) == 2
    row = ChatState.of(await rig.load(chat))
    assert behind.routed == [row]  # the runner got no hint
    assert behind.handle.own_commit_version == row.snapshot_version


async def test_commit_that_did_not_happen_is_tried_again(rig: Rig, chat: ChatId, door: Proxy, behind: Bench) -> None:
    async def work(handle: TaskHandle) -> None:
        door.fault = Fault.LOSE_REQUEST
        await commit(handle, "lost")

    behind.start(work, updating(step("kept")))
    await behind.clock.until_waiting(RETRY)
    assert behind.handle.own_commit_version is None
    await behind.clock.fire(RETRY)

    await until(lambda: behind.is_done)
    assert behind.tries == 2
    assert len(await rig.history(chat)) == 2


async def test_repeating_a_commit_that_happened_after_all_ends_at_the_fence(
    rig: Rig, chat: ChatId, door: Proxy, behind: Bench
) -> None:
    """A message is queued before the row is read again, so the row differs from the written one."""

    async def work(handle: TaskHandle) -> None:
        door.fault, door.break_off = Fault.HOLD_ANSWER, True
        await commit(handle, "once")

    behind.start(work, updating(step("twice")))
    await door.committed.wait()
    await rig.send(chat, "meanwhile")
    door.let_go.set()
    await behind.clock.fire(RETRY)

    await until(lambda: behind.is_done)
    assert behind.tries == 2
    assert len(await rig.history(chat)) == 2


async def test_commit_of_a_chat_that_is_gone_since_is_no_commit(
    rig: Rig, chat: ChatId, door: Proxy, behind: Bench
) -> None:
    async def work(handle: TaskHandle) -> None:
        door.fault, door.break_off = Fault.HOLD_ANSWER, True
        await commit(handle, "once")

    behind.start(work, updating(step("twice")))
    await door.committed.wait()
    await rig.sql("DELETE FROM chats WHERE id = $1", chat)
    door.let_go.set()
    await behind.clock.fire(RETRY)

    await until(lambda: behind.is_done)
    assert behind.routed == []


async def test_unknown_commit_that_cannot_be_looked_up_is_tried_again(
    rig: Rig, chat: ChatId, door: Proxy, database_url: str
) -> None:
    pool = await asyncpg.create_pool(door.url, min_size=0, max_size=1)
    bench = await bench_for(rig, chat, machine_=Machine(pool, Recorder()))

    async def work(handle: TaskHandle) -> None:
        door.fault, door.break_off = Fault.HOLD_ANSWER, True
        await commit(handle, "once")

    bench.start(work, nothing)
    await door.committed.wait()
    pool.terminate()  # the read finds a closed pool
    door.let_go.set()
    await bench.clock.fire(RETRY)

    await until(lambda: bench.is_done)
    assert bench.tries == 2
    assert bench.handle.own_commit_version is None
    assert bench.routed == []


async def test_cancelling_during_the_commit_lets_it_be_told_first(rig: Rig, chat: ChatId, door: Proxy) -> None:
    pool = await asyncpg.create_pool(door.url, min_size=0, max_size=1)
    told = Recorder()
    bench = await bench_for(rig, chat, machine_=Machine(pool, told))

    async def work(handle: TaskHandle) -> None:
        door.fault = Fault.HOLD_ANSWER
        await commit(handle, "once")

    record = bench.start(work)
    await door.committed.wait()
    record.cancel(CancelReason.USER)
    door.let_go.set()
    await record.wait_ended()

    row = await rig.load(chat)
    assert [hint.snapshot_version for hint in told.chats()] == [row.snapshot_version]
    assert len(await rig.history(chat)) == 2
    assert bench.tries == 1
    pool.terminate()


# Order of tasks


async def test_task_waits_for_those_before_it_and_then_its_delay(bench: Bench, rig: Rig) -> None:
    before = bench.start(hang)
    await bench.clock.until_waiting(IDLE)
    follower = await bench_for(rig, await rig.create())
    ran = asyncio.Event()

    async def work(_: TaskHandle) -> None:
        ran.set()

    loop = TaskLoop(clock=bench.clock, config=CONFIG, stats=bench.stats)
    record = TaskRecord(follower.handle, work)
    record.start(lambda started: loop.run(started, after=[before], delay_seconds=3.0), lambda _: None)
    await bench.clock.advance(10.0)
    assert not ran.is_set()
    before.cancel(CancelReason.SUPERSEDED)
    await bench.clock.until_waiting("task-stall-generation")
    assert not ran.is_set()
    await bench.clock.advance(3.0)

    assert ran.is_set()
    await record.wait_ended()
