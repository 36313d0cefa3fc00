"""Capacity: two pools, slots that are leases, and admission that two workers cannot share."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from rookery.chat.chats import Chat
from rookery.chat.messages import ChatId
from rookery.chat.states import State
from rookery.store import machine
from rookery.store.machine import Limits, Pool, PoolCounts
from tests.store.machine.rig import Rig

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


async def test_lowered_limit_evicts_nobody_and_admits_nobody(rig: Rig) -> None:
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
