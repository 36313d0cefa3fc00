"""Ownership of chats: ordered candidates, admission under the lock, and leases by the database clock."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx, capacity, ownership
from tests.store.machine.machine_rig import Rig, add_replica, call, calling

RUNNABLE = [state for state in State if state.is_runnable]
IDLE = [state for state in State if not state.is_runnable and state not in (State.N, State.INVALID)]


async def nothing(tx: Tx) -> None:
    """An empty callback."""


async def yes(tx: Tx) -> bool:
    return True


async def no(tx: Tx) -> bool:
    return False


async def try_acquire(
    rig: Rig, chat_id: UUID, *, runner_id: UUID | None = None, admit: Callable[[Tx], Awaitable[bool]] = yes
) -> Chat | None:
    runner_id = runner_id or uuid4()
    return await machine.try_acquire(rig.machine, chat_id, worker_id=rig.worker, runner_id=runner_id, admit=admit)


async def age_heartbeats(rig: Rig, seconds: float) -> None:
    await rig.sql(
        "UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - make_interval(secs => $1)", float(seconds)
    )


async def list_candidates(rig: Rig, limit: int = 20) -> list[ChatId]:
    async with rig.pool.acquire() as conn:
        return [candidate.chat_id for candidate in await machine.list_candidates(conn, limit)]


# Acquire and abandon


@pytest.mark.parametrize("state", [State.W, State.E0, State.R0, State.R1, State.I0, State.A1, State.XW])
async def test_acquire_and_abandon_change_nothing_but_the_pair_and_the_version(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state)
    before = await rig.load(chat_id)

    fence = await rig.acquire(chat_id)
    taken = await rig.load(chat_id)
    await rig.update(chat_id, machine.abandon)
    left = await rig.load(chat_id)

    assert (taken.worker_id, taken.runner_id) == (rig.worker, fence.runner_id)
    assert taken.leased
    expected: dict[str, Any] = {"worker_id": rig.worker, "runner_id": fence.runner_id, "leased": True}
    assert taken == msgspec.structs.replace(before, snapshot_version=before.snapshot_version + 1, **expected)
    assert left == msgspec.structs.replace(before, snapshot_version=before.snapshot_version + 2)


async def test_execution_state_that_is_not_the_pair_survives_a_change_of_owner(rig: Rig) -> None:
    chat_id = await rig.chat(State.E1)
    await rig.update(chat_id, machine.request_compaction)
    await rig.update(chat_id, machine.record_generation_attempt)
    before = await rig.load(chat_id)
    assert before.compaction_requested_at is not None

    await rig.acquire(chat_id)
    await rig.acquire(chat_id)
    await rig.update(chat_id, machine.abandon)

    assert await rig.load(chat_id) == msgspec.structs.replace(before, snapshot_version=before.snapshot_version + 3)


async def test_acquire_replaces_an_owner_with_a_fresh_lease_and_asks_for_no_worker(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    first = await rig.acquire(chat_id)
    second = await rig.acquire(chat_id)

    assert first.runner_id != second.runner_id
    assert (await rig.load(chat_id)).runner_id == second.runner_id
    assert len(rig.published.chats()) == 2
    assert rig.published.ownership() == []
    assert await rig.value("SELECT count(*) FROM chat_heartbeats WHERE chat_id = $1", chat_id) == 2


async def test_acquire_by_a_worker_without_a_row_asks_for_no_worker(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    await rig.update(chat_id, lambda tx: machine.acquire(tx, worker_id=uuid4(), runner_id=uuid4()))

    assert rig.published.ownership() == []


async def test_acquiring_again_with_the_same_runner_renews_its_lease(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    fence = await rig.acquire(chat_id)
    await age_heartbeats(rig, 60)
    assert not (await rig.load(chat_id)).leased

    await rig.update(chat_id, lambda tx: machine.acquire(tx, worker_id=fence.worker_id, runner_id=fence.runner_id))

    assert (await rig.load(chat_id)).leased


async def test_abandon_of_a_chat_without_an_owner_is_refused(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(chat_id, machine.abandon)

    assert refusal.value.cause == "not_owned"
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_abandon_of_a_runnable_chat_asks_for_another_owner_and_of_an_idle_one_does_not(rig: Rig) -> None:
    for state in (State.R0, State.W):
        chat_id = await rig.chat(state)
        await rig.acquire(chat_id)
        rig.published.clear()

        await rig.update(chat_id, machine.abandon)

        assert bool(rig.published.ownership()) is state.is_runnable
        assert await rig.value("SELECT count(*) FROM chat_heartbeats WHERE chat_id = $1", chat_id) == 1


async def test_pair_that_is_taken_and_given_back_in_one_bundle_asks_for_an_owner(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    async def take_and_give_back(tx: Tx) -> None:
        await machine.acquire(tx, worker_id=rig.worker, runner_id=uuid4())
        await machine.abandon(tx)

    await rig.update(chat_id, take_and_give_back)

    assert len(rig.published.ownership()) == 1


# The wish for an owner


@pytest.mark.parametrize("state", RUNNABLE)
async def test_runnable_chat_asks_for_an_owner_unless_it_is_leased(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state)
    asked = []

    async def ask() -> None:
        rig.published.clear()
        await rig.update(chat_id, nothing)
        asked.append(bool(rig.published.ownership()))

    await ask()
    await rig.acquire(chat_id)
    await ask()
    await age_heartbeats(rig, 29)
    await ask()
    await age_heartbeats(rig, 31)
    await ask()
    await age_heartbeats(rig, 0)
    await rig.sql("UPDATE chat_heartbeats SET runner_id = gen_random_uuid()")
    await ask()
    await rig.acquire(chat_id)
    await rig.sql("DELETE FROM replicas WHERE id = $1", rig.worker)
    await ask()
    await rig.sql("DELETE FROM chat_heartbeats")
    await ask()

    assert asked == [True, False, False, True, True, True, True]


@pytest.mark.parametrize("state", IDLE)
async def test_idle_chat_never_asks_for_an_owner(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state)
    await rig.update(chat_id, nothing)
    await rig.acquire(chat_id)
    await age_heartbeats(rig, 60)

    await rig.update(chat_id, nothing)

    assert len(rig.published.chats()) == 3
    assert rig.published.ownership() == []


# Candidates


async def test_candidates_come_by_status_then_by_age_with_roots_and_children_taking_turns(rig: Rig) -> None:
    parent = await rig.chat(State.W)
    expected: dict[State, list[ChatId]] = {}
    for state in (State.R0, State.A0, State.I0):
        roots = [await rig.chat(state) for _ in range(3)]
        children = [await _child(rig, parent, state) for _ in range(2)]
        merged = [roots[0], children[0], roots[1], children[1], roots[2]]
        expected[state] = merged

    assert await list_candidates(rig) == [*expected[State.I0], *expected[State.A0], *expected[State.R0]]


async def test_limit_counts_for_every_partition_so_that_one_pool_cannot_hide_the_other(rig: Rig) -> None:
    parent = await rig.chat(State.W)
    roots = [await rig.chat(State.R0) for _ in range(4)]
    children = [await _child(rig, parent, State.R0) for _ in range(4)]
    interrupted = [await rig.chat(State.I0) for _ in range(4)]

    found = await list_candidates(rig, limit=2)

    assert found == [*interrupted[:2], roots[0], children[0], roots[1], children[1]]


async def test_new_message_does_not_send_a_waiting_chat_to_the_back(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)

    await rig.send(first, "one more")
    await rig.update(first, machine.finish_turn)

    assert await rig.state(first) is State.R0
    assert await list_candidates(rig) == [first, second]


async def test_chat_that_rested_goes_to_the_back(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)

    await rig.update(first, machine.finish_turn)
    await rig.send(first, "again")

    assert await list_candidates(rig) == [second, first]


async def test_only_chats_without_a_valid_lease_are_candidates(rig: Rig) -> None:
    async with rig.pool.acquire() as conn:
        lost = await add_replica(conn)
    free, leased, stale, orphan, without = [await rig.chat(State.R0) for _ in range(5)]
    for chat_id in (leased, stale, without):
        await rig.acquire(chat_id)
    await rig.update(orphan, lambda tx: machine.acquire(tx, worker_id=lost, runner_id=uuid4()))
    await rig.sql(
        "UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '31 s' WHERE chat_id = $1", stale
    )
    await rig.sql("DELETE FROM replicas WHERE id = $1", lost)
    await rig.sql("DELETE FROM chat_heartbeats WHERE chat_id = $1", without)

    assert await list_candidates(rig) == [free, stale, orphan, without]


async def test_idle_chats_are_no_candidates(rig: Rig) -> None:
    for state in IDLE:
        await rig.chat(state)

    assert await list_candidates(rig) == []


async def test_candidate_says_what_admission_needs_to_know(rig: Rig) -> None:
    parent = await rig.chat(State.W)
    child = await _child(rig, parent, State.I0)

    async with rig.pool.acquire() as conn:
        found = await machine.list_candidates(conn, 5)

    assert found == [machine.Candidate(child, "interrupting", False, rig.user)]


async def _child(rig: Rig, root: ChatId, state: State) -> ChatId:
    child = await rig.child(root)
    if state is State.I0:
        await rig.update(child, machine.interrupt)
    if state is State.A0:
        await rig.update(child, lambda tx: machine.commit_step(tx, [calling(call("call-1"))]))
        await rig.update(child, machine.enter_requires_action)
    assert await rig.state(child) is state
    return child


# Fair share


async def test_backlog_of_one_owner_does_not_hide_the_chat_of_another(rig: Rig) -> None:
    backlog = [await rig.chat(State.R0) for _ in range(6)]
    late = await rig.create(owner_id=await _another_owner(rig))

    assert await list_candidates(rig, limit=2) == [backlog[0], late]
    assert await list_candidates(rig, limit=4) == [backlog[0], late, *backlog[1:3]]


async def test_owner_with_chats_at_work_gives_way_to_one_who_has_none(rig: Rig) -> None:
    for chat_id in [await rig.chat(State.R0) for _ in range(2)]:
        await rig.acquire(chat_id)
    older = await rig.chat(State.R0)
    other = await _another_owner(rig)
    younger = [await rig.create(owner_id=other) for _ in range(3)]

    # As the other's third it is the oldest of those who have two before them.
    assert await list_candidates(rig) == [*younger[:2], older, younger[2]]


async def test_chats_at_work_in_one_pool_do_not_count_in_the_other(rig: Rig) -> None:
    root = await rig.chat(State.R0)
    await rig.acquire(root)
    mine = await _child(rig, root, State.R0)
    other = await _another_owner(rig)
    theirs = await rig.create(owner_id=other)
    child = await rig.child(theirs, owner_id=other)

    assert await list_candidates(rig) == [theirs, mine, child]


async def _another_owner(rig: Rig) -> UUID:
    found = await rig.value("INSERT INTO users (username) VALUES ($1) RETURNING id", f"user-{uuid4().hex}")
    assert isinstance(found, UUID)
    return found


# Trying


@pytest.mark.parametrize(("seconds", "is_leased"), [(20, True), (40, False), (90, False)])
async def test_lease_lasts_as_long_as_its_replica_says(rig: Rig, seconds: float, is_leased: bool) -> None:
    """Two replicas have different durations: each lease lasts as long as its own replica has stored."""
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)
    await rig.sql("UPDATE replicas SET lease_ttl = interval '100 s' WHERE id = $1", other)
    short, long = await rig.chat(State.R0), await rig.chat(State.R0)
    await rig.acquire(short)
    await rig.update(long, lambda tx: machine.acquire(tx, worker_id=other, runner_id=uuid4()))
    await age_heartbeats(rig, seconds)

    assert await list_candidates(rig) == ([] if is_leased else [short])
    assert ((await rig.load(short)).leased, (await rig.load(long)).leased) == (is_leased, True)
    async with rig.pool.acquire() as conn:
        counts = await capacity.count_pools(conn, limits=capacity.Limits())
    assert counts[capacity.Pool.ROOT].active == 1 + is_leased
    await age_heartbeats(rig, 101)
    assert set(await list_candidates(rig)) == {short, long}


@pytest.mark.parametrize("state", RUNNABLE)
async def test_free_runnable_chat_is_acquired_with_a_fresh_lease(rig: Rig, state: State) -> None:
    chat_id, runner_id = await rig.chat(state), uuid4()

    chat = await try_acquire(rig, chat_id, runner_id=runner_id)

    assert chat == await rig.load(chat_id)
    assert (chat.worker_id, chat.runner_id, chat.leased) == (rig.worker, runner_id, True)
    assert len(rig.published.chats()) == 1
    assert rig.published.ownership() == []


async def test_row_that_is_acquired_is_told_as_the_next_reader_sees_it(rig: Rig) -> None:
    known, unknown = await rig.chat(State.R0), await rig.chat(State.R0)

    taken = await try_acquire(rig, known)
    stray = await machine.try_acquire(rig.machine, unknown, worker_id=uuid4(), runner_id=uuid4(), admit=yes)

    assert taken == await rig.load(known)
    assert stray == await rig.load(unknown)
    assert taken is not None
    assert stray is not None
    assert (taken.leased, stray.leased) == (True, False)


async def test_chat_is_acquired_in_few_round_trips(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await try_acquire(rig, await rig.chat(State.R0))  # statements are prepared, types known
    ran: list[str] = []
    connections = [await rig.pool.acquire() for _ in range(rig.pool.get_max_size())]
    for conn in connections:
        conn.add_query_logger(lambda query: ran.append(query.query))
        await rig.pool.release(conn)

    assert await try_acquire(rig, chat_id) is not None

    # Begin, lock, look, take, commit.
    assert len(ran) <= 5, ran


async def test_refused_admission_leaves_no_trace_and_no_hint(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.trace(chat_id)

    assert await try_acquire(rig, chat_id, admit=no) is None

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_error_of_the_admission_is_passed_on_and_leaves_no_trace(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.trace(chat_id)

    async def broken(tx: Tx) -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        await try_acquire(rig, chat_id, admit=broken)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_admission_is_asked_under_the_lock_with_the_row_as_it_is(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    seen = []

    async def admit(tx: Tx) -> bool:
        seen.append((tx.state, tx.chat.runner_id))
        locked = await rig.value("SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED", chat_id)
        return locked is None

    assert await try_acquire(rig, chat_id, admit=admit) is not None
    assert seen == [(State.R0, None)]


async def test_chat_that_is_leased_idle_invalid_or_gone_is_left_alone_without_asking_for_admission(rig: Rig) -> None:
    async def never(tx: Tx) -> bool:
        raise AssertionError("there is nothing to admit")

    leased = await rig.chat(State.R0)
    await rig.acquire(leased)
    targets = [leased, await rig.chat(State.W), await rig.chat(State.XE1)]
    broken = await rig.chat(State.R0)
    await rig.force(broken, "archived = true, archived_at = now()")
    targets.append(broken)
    rig.published.clear()

    for chat_id in targets:
        before = await rig.trace(chat_id)
        assert await try_acquire(rig, chat_id, admit=never) is None
        assert await rig.trace(chat_id) == before
    assert await try_acquire(rig, uuid4(), admit=never) is None
    assert rig.published.hints == []
    assert broken not in await list_candidates(rig)


@pytest.mark.parametrize("loss", ["stale heartbeat", "no heartbeat", "lost replica"])
async def test_chat_whose_lease_is_gone_is_taken_over(rig: Rig, loss: str) -> None:
    chat_id = await rig.chat(State.R0)
    async with rig.pool.acquire() as conn:
        old = await add_replica(conn)
    await rig.update(chat_id, lambda tx: machine.acquire(tx, worker_id=old, runner_id=uuid4()))
    assert await try_acquire(rig, chat_id) is None

    match loss:
        case "stale heartbeat":
            await age_heartbeats(rig, 31)
        case "no heartbeat":
            await rig.sql("DELETE FROM chat_heartbeats")
        case _:
            await rig.sql("DELETE FROM replicas WHERE id = $1", old)

    taken = await try_acquire(rig, chat_id)
    assert taken is not None
    assert taken.worker_id == rig.worker


# Scale


async def test_candidates_are_found_through_the_small_index_alone_among_many_idle_chats(
    rig: Rig, database_url: str
) -> None:
    parent = await rig.chat(State.R0)
    children = [await _child(rig, parent, state) for state in (State.I0, State.A0, State.R0)]
    superuser = await asyncpg.connect(database_url.replace("rookery@", "postgres@"))
    try:
        # Triggers and foreign keys off: the rows are what they would be, only sooner.
        await superuser.execute("SET session_replication_role = replica")
        await superuser.execute("DROP INDEX chats_label, chats_title")  # nothing here reads them; they cost seconds
        await superuser.execute(_ADD_IDLE, rig.user, rig.model, parent, 200_000)
        await superuser.execute(_ADD_BACKLOG, rig.user, rig.model, 5_000)
        await superuser.execute("ANALYZE chats")
        await superuser.execute("REINDEX INDEX chats_acquire")  # leaves the exact number of entries in pg_class
        entries = await superuser.fetchval("SELECT reltuples FROM pg_class WHERE oid = 'chats_acquire'::regclass")
        statement = ownership.LIST_CANDIDATES.replace("$1", "20")
        plan = json.loads(await superuser.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"))
        claims = [
            node
            for statement in capacity.LIST_CLAIMS.values()
            for node in _nodes(
                json.loads(await superuser.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"))[0]["Plan"]
            )
            if node.get("Relation Name") == "chats"
        ]
    finally:
        await superuser.close()

    assert entries == 1 + len(children) + 5_000
    nodes = list(_nodes(plan[0]["Plan"]))
    scans = [node for node in nodes if node.get("Relation Name") == "chats" or "Bitmap" in node["Node Type"]]
    by_key = [node for node in scans if node.get("Index Name") == "chats_pkey"]
    rest = [node for node in scans if node not in by_key]
    assert len(by_key) == 1, "the owners' chats at work, from their heartbeats"
    assert by_key[0]["Actual Loops"] <= 1
    # In each partition: the first owner, the next ones, and the oldest few of each.
    assert [node.get("Index Name") for node in rest] == ["chats_acquire"] * 18
    assert all("(parent_chat_id IS NULL)" in node["Index Cond"] for node in rest)
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in rest) <= 20, "a backlog is never read as a whole"
    found = await list_candidates(rig)
    assert [chat_id for chat_id in found if chat_id in children] == children
    # Who holds slots and who waits is found by the same index, and as cheaply.
    assert {node.get("Index Name") for node in claims} == {"chats_acquire", "chats_pkey"}
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in claims) <= 20


_ADD_IDLE = """
    INSERT INTO chats (owner_id, status, title, last_model_config_id, last_error, parent_chat_id, root_chat_id)
    SELECT $1, CASE WHEN n % 3 = 0 THEN 'error' ELSE 'waiting' END, 'idle', $2,
           CASE WHEN n % 3 = 0 THEN '{"message": "x"}'::jsonb END,
           CASE WHEN n % 2 = 0 THEN $3::uuid END, CASE WHEN n % 2 = 0 THEN $3::uuid END
      FROM generate_series(1, $4::int) AS n
"""
_ADD_BACKLOG = """
    INSERT INTO chats (owner_id, status, title, last_model_config_id, runnable_since)
    SELECT $1, 'running', 'busy', $2, clock_timestamp()
      FROM generate_series(1, $3::int) AS n
"""


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)
