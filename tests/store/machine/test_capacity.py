"""Capacity: two pools, slots that are leases, and admission that two workers cannot share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat import fair_share
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.fair_share import Use, WaitingChat
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Limits, Pool, PoolCounts, Slot, single_statement
from tests.store.machine.machine_rig import Rig
from tests.store.machine.transition_calls import SOMEBODY

ONE = Limits(running_roots=1, running_subagents=1)


async def take(rig: Rig, chat_id: UUID, limits: Limits = ONE) -> Chat | None:
    return await machine.try_acquire(
        rig.machine,
        chat_id,
        worker_id=rig.worker,
        runner_id=uuid4(),
        admit=lambda tx: machine.admit(tx, limits),
    )


async def counts(rig: Rig, limits: Limits = ONE) -> dict[Pool, PoolCounts]:
    async with rig.pool.acquire() as conn:
        return dict(await machine.count_pools(conn, limits=limits))


async def is_queued(rig: Rig, chat_id: ChatId, limits: Limits = ONE) -> bool:
    async with rig.pool.acquire() as conn:
        return await machine.is_queued_for_capacity(conn, chat_id, limits=limits)


async def age(rig: Rig, chat_id: ChatId) -> None:
    await rig.sql(
        "UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '31 s' WHERE chat_id = $1", chat_id
    )


async def test_pool_takes_as_many_as_its_limit_and_the_other_pool_does_not_count(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    child = await rig.child(first)

    assert await take(rig, first)
    assert await take(rig, second) is None
    assert await take(rig, child)


async def test_refusal_leaves_no_trace_and_no_hint(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    await take(rig, first)
    rig.published.clear()
    before = await rig.trace(second)

    assert await take(rig, second) is None

    assert await rig.trace(second) == before
    assert rig.published.hints == []


@pytest.mark.parametrize("state", [State.I0, State.I1, State.A0, State.A1])
async def test_interrupts_and_deadlines_are_admitted_into_a_full_pool(rig: Rig, state: State) -> None:
    await take(rig, await rig.chat(State.R0))

    assert await take(rig, await rig.chat(state))


async def test_chat_without_work_keeps_its_slot_until_it_is_left(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    await take(rig, first)
    await rig.update(first, machine.finish_turn)
    assert await take(rig, second) is None

    await rig.update(first, machine.leave)

    assert await take(rig, second)


async def test_takeover_needs_no_second_slot(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await take(rig, chat_id)
    await age(rig, chat_id)

    assert await take(rig, chat_id)


@pytest.mark.parametrize("loss", ["stale heartbeat", "lost replica"])
async def test_slot_of_a_dead_owner_is_free(rig: Rig, loss: str) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    await take(rig, first)
    if loss == "stale heartbeat":
        await age(rig, first)
    else:
        await rig.sql("DELETE FROM replicas")

    assert await take(rig, second)


async def test_zero_is_no_limit_and_needs_no_lock(rig: Rig) -> None:
    without = Limits(running_roots=0, running_subagents=0)
    chats = [await rig.chat(State.R0) for _ in range(25)]

    assert all([await take(rig, chat_id, without) for chat_id in chats])
    assert not await is_queued(rig, await rig.chat(State.R0), without)
    assert (await counts(rig, without))[Pool.ROOT] == PoolCounts(25, 0)


async def test_lowered_limit_evicts_no_chat_and_admits_none(rig: Rig) -> None:
    chats = [await rig.chat(State.R0) for _ in range(3)]
    for chat_id in chats:
        await take(rig, chat_id, Limits())

    assert (await counts(rig))[Pool.ROOT] == PoolCounts(3, 0)
    assert await take(rig, await rig.chat(State.R0)) is None


async def test_workers_that_race_for_the_last_slots_never_take_one_too_many(rig: Rig) -> None:
    chats = [await rig.chat(State.R0) for _ in range(12)]

    async with asyncio.timeout(20):
        taken = await asyncio.gather(*(take(rig, chat_id, Limits(running_roots=3)) for chat_id in chats))

    assert len([chat for chat in taken if chat]) == 3


async def test_only_what_would_run_is_queued_for_capacity(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    idle, stopping, child = await rig.chat(State.W), await rig.chat(State.I0), await rig.child(first)
    assert not await is_queued(rig, second), "the pool has room"

    await take(rig, first)

    assert await is_queued(rig, second)
    assert not any([await is_queued(rig, chat_id) for chat_id in (first, idle, stopping, child, ChatId(uuid4()))])


async def test_gauges_count_leases_and_waiting_chats_of_each_pool(rig: Rig) -> None:
    roots = [await rig.chat(State.R0) for _ in range(3)]
    children = [await rig.child(roots[0]) for _ in range(2)]
    assert await counts(rig) == {Pool.ROOT: PoolCounts(0, 0), Pool.SUBAGENT: PoolCounts(0, 0)}

    await take(rig, roots[0])
    await take(rig, children[0])

    assert await counts(rig) == {Pool.ROOT: PoolCounts(1, 2), Pool.SUBAGENT: PoolCounts(1, 1)}


# Fair share


async def add_owner(rig: Rig) -> UUID:
    found = await rig.value("INSERT INTO users (username) VALUES ($1) RETURNING id", f"user-{uuid4().hex}")
    assert isinstance(found, UUID)
    return found


async def take_at_once(rig: Rig, chat_id: UUID, limits: Limits) -> Chat | None:
    taken = await single_statement.take(
        rig.machine, {chat_id: uuid4()}, worker_id=rig.worker, limits=limits, has_peers=False
    )
    return taken[0].chat if taken else None


@pytest.mark.parametrize("road", [take, take_at_once])
async def test_one_slot_in_four_is_kept_for_owners_who_have_none(
    rig: Rig, road: Callable[[Rig, UUID, Limits], Awaitable[Chat | None]]
) -> None:
    """In both implementations, and in the rule of the domain."""
    owners = [await add_owner(rig) for _ in range(3)]
    chats = {owner: [await rig.create(owner_id=owner) for _ in range(9)] for owner in owners}
    for limit in (1, 4, 5, 8):
        held: Counter[UUID] = Counter()
        taken: list[ChatId] = []
        for owner in [owners[0]] * 7 + [owners[1]] * 2 + [owners[2]] * 2 + [owners[0]]:
            chat_id = chats[owner][held[owner]]

            won = await road(rig, chat_id, Limits(running_roots=limit))

            expected = fair_share.may_start(limit, Use(held.total(), len(held), held[owner]))
            assert (won is not None) is expected, (limit, held)
            if won is not None:
                held[owner] += 1
                taken.append(chat_id)
            held = +held
        assert held[owners[1]] >= (limit > 1)
        for chat_id in taken:
            await rig.update(chat_id, machine.leave)


async def test_chat_that_would_need_the_reserve_is_queued_for_capacity(rig: Rig) -> None:
    limits, other = Limits(running_roots=4), await add_owner(rig)
    mine, theirs = [await rig.create() for _ in range(4)], await rig.create(owner_id=other)
    for chat_id in mine[:3]:
        assert await take(rig, chat_id, limits)

    assert await is_queued(rig, mine[3], limits)
    assert not await is_queued(rig, theirs, limits)
    assert (await counts(rig, limits))[Pool.ROOT] == PoolCounts(3, 2)


async def crowd(rig: Rig, limits: Limits) -> tuple[list[ChatId], ChatId]:
    """An owner with three of four slots, a second owner with the last slot, and a waiting chat of a third owner."""
    mine = [await rig.create() for _ in range(3)]
    for chat_id in (*mine, await rig.create(owner_id=await add_owner(rig))):
        assert await take(rig, chat_id, limits)
    waiting = await rig.create(owner_id=await add_owner(rig))
    assert await take(rig, waiting, limits) is None
    return mine, waiting


async def receiver_of(rig: Rig, chat_id: ChatId, limits: Limits) -> WaitingChat | None:
    return await rig.update(chat_id, lambda tx: machine.find_receiver(tx, limits))


async def test_chat_gives_way_to_the_one_that_waits_and_keeps_its_place_and_its_work(rig: Rig) -> None:
    limits = Limits(running_roots=4)
    mine, waiting = await crowd(rig, limits)
    before, history = await rig.load(mine[0]), await rig.history(mine[0])
    receiver = await receiver_of(rig, mine[0], limits)
    assert receiver is not None
    assert receiver.chat_id == waiting
    rig.published.clear()

    await rig.run(mine[0], machine.give_way, to=receiver)

    after = await rig.load(mine[0])
    assert (after.worker_id, after.runner_id, after.state) == (None, None, State.R0)
    kept = ("runnable_since", "generation_attempt", "retry_state", "last_error", "history_version", "updated_at")
    assert all(getattr(after, name) == getattr(before, name) for name in kept)
    assert await rig.history(mine[0]) == history
    assert [hint.chat_id for hint in rig.published.ownership()] == [waiting], "only the other is called for"
    assert await rig.value("SELECT count(*) FROM chat_heartbeats WHERE chat_id = $1", mine[0]) == 0
    assert await take(rig, waiting, limits)
    assert await take(rig, mine[0], limits) is None, "its slot is the other's now"


async def test_no_chat_gives_way_after_the_other_runs(rig: Rig) -> None:
    limits = Limits(running_roots=4)
    mine, waiting = await crowd(rig, limits)
    async with rig.pool.acquire() as conn:
        assert await machine.find_donors(conn, limits) == {Slot(rig.user, Pool.ROOT)}
    receiver = await receiver_of(rig, mine[0], limits)
    assert receiver is not None
    await rig.run(mine[0], machine.give_way, to=receiver)
    await take(rig, waiting, limits)

    assert await receiver_of(rig, mine[1], limits) is None
    async with rig.pool.acquire() as conn:
        assert await machine.find_donors(conn, limits) == set()


async def test_subagents_share_their_own_pool(rig: Rig) -> None:
    limits = Limits(running_roots=0, running_subagents=4)
    other = await add_owner(rig)
    root, theirs = await rig.create(), await rig.create(owner_id=other)
    children = [await rig.child(root) for _ in range(4)]
    for chat_id in children[:3]:
        assert await take(rig, chat_id, limits)

    assert await take(rig, children[3], limits) is None
    assert await take(rig, await rig.child(theirs, owner_id=other), limits)


async def test_chat_without_an_owner_cannot_give_way(rig: Rig) -> None:
    chat_id = await rig.create()

    with pytest.raises(TransitionNotAllowed, match="No worker owns"):
        await rig.run(chat_id, machine.give_way, to=SOMEBODY)


async def test_last_slot_is_not_taken_from_an_owner_who_has_less_and_waits(rig: Rig) -> None:
    limits = Limits(running_roots=4)
    mine = [await rig.create() for _ in range(3)]
    for chat_id in (*mine[:2], await rig.create(owner_id=await add_owner(rig))):
        assert await take(rig, chat_id, limits)
    waiting = await rig.create(owner_id=await add_owner(rig))

    async with rig.pool.acquire() as conn, conn.transaction():
        # Another replica is about to take it.
        await conn.execute("SELECT FROM chats WHERE id = $1 FOR NO KEY UPDATE", waiting)
        assert await take(rig, waiting, limits) is None
        assert await take(rig, mine[2], limits) is None

    assert await take(rig, waiting, limits)
