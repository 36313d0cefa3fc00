"""Transitions in a single statement have the effect of their bundles, or none; without an effect, the bundle runs."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import msgspec
import pytest

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.messages import ChatId, Message
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx, single_statement
from rookery.store.machine.capacity import Limits
from tests.store.machine.machine_rig import CREATED_STATES, Rig, add_replica, assistant, call, calling, result
from tests.store.machine.test_query_plans import fill, scans_of_messages

UNLIMITED = Limits(running_roots=0, running_subagents=0)
MAX_ATTEMPTS = 25


async def yes(tx: Tx) -> bool:
    return True


async def take_free(rig: Rig, chat_id: ChatId, runner_id: UUID, limits: Limits = UNLIMITED) -> Chat | None:
    return await single_statement.take_free(
        rig.machine, chat_id, worker_id=rig.worker, runner_id=runner_id, limits=limits
    )


async def try_acquire(rig: Rig, chat_id: ChatId, runner_id: UUID) -> Chat | None:
    return await machine.try_acquire(rig.machine, chat_id, worker_id=rig.worker, runner_id=runner_id, admit=yes)


def alike(chat: Chat) -> Chat:
    """Return the chat without the values that differ between two chats that were created one after the other."""
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


async def test_chat_with_an_owner_or_a_lock_is_left_to_the_bundle(rig: Rig) -> None:
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
        chat = await single_statement.count_attempt(rig.machine, here, fence=fence_here, max_attempts=2)
        by_short = await hinted(rig)
        counted = await rig.update(there, machine.record_generation_attempt, fence=fence_there)

        assert chat is not None
        assert (chat.generation_attempt, counted) == (number, number)
        assert by_short == await hinted(rig)
        worker, runner = chat.worker_id, chat.runner_id
        other = msgspec.structs.replace(await rig.load(there), worker_id=worker, runner_id=runner)
        assert alike(await rig.load(here)) == alike(other)

    assert await single_statement.count_attempt(rig.machine, here, fence=fence_here, max_attempts=2) is None
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

    assert await single_statement.count_attempt(rig.machine, chat_id, fence=fence, max_attempts=MAX_ATTEMPTS) is None
    assert await rig.load(chat_id) == before
    assert rig.published.hints == []


# Sending


async def send(
    rig: Rig, chat_id: ChatId, words: str = "and now?", **fields: object
) -> single_statement.SentAtRest | None:
    message = rig.message(words, **{"model_config_id": rig.model, **fields})
    return await single_statement.send_at_rest(
        rig.machine, chat_id, message, owner_id=rig.user, busy=BusyBehavior.QUEUE
    )


def said(message: Message) -> Message:
    """Return the message without the values that differ between two messages."""
    return msgspec.structs.replace(message, id=0, chat_id=UUID(int=0), created_at=None)


async def answered(rig: Rig) -> ChatId:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hello"))
    await rig.run(chat_id, machine.finish_turn)
    return chat_id


async def test_message_is_sent_at_once_where_the_chat_rests_and_as_by_the_bundle(rig: Rig) -> None:
    taken = set()
    for state in CREATED_STATES:
        here, there = await rig.chat(state), await rig.chat(state)
        before = await rig.load(here)
        rig.published.clear()

        short = await send(rig, here, client_id="c1", reasoning_effort="high")

        if short is None:
            assert await rig.load(here) == before, state
            assert rig.published.hints == [], state
            continue
        taken.add(state)
        by_short = await hinted(rig)
        long = await rig.send(there, "and now?", model_config_id=rig.model, client_id="c1", reasoning_effort="high")
        assert by_short == await hinted(rig), state
        assert alike(short.chat) == alike(await rig.load(here)) == alike(await rig.load(there)), state
        assert short.chat.state is State.R0
        assert said(short.message) == said(long.inserted[-1])
        stored = (await rig.history(here))[-1]
        assert (stored.id, stored.revision, stored.created_at) == (
            short.message.id,
            short.message.revision,
            short.message.created_at,
        )
        index = "SELECT count(*) FROM chat_message_search WHERE message_id = $1"
        assert await rig.value(index, short.message.id) == 1
    assert taken == {State.W}


async def test_answered_chat_goes_on_with_the_model_it_may_keep(rig: Rig) -> None:
    kept, lost = await answered(rig), await answered(rig)
    message = rig.message("go on")

    short = await single_statement.send_at_rest(
        rig.machine, kept, message, owner_id=rig.user, busy=BusyBehavior.QUEUE, kept=[rig.model]
    )
    none = await single_statement.send_at_rest(
        rig.machine, lost, message, owner_id=rig.user, busy=BusyBehavior.QUEUE, kept=[uuid4()]
    )

    assert short is not None
    assert short.message.model_config_id == rig.model == (await rig.history(kept))[-1].model_config_id
    assert none is None
    assert await rig.state(lost) is State.W


async def test_chat_of_another_user_is_not_changed(rig: Rig) -> None:
    chat_id = await answered(rig)
    before = await rig.load(chat_id)
    message = rig.message("mine", model_config_id=rig.model)

    sent = await single_statement.send_at_rest(rig.machine, chat_id, message, owner_id=uuid4(), busy=BusyBehavior.QUEUE)

    assert sent is None
    assert await rig.load(chat_id) == before


async def test_repeat_is_left_to_the_bundle(rig: Rig) -> None:
    chat_id = await answered(rig)
    assert await send(rig, chat_id, client_id="c1") is not None
    await rig.commit(chat_id, assistant("done"))
    await rig.run(chat_id, machine.finish_turn)

    assert await send(rig, chat_id, client_id="c1") is None
    assert (await rig.send(chat_id, "and now?", client_id="c1")).repeats is not None
    assert await send(rig, chat_id, client_id="c2") is not None


async def test_chat_with_an_open_call_is_left_to_the_bundle_which_answers_it(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("c1")))
    await rig.sql("UPDATE chats SET snapshot_version = snapshot_version + 1, status = 'waiting' WHERE id = $1", chat_id)
    assert await send(rig, chat_id) is None

    sent = await rig.send(chat_id, "and now?")
    assert len(sent.inserted) == 2, "a result for the call, then the message"


async def test_turn_that_ended_with_a_result_is_left_to_the_bundle(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("c1")))
    await rig.commit(chat_id, result("c1"))
    await rig.run(chat_id, machine.finish_turn)

    assert await send(rig, chat_id) is None
    assert len((await rig.send(chat_id, "and now?")).inserted) == 1


async def test_locked_chat_is_neither_waited_for_nor_sent_to(rig: Rig) -> None:
    chat_id = await answered(rig)
    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM chats WHERE id = $1 FOR NO KEY UPDATE", chat_id)
        async with asyncio.timeout(30):
            assert await send(rig, chat_id) is None

    driven = await rig.create()
    await rig.acquire(driven)
    await rig.commit(driven, assistant("hello"))
    await rig.run(driven, machine.finish_turn)
    assert await send(rig, driven) is None, "its runner has not left yet"


async def test_of_many_messages_at_once_one_starts_the_turn(rig: Rig) -> None:
    chat_id = await answered(rig)

    many = await asyncio.gather(*(send(rig, chat_id, f"number {number}") for number in range(6)))

    assert sum(each is not None for each in many) == 1
    assert [row.role for row in await rig.history(chat_id)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_sending_touches_only_the_last_row_of_a_long_chat(rig: Rig, mode: str) -> None:
    old = await rig.create()
    await fill(rig, old, 4_000)
    await rig.run(old, machine.finish_turn)
    for _ in range(20):
        await fill(rig, await rig.create(), 300)
    types = "uuid, text, text, boolean, jsonb, smallint, uuid, uuid, text, text, text, uuid, uuid[]"
    values = (
        f"'{old}', 'user', 'both', false, '[]', 1, '{rig.user}', '{rig.model}', NULL, 'c1', NULL, '{rig.user}', '{{}}'"
    )

    for is_analyzed in (False, True):
        if is_analyzed:
            await rig.sql("ANALYZE chat_messages")
        async with rig.pool.acquire() as conn:
            sending = conn.transaction()
            await sending.start()
            await conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
            await conn.execute(f"PREPARE sending ({types}) AS {single_statement.SEND_AT_REST}")
            found = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE sending ({values})")
            await conn.execute("DEALLOCATE sending")
            await sending.rollback()

        plan = json.loads(found)[0]["Plan"]
        assert plan["Actual Rows"] == 1
        touched = sum(
            (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"]
            for scan in scans_of_messages(plan)
        )
        assert touched <= 3, plan
