"""Transitions in a single statement have the effect of their bundles, or none; without an effect, the bundle runs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec
import pytest

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.messages import ChatId, Message, NewMessage, StepFigures
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx, single_statement
from rookery.store.machine.capacity import Limits
from rookery.store.machine.ownership import Takeover
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource, record_call
from tests.store.machine.machine_rig import CREATED_STATES, Rig, add_replica, assistant, call, calling, result
from tests.store.machine.test_query_plans import fill, scans_of_messages

UNLIMITED = Limits(running_roots=0, running_subagents=0)
MAX_ATTEMPTS = 25


async def yes(tx: Tx) -> bool:
    return True


async def take(
    rig: Rig, *chat_ids: ChatId, limits: Limits = UNLIMITED, has_peers: bool = False
) -> list[single_statement.Taken]:
    wanted: dict[UUID, UUID] = {chat_id: uuid4() for chat_id in chat_ids}
    return await single_statement.take(rig.machine, wanted, worker_id=rig.worker, limits=limits, has_peers=has_peers)


async def take_free(
    rig: Rig, chat_id: ChatId, runner_id: UUID, limits: Limits = UNLIMITED, *, has_peers: bool = False
) -> Chat | None:
    taken = await single_statement.take(
        rig.machine, {chat_id: runner_id}, worker_id=rig.worker, limits=limits, has_peers=has_peers
    )
    return taken[0].chat if taken else None


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


async def test_chat_with_a_lease_or_a_lock_is_not_taken(rig: Rig) -> None:
    owned = await rig.chat(State.R0)
    await rig.acquire(owned)
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

    # With peers the slots are counted under the locks of the pools, which a statement by itself does not have.
    async with rig.pool.acquire() as conn:
        await add_replica(conn)
    roomy = Limits(running_roots=9, running_subagents=9)
    assert await take_free(rig, second, uuid4(), roomy) is None
    assert await take_free(rig, second, uuid4(), roomy, has_peers=True) is not None
    third = await rig.chat(State.R0)
    assert await take_free(rig, third, uuid4(), UNLIMITED) is not None


@pytest.mark.parametrize(("is_gone", "reason"), [(True, Takeover.LOCK_GONE), (False, Takeover.LEASE)])
async def test_chats_of_a_dead_owner_are_taken_over_together(rig: Rig, is_gone: bool, reason: Takeover) -> None:
    async with rig.pool.acquire() as conn:
        peer = await add_replica(conn)
    owned, runner_id = [await rig.chat(State.R0) for _ in range(3)], uuid4()
    for chat_id in owned:
        await rig.run(chat_id, machine.acquire, worker_id=peer, runner_id=runner_id)
    assert await take(rig, *owned) == []
    if is_gone:
        await rig.sql("DELETE FROM replicas WHERE id = $1", peer)
    else:
        await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '1 hour'")

    taken = await take(rig, *owned)

    assert {each.chat.id for each in taken} == set(owned)
    assert {each.takeover for each in taken} == {reason}
    assert all(each.chat.worker_id == rig.worker and each.chat.leased for each in taken)


async def test_lease_that_another_replica_takes_meanwhile_is_respected(rig: Rig) -> None:
    """The statement begins before the takeover by the peer commits, and ends after it."""
    chat_id = await rig.chat(State.R0)
    await rig.acquire(chat_id)
    await rig.sql("DELETE FROM chat_heartbeats")
    async with rig.pool.acquire() as conn:
        peer = await add_replica(conn)

    results = await asyncio.gather(
        *(
            single_statement.take(rig.machine, {chat_id: uuid4()}, worker_id=worker, limits=UNLIMITED, has_peers=False)
            for worker in (rig.worker, peer) * 10
        )
    )

    assert sum(map(len, results)) == 1


@pytest.mark.parametrize("has_peers", [False, True])
async def test_chats_are_taken_together_only_if_there_is_room_for_all(rig: Rig, has_peers: bool) -> None:
    if has_peers:
        async with rig.pool.acquire() as conn:
            await add_replica(conn)
    chats = [await rig.chat(State.R0) for _ in range(4)]
    stopping, resting = await rig.chat(State.I0), await rig.chat(State.W)

    taken = await take(rig, *chats, stopping, limits=Limits(running_roots=4), has_peers=has_peers)
    assert [each.chat.id for each in taken] == [stopping], "one slot in four is reserved"
    await hinted(rig)

    roomy = Limits(running_roots=8)
    taken = await take(rig, *chats, resting, limits=roomy, has_peers=has_peers)
    assert {each.chat.id for each in taken} == set(chats)
    assert await hinted(rig) == ["ChatHint"] * 4
    assert {each.takeover for each in taken} == {None}


# Ending a turn


def bill(rig: Rig, chat_id: ChatId) -> Entry:
    return Entry(
        owner_id=rig.user,
        chat_id=chat_id,
        purpose="turn",
        provider_id=uuid4(),
        model_config_id=rig.model,
        model="m",
        key_source=KeySource.CENTRAL,
        status=CallStatus.OK,
        output_tokens=20,
        runtime_ms=30,
        at=datetime.now(UTC),
    )


async def end_turn(
    rig: Rig, chat_id: ChatId, fence: Fence, label: str | None = None
) -> single_statement.EndedTurn | None:
    return await single_statement.end_turn(
        rig.machine, chat_id, answer(rig), bill(rig, chat_id), fence=fence, label=label
    )


def answer(rig: Rig) -> NewMessage:
    return assistant("hello", model_config_id=rig.model, figures=StepFigures(output_tokens=20, finish_reason="stop"))


async def attempt(rig: Rig, chat_id: ChatId) -> Fence:
    """Acquire the chat and count an attempt. Returns the fence of that attempt."""
    fence = await rig.acquire(chat_id)
    number = await rig.update(chat_id, machine.record_generation_attempt, fence=fence)
    rig.published.clear()
    return msgspec.structs.replace(fence, generation_attempt=number)


async def test_turn_ends_in_one_statement_as_by_three_transitions(rig: Rig) -> None:
    here, there = await rig.create(), await rig.create()
    fence, other = await attempt(rig, here), await attempt(rig, there)

    async def step_by_step(tx: Tx) -> Message:
        committed = await machine.commit_step(tx, [answer(rig)])
        await machine.finish_turn(tx)
        await machine.leave(tx)
        await record_call(tx.conn, msgspec.structs.replace(bill(rig, there), message_id=committed.inserted[0].id))
        return committed.inserted[0]

    ended, by_short = await end_turn(rig, here, fence, label="Finished"), await hinted(rig)
    long, by_long = await rig.update(there, step_by_step, fence=other), await hinted(rig)

    assert ended is not None
    assert by_short == by_long
    assert alike(ended.chat) == alike(await rig.load(here)) == alike(await rig.load(there))
    assert (ended.chat.state, ended.chat.runner_id, ended.chat.leased) == (State.W, None, False)
    assert said(ended.answer) == said(long)
    stored = (await rig.history(here))[-1]
    assert (stored.id, stored.revision, stored.created_at) == (
        ended.answer.id,
        ended.answer.revision,
        ended.answer.created_at,
    )
    assert await rig.value("SELECT count(*) FROM chat_heartbeats") == 0
    assert await rig.value("SELECT count(*) FROM model_usage WHERE message_id = $1", ended.answer.id) == 1
    ledger = "SELECT to_jsonb(u) - '{id,chat_id,root_chat_id,message_id,provider_id,at}'::text[] FROM model_usage u"
    async with rig.pool.acquire() as conn:
        first, second = [record[0] for record in await conn.fetch(ledger)]
    assert first == second
    assert await rig.value("SELECT count(*) FROM chat_message_search WHERE message_id = $1", ended.answer.id) == 1
    assert (await rig.columns(here))["last_turn_summary"] == "Finished"
    assert (await rig.columns(there))["last_turn_summary"] is None


async def test_turn_that_does_not_end_is_left_to_the_bundle(rig: Rig) -> None:
    queued = await rig.create()
    fence = await attempt(rig, queued)
    await rig.send(queued, "and then?")
    assert await end_turn(rig, queued, fence) is None

    summarised = await rig.chat(State.W)
    await rig.run(summarised, machine.request_compaction)
    assert await end_turn(rig, summarised, await attempt(rig, summarised)) is None

    for chat_id in (queued, summarised):
        assert all(row.role != "assistant" for row in await rig.history(chat_id))
        assert (await rig.load(chat_id)).runner_id is not None
    assert await rig.value("SELECT count(*) FROM chat_heartbeats") == 2
    assert await rig.value("SELECT count(*) FROM model_usage") == 0


@pytest.mark.parametrize("stale", ["worker_id", "runner_id", "history_version", "generation_attempt", "status"])
async def test_turn_of_who_lost_the_fence_is_not_ended(rig: Rig, stale: str) -> None:
    chat_id = await rig.create()
    fence = await attempt(rig, chat_id)
    if stale == "status":
        await rig.run(chat_id, machine.interrupt)
    else:
        value = uuid4() if stale.endswith("_id") else getattr(fence, stale) + 1
        fence = msgspec.structs.replace(fence, **{stale: value})
    before = await rig.trace(chat_id)
    rig.published.clear()

    assert await end_turn(rig, chat_id, fence) is None
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_message_and_the_end_of_the_turn_are_put_in_order(rig: Rig) -> None:
    for _ in range(10):
        chat_id = await rig.create()
        fence = await attempt(rig, chat_id)

        ended, _ = await asyncio.gather(end_turn(rig, chat_id, fence), rig.send(chat_id, "and then?"))

        state = await rig.state(chat_id)
        assert state is (State.R1 if ended is None else State.R0)
        assert len(await rig.history(chat_id)) == (1 if ended is None else 3)


# Counting attempts


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
