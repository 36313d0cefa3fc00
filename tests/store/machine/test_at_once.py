"""Transitions in one statement do what their bundles do, or nothing; where they do nothing the bundle is asked."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import msgspec
import pytest

from rookery.chat.chats import Chat, Fence
from rookery.chat.messages import ChatId
from rookery.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx, at_once
from rookery.store.machine.capacity import Limits
from tests.store.machine.rig import CREATED_STATES, Rig, add_replica

UNLIMITED = Limits(running_roots=0, running_subagents=0)
MAX_ATTEMPTS = 25


async def yes(tx: Tx) -> bool:
    return True


async def take_free(rig: Rig, chat_id: ChatId, runner_id: UUID, limits: Limits = UNLIMITED) -> Chat | None:
    return await at_once.take_free(rig.machine, chat_id, worker_id=rig.worker, runner_id=runner_id, limits=limits)


async def try_acquire(rig: Rig, chat_id: ChatId, runner_id: UUID) -> Chat | None:
    return await machine.try_acquire(rig.machine, chat_id, worker_id=rig.worker, runner_id=runner_id, admit=yes)


def alike(chat: Chat) -> Chat:
    """Without what two chats that were made one after the other may not share."""
    moments = {name: None for name in Chat.__struct_fields__ if name.endswith(("_at", "_since"))}
    return msgspec.structs.replace(chat, id=UUID(int=0), **moments)


async def hinted(rig: Rig) -> list[str]:
    kinds = sorted(type(hint).__name__ for hint in rig.published.hints)
    rig.published.clear()
    return kinds


async def test_free_chat_is_taken_exactly_where_the_bundle_takes_it(rig: Rig) -> None:
    taken = set()
    for state in CREATED_STATES:
        here, there, runner_id = await rig.chat(state), await rig.chat(state), uuid4()
        before = await rig.load(here)

        short, by_short = await take_free(rig, here, runner_id), await hinted(rig)
        long, by_long = await try_acquire(rig, there, runner_id), await hinted(rig)

        assert (short is None) == (long is None), state
        assert by_short == by_long, state
        assert alike(await rig.load(here)) == alike(await rig.load(there)), state
        if short is None or long is None:
            assert await rig.load(here) == before, state
            continue
        taken.add(state)
        assert alike(short) == alike(long), state
        assert short.leased
        beats = await rig.value("SELECT count(*) FROM chat_heartbeats WHERE runner_id = $1", runner_id)
        assert beats == 2
    assert taken == {state for state in CREATED_STATES if state.is_runnable}


async def test_chat_that_somebody_owns_or_works_at_is_left_to_the_bundle(rig: Rig) -> None:
    owned = await rig.chat(State.R0)
    await rig.acquire(owned)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '1 hour'")
    assert await take_free(rig, owned, uuid4()) is None

    locked = await rig.chat(State.R0)
    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM chats WHERE id = $1 FOR NO KEY UPDATE", locked)
        async with asyncio.timeout(30):
            assert await take_free(rig, locked, uuid4()) is None
    assert await take_free(rig, locked, uuid4()) is not None


async def test_full_pool_and_peers_leave_a_chat_to_the_bundle(rig: Rig) -> None:
    limits = Limits(running_roots=1, running_subagents=1)
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    child = await rig.child(first)
    interrupting = await rig.chat(State.I0)

    assert await take_free(rig, first, uuid4(), limits) is not None
    assert await take_free(rig, second, uuid4(), limits) is None
    assert await take_free(rig, child, uuid4(), limits) is not None, "the pools do not share their slots"
    assert await take_free(rig, interrupting, uuid4(), limits) is not None, "who has to stop needs no slot"

    # With peers the slots are counted under the lock of their pool, which one statement does not have.
    async with rig.pool.acquire() as conn:
        await add_replica(conn)
    roomy = Limits(running_roots=9, running_subagents=9)
    assert await take_free(rig, second, uuid4(), roomy) is None
    assert await take_free(rig, second, uuid4(), UNLIMITED) is not None


async def test_attempt_is_counted_as_the_bundle_counts_it(rig: Rig) -> None:
    here, there = await rig.chat(State.R1), await rig.chat(State.R1)
    fence_here, fence_there = await rig.acquire(here), await rig.acquire(there)
    await hinted(rig)
    for number in (1, 2):
        chat = await at_once.count_attempt(rig.machine, here, fence=fence_here, max_attempts=2)
        by_short = await hinted(rig)
        counted = await rig.update(there, machine.record_generation_attempt, fence=fence_there)

        assert chat is not None
        assert (chat.generation_attempt, counted) == (number, number)
        assert by_short == await hinted(rig)
        worker, runner = chat.worker_id, chat.runner_id
        other = msgspec.structs.replace(await rig.load(there), worker_id=worker, runner_id=runner)
        assert alike(await rig.load(here)) == alike(other)

    assert await at_once.count_attempt(rig.machine, here, fence=fence_here, max_attempts=2) is None
    assert (await rig.load(here)).generation_attempt == 2


@pytest.mark.parametrize("stale", ["worker", "runner", "history", "status"])
async def test_attempt_of_who_lost_the_fence_is_not_counted(rig: Rig, stale: str) -> None:
    chat_id = await rig.chat(State.R0)
    fence: Fence = await rig.acquire(chat_id)
    match stale:
        case "worker":
            fence = msgspec.structs.replace(fence, worker_id=uuid4())
        case "runner":
            fence = msgspec.structs.replace(fence, runner_id=uuid4())
        case "history":
            fence = msgspec.structs.replace(fence, history_version=fence.history_version + 1)
        case "status":
            await rig.run(chat_id, machine.interrupt)
    before = await rig.load(chat_id)
    rig.published.clear()

    assert await at_once.count_attempt(rig.machine, chat_id, fence=fence, max_attempts=MAX_ATTEMPTS) is None
    assert await rig.load(chat_id) == before
    assert rig.published.hints == []
