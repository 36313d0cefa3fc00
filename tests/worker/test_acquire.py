"""Acquisition of runnable chats: their order, and which chats are taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.hints import ChatHint, OwnershipHint
from rookery.store.machine.capacity import Limits
from rookery.worker.tasks import TaskKind
from tests.eventually import until
from tests.store.machine.lossy_proxy import Fault, Proxy
from tests.worker.runner_rig import UNLIMITED, Replica, RunnerRig, make_site


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RunnerRig]:
    async with make_site(database_url) as made:
        yield made


@pytest.fixture
async def replica(rig: RunnerRig) -> Replica:
    return await rig.replica()


async def owners(rig: RunnerRig) -> dict[ChatId, UUID | None]:
    async with rig.rig.pool.acquire() as conn:
        records = await conn.fetch("SELECT id, worker_id FROM chats")
    return {ChatId(record["id"]): record["worker_id"] for record in records}


def taken(replica: Replica) -> list[UUID]:
    """Return the chats of this replica in the order in which it took them."""
    keys = replica.manager.keys()
    return [chat_id for chat_id, _ in keys]


# Choice of chats


async def test_two_workers_share_two_hundred_chats_and_each_chat_has_one_task(rig: RunnerRig) -> None:
    chats = [await rig.rig.create() for _ in range(200)]
    replicas = [await rig.replica(), await rig.replica()]

    for replica in replicas:
        replica.start(replica.acquirer.run())
    await until(lambda: sum(len(replica.works.runs) for replica in replicas) >= 200, timeout=60)
    for replica in replicas:
        await replica.clock.until_waiting("acquire")
        await replica.turns()

    runs = Counter(run.handle.input.chat_id for replica in replicas for run in replica.works.runs)
    assert runs == Counter(chats)
    found = await owners(rig)
    for replica in replicas:
        assert {run.kind for run in replica.works.runs} <= {TaskKind.GENERATION}
        assert {chat for chat, owner in found.items() if owner == replica.worker_id} == set(replica.works.by_chat())


async def test_locked_chat_is_skipped_not_waited_for(rig: RunnerRig, replica: Replica) -> None:
    locked, free = await rig.rig.create(), await rig.rig.create()
    async with rig.rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", locked)
        async with asyncio.timeout(3):  # the lock timeout is 5 s
            assert await replica.acquirer.run_pass() == 1

    assert taken(replica) == [free]
    assert replica.stats.acquired == {"won": 1, "lost": 1}


@pytest.mark.parametrize("state", [State.W, State.E0, State.E1, State.XW, State.XE0])
async def test_idle_errored_and_archived_chats_are_never_taken(rig: RunnerRig, replica: Replica, state: State) -> None:
    await rig.rig.chat(state)

    assert await replica.acquirer.run_pass() == 0

    assert len(replica.manager) == 0
    assert replica.stats.acquired == {}


async def test_fresh_lease_is_never_taken(rig: RunnerRig, replica: Replica) -> None:
    other = await rig.replica()
    runner = await other.drive(await rig.rig.create())
    await rig.age_leases(25)

    assert await replica.acquirer.run_pass() == 0

    assert (await rig.rig.load(runner.chat_id)).runner_id == runner.runner_id


async def test_stale_lease_is_taken_with_a_new_runner_id(rig: RunnerRig, replica: Replica) -> None:
    other = await rig.replica()
    old = await other.drive(await rig.rig.create())
    await other.works.started(1)
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    await replica.clock.fire("acquire")
    await replica.clock.until_waiting("acquire")
    assert len(replica.manager) == 0
    await rig.age_leases(31)

    await replica.clock.fire("acquire")
    run = await replica.works.started(1)

    assert run.handle.input.runner_id != old.runner_id
    assert run.handle.input.worker_id == replica.worker_id
    assert replica.clock.monotonic() <= 2 * 5.0 * 1.2
    assert replica.stats.takeovers == {"lease": 1}


async def test_chat_of_a_process_that_is_gone_is_taken_at_once(rig: RunnerRig, replica: Replica) -> None:
    other = await rig.replica()
    runner = await other.drive(await rig.rig.create())
    await rig.rig.sql("DELETE FROM replicas WHERE id = $1", other.worker_id)

    assert await replica.acquirer.run_pass() == 1

    assert taken(replica) == [runner.chat_id]
    assert replica.stats.takeovers == {"lock_gone": 1}


async def test_interrupts_come_before_deadlines_and_these_before_steps(rig: RunnerRig, replica: Replica) -> None:
    chats = {state: await rig.rig.chat(state) for state in (State.R0, State.A0, State.I0)}

    await replica.acquirer.run_pass()

    assert taken(replica) == [chats[State.I0], chats[State.A0], chats[State.R0]]


async def test_message_to_a_waiting_chat_does_not_change_its_place(rig: RunnerRig, replica: Replica) -> None:
    first, second = await rig.rig.create(), await rig.rig.create()
    await rig.rig.send(first, "and this", BusyBehavior.QUEUE)

    await replica.acquirer.run_pass()

    assert taken(replica) == [first, second]


# Number of chats


async def test_pass_takes_at_most_its_batch_and_asks_for_another(rig: RunnerRig) -> None:
    replica = await rig.replica(acquire_batch=3)
    for _ in range(7):
        await rig.rig.create()

    assert await replica.acquirer.run_pass() == 3
    replica.start(replica.acquirer.run())
    await replica.works.started(7)

    assert replica.clock.monotonic() == 0.0


async def test_replica_takes_no_more_than_it_may_run(rig: RunnerRig) -> None:
    replica = await rig.replica(max_runners=2)
    for _ in range(4):
        await rig.rig.create()
    replica.start(replica.acquirer.run())
    await replica.works.started(2)
    await replica.clock.until_waiting("acquire")

    await replica.clock.fire("acquire")
    await replica.clock.until_waiting("acquire")

    assert len(replica.manager) == 2
    assert replica.stats.acquired == {"won": 2}


async def test_replica_that_is_not_fit_takes_nothing(rig: RunnerRig, replica: Replica) -> None:
    await rig.rig.create()
    replica.is_fit = False

    assert await replica.acquirer.run_pass() == 0
    replica.is_fit = True
    assert await replica.acquirer.run_pass() == 1


async def test_hint_that_finds_the_replica_unfit_is_followed_as_soon_as_it_is_fit(
    rig: RunnerRig, replica: Replica
) -> None:
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    replica.is_fit = False
    chat_id = await rig.rig.create()
    replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))
    await replica.clock.advance(0)
    replica.is_fit = True

    await replica.clock.fire("acquire")

    await replica.works.started(1)
    assert replica.clock.monotonic() < 1.0  # sooner than the timer, which takes 5 s


async def test_next_hint_brings_back_the_one_that_found_the_replica_unfit(rig: RunnerRig, replica: Replica) -> None:
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    replica.is_fit = False
    replica.bus.dispatch(OwnershipHint(chat_id=await rig.rig.create(), snapshot_version=1))
    await replica.clock.advance(0)
    replica.is_fit = True

    replica.bus.dispatch(OwnershipHint(chat_id=await rig.rig.create(), snapshot_version=1))

    await replica.works.started(2)
    assert replica.clock.monotonic() == 0.0


async def test_replica_that_becomes_unfit_takes_no_more_chats_than_those_of_one_statement(
    rig: RunnerRig, replica: Replica
) -> None:
    for _ in range(12):
        await rig.rig.create()
    replica.bus.subscribe(ChatHint, lambda _: setattr(replica, "is_fit", False))

    assert await replica.acquirer.run_pass() == 10
    assert await replica.acquirer.run_pass() == 0


async def test_replica_that_lost_its_leases_takes_nothing(rig: RunnerRig, replica: Replica) -> None:
    await rig.rig.create()
    replica.manager.fence_off()

    assert await replica.acquirer.run_pass() == 0
    replica.manager.resume([])
    assert await replica.acquirer.run_pass() == 1


# Capacity


async def test_full_pool_costs_one_refusal_per_pass_and_raises_no_hint(rig: RunnerRig) -> None:
    replica = await rig.replica(limits=Limits(running_roots=2, running_subagents=0))
    for _ in range(6):
        await rig.rig.create()
    assert await replica.acquirer.run_pass() == 2
    waiting = [chat for chat, owner in (await owners(rig)).items() if owner is None]
    before = {chat: await rig.rig.trace(chat) for chat in waiting}
    replica.stats.acquired.clear()
    replica.published.hints.clear()

    assert await replica.acquirer.run_pass() == 0

    assert replica.stats.acquired == {"full": 1}
    assert replica.published.hints == []
    assert {chat: await rig.rig.trace(chat) for chat in waiting} == before
    assert not replica.acquirer._pass_requested.is_set()  # it does not wake itself


async def test_full_pool_of_roots_does_not_hide_a_subagent(rig: RunnerRig) -> None:
    replica = await rig.replica(limits=Limits(running_roots=1, running_subagents=1), acquire_batch=1)
    root = await rig.rig.create()
    assert await replica.acquirer.run_pass() == 1
    for _ in range(5):
        await rig.rig.create()
    child = await rig.rig.child(root)

    assert await replica.acquirer.run_pass() == 1

    assert taken(replica) == [root, child]


async def test_interrupts_are_taken_although_the_pool_is_full(rig: RunnerRig) -> None:
    replica = await rig.replica(limits=Limits(running_roots=1, running_subagents=0))
    await rig.rig.create()
    assert await replica.acquirer.run_pass() == 1
    refused = await rig.rig.create()
    interrupted = await rig.rig.chat(State.I0)

    assert await replica.acquirer.run_pass() == 1

    assert taken(replica)[1] == interrupted
    assert (await rig.rig.load(refused)).worker_id is None


async def test_newcomer_is_taken_soon_although_a_pass_over_a_long_list_has_begun(rig: RunnerRig) -> None:
    other = await rig.rig.value("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{uuid4().hex}")
    replica = await rig.replica(acquire_batch=40, acquire_delay_per_runner_seconds=0.0)
    for _ in range(40):
        await rig.rig.create()
    came: list[tuple[ChatId, int]] = []
    has_come = asyncio.Event()

    async def come() -> None:
        chat_id = await rig.rig.create(owner_id=other)
        replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))
        came.append((chat_id, len(replica.manager)))

    def heard(_: ChatHint) -> None:
        if not has_come.is_set():
            has_come.set()
            replica.start(come())

    replica.bus.subscribe(ChatHint, heard)
    replica.start(replica.acquirer.run())
    await replica.works.started(41)

    ((chat_id, before),) = came
    assert taken(replica).index(chat_id) <= before + replica.config.acquire_reread_after + 1


# Triggers


async def test_first_pass_comes_at_once_and_then_one_per_interval(rig: RunnerRig, replica: Replica) -> None:
    await rig.rig.create()
    replica.start(replica.acquirer.run())
    await replica.works.started(1)
    assert replica.clock.monotonic() == 0.0
    times = []

    for count in range(2, 6):
        await replica.clock.until_waiting("acquire")
        await rig.rig.create()  # without a hint
        await replica.clock.fire("acquire")
        await replica.works.started(count)
        times.append(replica.clock.monotonic())

    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert all(4.0 <= gap <= 6.0 for gap in gaps)
    assert len(set(gaps)) > 1  # jitter keeps replicas apart


async def test_hint_from_another_replica_wakes_this_one(rig: RunnerRig, replica: Replica) -> None:
    other = await rig.replica()
    await replica.listen()
    other.start(other.notifier.run())
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")

    spec = rig.rig.spec()
    await other.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))

    await replica.works.started(1)
    assert replica.clock.monotonic() == 0.0


async def test_busy_replica_lets_idle_ones_go_first_after_a_hint(rig: RunnerRig, replica: Replica) -> None:
    for _ in range(4):
        await replica.drive(await rig.rig.create())
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    chat_id = await rig.rig.create()

    replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))
    await replica.clock.until_waiting("acquire-delay")
    assert replica.clock.waiting("acquire-delay")[0].due == pytest.approx(4 * 0.0005)
    replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))  # part of the same pass
    await replica.clock.fire("acquire-delay")

    await replica.works.started(5)
    await replica.clock.until_waiting("acquire")
    await replica.clock.fire("acquire")
    await replica.clock.until_waiting("acquire")
    assert replica.clock.waiting("acquire-delay") == []  # a pass of the timer is not delayed


async def test_delay_after_a_hint_has_a_limit(rig: RunnerRig) -> None:
    replica = await rig.replica(acquire_delay_per_runner_seconds=0.2)
    for _ in range(3):
        await replica.drive(await rig.rig.create())
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")

    replica.bus.dispatch(OwnershipHint(chat_id=taken(replica)[0], snapshot_version=1))
    await replica.clock.until_waiting("acquire-delay")

    assert replica.clock.waiting("acquire-delay")[0].due == pytest.approx(0.05)


@pytest.mark.parametrize("way", ["wake", "resync"])
async def test_free_slot_and_new_connection_ask_for_a_pass_at_once(rig: RunnerRig, replica: Replica, way: str) -> None:
    await replica.drive(await rig.rig.create())
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    await rig.rig.create()

    if way == "wake":
        replica.acquirer.wake()
    else:
        replica.bus.resync()

    await replica.works.started(2)
    assert replica.clock.monotonic() == 0.0


async def test_burst_of_reasons_is_one_pass(rig: RunnerRig) -> None:
    lists: list[str] = []

    async def note(conn: asyncpg.Connection) -> None:
        conn.add_query_logger(lambda query: lists.append(query.query) if "owners AS" in query.query else None)

    async with asyncpg.create_pool(rig.url, min_size=0, max_size=4, init=note) as pool:
        replica = await rig.replica(pool=pool)
        loop = replica.start(replica.acquirer.run())
        await replica.clock.until_waiting("acquire")
        lists.clear()

        for _ in range(100):
            replica.acquirer.wake()
        await until(lambda: len(lists) == 1)
        await replica.clock.until_waiting("acquire")
        await replica.turns()

        assert len(lists) == 1
        loop.cancel()


async def test_loop_that_ends_hears_no_hints_any_more(replica: Replica) -> None:
    loop = replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    assert replica.bus.stats() == {"resync": 1, "OwnershipHint": 1, "ChatHint": 1}

    loop.cancel()
    await asyncio.wait([loop])

    assert replica.bus.stats() == {"resync": 0}
    assert replica.clock.waiting() == []


# Failures


async def test_chat_that_cannot_be_taken_does_not_keep_the_others_from_it(rig: RunnerRig, replica: Replica) -> None:
    broken, fine = await rig.rig.create(), await rig.rig.create()
    await rig.rig.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NEW.chat_id = '{broken}' THEN RAISE 'no'; END IF; RETURN NEW; END $$"
    )
    await rig.rig.sql("CREATE TRIGGER refuse BEFORE INSERT ON chat_heartbeats FOR EACH ROW EXECUTE FUNCTION refuse()")

    assert await replica.acquirer.run_pass() == 1

    assert taken(replica) == [fine]
    assert replica.stats.acquired == {"failed": 1, "won": 1}


async def test_pass_without_a_database_takes_nothing_and_the_next_one_does(rig: RunnerRig) -> None:
    async with Proxy(rig.url).listen() as door:
        pool = await asyncpg.create_pool(door.url, min_size=1, max_size=1)
        replica = await rig.replica(pool=pool)
        await rig.rig.create()
        door.fault, door.statement = Fault.LOSE_REQUEST, b"owners AS"

        assert await replica.acquirer.run_pass() == 0
        assert await replica.acquirer.run_pass() == 1
        await replica.works.started(1)
        replica.manager.close()
        await replica.manager.wait_idle()
        pool.terminate()


async def test_chat_won_after_the_close_is_let_go_of_at_once(rig: RunnerRig, replica: Replica) -> None:
    chat_id = await rig.rig.create()
    # The commit is announced between the COMMIT and the start of the runner.
    replica.bus.subscribe(ChatHint, lambda _: replica.manager.close(), key=chat_id)

    assert await replica.acquirer.run_pass() == 0
    await replica.inflight.wait_idle()

    row = await rig.rig.load(chat_id)
    assert (row.worker_id, row.runner_id) == (None, None)
    assert await rig.heartbeats() == set()
    assert replica.stats.acquired == {"closed": 1}
    assert replica.works.runs == []


@pytest.mark.parametrize("is_at_once", [False, True], ids=["by a bundle", "at once"])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["answer lost", "cancelled"])
async def test_chat_that_may_have_been_won_is_let_go_of(rig: RunnerRig, is_cancelled: bool, is_at_once: bool) -> None:
    """Without the release, the chat would stay without a runner until its lease ends."""
    async with Proxy(rig.url).listen() as door:
        pool = await asyncpg.create_pool(door.url, min_size=0, max_size=4)
        replica = await rig.replica(pool=pool, limits=UNLIMITED if is_at_once else Limits(running_roots=9))
        chat_id = await rig.rig.create()
        door.fault = Fault.HOLD_ANSWER if is_cancelled else Fault.LOSE_ANSWER
        if is_at_once:
            door.statement = chat_id.bytes
        else:  # with peers, slots are counted under the locks of the pools
            replica.acquirer._has_peers = True

        looking = asyncio.ensure_future(replica.acquirer.run_pass())
        await door.committed.wait()
        assert (await rig.rig.load(chat_id)).worker_id == replica.worker_id
        if is_cancelled:
            looking.cancel()
            door.let_go.set()
        await asyncio.wait([looking])
        await replica.inflight.wait_idle()

        assert looking.cancelled() is is_cancelled
        assert (await rig.rig.load(chat_id)).worker_id is None
        assert await rig.heartbeats() == set()
        assert replica.works.runs == []
        pool.terminate()


async def test_slot_that_becomes_free_is_taken_without_waiting_for_the_timer(rig: RunnerRig) -> None:
    replica = await rig.replica(max_runners=1)
    first, _ = await rig.rig.create(), await rig.rig.create()
    replica.start(replica.acquirer.run())
    run = await replica.works.started(1)
    assert run.handle.input.chat_id == first

    run.commit(machine.finish_turn)
    await until(lambda: len(replica.works.by_chat()) == 2)

    assert replica.clock.monotonic() == 0.0


async def test_chat_that_one_hint_names_is_taken_without_a_list(rig: RunnerRig) -> None:
    replica = await rig.replica(acquire_delay_per_runner_seconds=0.0)
    unnamed = await rig.rig.create()
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    await replica.works.started(1)
    left, named = await rig.rig.create(), await rig.rig.create()

    replica.bus.dispatch(OwnershipHint(chat_id=named, snapshot_version=1))
    await replica.works.started(2)
    await replica.clock.until_waiting("acquire")

    found = await owners(rig)
    assert (found[unnamed], found[named], found[left]) == (replica.worker_id, replica.worker_id, None)


async def test_chat_that_comes_to_rest_elsewhere_means_a_free_slot(rig: RunnerRig) -> None:
    replica = await rig.replica(limits=Limits(running_roots=1))
    held, waiting = await rig.rig.create(), await rig.rig.create()
    await rig.rig.acquire(held)
    replica.start(replica.acquirer.run())
    await replica.clock.until_waiting("acquire")
    assert (await owners(rig))[waiting] is None
    rig.rig.published.clear()

    await rig.rig.run(held, machine.finish_turn)
    await rig.rig.run(held, machine.leave)
    for hint in rig.rig.published.hints:
        replica.bus.dispatch(hint)

    await replica.works.started(1)
    assert (await owners(rig))[waiting] == replica.worker_id


async def test_hint_about_a_chat_that_is_driven_here_costs_nothing(rig: RunnerRig) -> None:
    replica = await rig.replica(acquire_delay_per_runner_seconds=0.0)
    chat_id = await rig.rig.create()
    replica.start(replica.acquirer.run())
    await replica.works.started(1)
    await replica.clock.until_waiting("acquire")
    replica.stats.acquired.clear()

    replica.bus.dispatch(OwnershipHint(chat_id=chat_id, snapshot_version=1))
    await replica.turns()
    await replica.clock.until_waiting("acquire")

    assert not replica.stats.acquired
