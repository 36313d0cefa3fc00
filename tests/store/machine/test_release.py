"""Release of chats: by one runner, by a process, and by the sweep; and the worker's reads of its chats."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.db.hints import OwnershipHint
from rookery.store.machine import ChatState
from tests.store.machine.held_bundles import bundling, held
from tests.store.machine.machine_rig import Rig, assistant


async def beats(rig: Rig) -> object:
    return await rig.value("SELECT count(*) FROM chat_heartbeats")


async def try_abandon(rig: Rig, chat_id: UUID, worker_id: UUID, runner_id: UUID) -> bool:
    return bool(await machine.try_abandon(rig.machine, chat_id, worker_id=worker_id, runner_id=runner_id))


# One runner


async def test_runner_that_leaves_takes_its_heartbeat_with_it_and_no_other(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.acquire(chat_id)
    await rig.acquire(chat_id)

    chat = await rig.update(chat_id, machine.leave)

    assert (chat.worker_id, chat.runner_id) == (None, None)
    assert await beats(rig) == 1  # that of the runner before
    with pytest.raises(TransitionNotAllowed):
        await rig.update(chat_id, machine.leave)


@pytest.mark.parametrize("state", [State.R0, State.I1, State.W, State.XW])
async def test_chat_that_will_not_be_run_is_abandoned_in_any_state(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state)
    fence = await rig.acquire(chat_id)
    rig.published.clear()

    assert await try_abandon(rig, chat_id, fence.worker_id, fence.runner_id)

    assert (await rig.load(chat_id)).runner_id is None
    assert await beats(rig) == 0
    assert bool(rig.published.ownership()) is state.is_runnable


async def test_chat_of_another_runner_is_not_abandoned(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    old = await rig.acquire(chat_id)
    new = await rig.acquire(chat_id)
    before = await rig.trace(chat_id)
    rig.published.clear()

    assert not await try_abandon(rig, chat_id, old.worker_id, old.runner_id)
    assert not await try_abandon(rig, chat_id, uuid4(), new.runner_id)
    assert not await try_abandon(rig, uuid4(), old.worker_id, old.runner_id)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


# A whole process


async def test_process_that_ends_releases_its_chats_and_asks_for_owners_of_those_that_run(rig: Rig) -> None:
    running, idle, taken, kept = [await rig.chat(State.R0) for _ in range(4)]
    fences = {chat_id: await rig.acquire(chat_id) for chat_id in (running, idle, taken, kept)}
    await rig.update(idle, machine.finish_turn)
    await rig.acquire(taken)
    keys = [(chat_id, fences[chat_id].runner_id) for chat_id in (running, idle, taken)]
    before = await rig.load(running)

    async with rig.pool.acquire() as conn:
        hints = await machine.release_leases(conn, [*keys, (uuid4(), uuid4())])

    assert hints == [OwnershipHint(chat_id=running, snapshot_version=before.snapshot_version)]
    assert [await held_by(rig, chat_id) for chat_id in (running, idle, taken, kept)] == [False, False, True, True]
    # The owner is still written: what was under way may commit until somebody acquires.
    await rig.update(running, lambda tx: machine.commit_step(tx, [assistant("done")]), fence=fences[running])


async def held_by(rig: Rig, chat_id: ChatId) -> bool:
    return (await rig.load(chat_id)).leased


async def test_heartbeats_of_runners_that_are_through_are_deleted_one_by_one(rig: Rig) -> None:
    first, second = await rig.chat(State.R0), await rig.chat(State.R0)
    fence = await rig.acquire(first)
    await rig.acquire(second)

    async with rig.pool.acquire() as conn:
        await machine.delete_leases(conn, [(first, fence.runner_id), (uuid4(), uuid4())])
        await machine.delete_leases(conn, [])

    assert await beats(rig) == 1


# The sweeper


async def test_sweep_removes_what_is_older_than_a_lease(rig: Rig) -> None:
    stale, fresh = await rig.chat(State.R0), await rig.chat(State.R0)
    await rig.acquire(stale)
    await rig.acquire(fresh)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - lease_ttl() WHERE chat_id = $1", stale)

    async with rig.pool.acquire() as conn:
        assert await machine.sweep_leases(conn) == 1
        assert await machine.sweep_leases(conn) == 0

    assert await held_by(rig, fresh)


async def test_sweep_keeps_beats_that_the_longest_lease_of_any_replica_still_covers(rig: Rig) -> None:
    await rig.acquire(await rig.chat(State.R0))
    await rig.sql("UPDATE replicas SET lease_ttl = interval '2 minutes'")
    async with rig.pool.acquire() as conn:
        await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '100 s'")
        assert await machine.sweep_leases(conn) == 0
        await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '120 s'")
        assert await machine.sweep_leases(conn) == 1


async def test_sweep_does_not_wait_for_a_chat_that_is_being_deleted(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    await rig.acquire(chat_id)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = heartbeat_at - interval '1 h'")

    deletion = bundling(rig, lambda bundle: machine.delete_family(bundle, chat_id))
    async with held(deletion), rig.pool.acquire() as conn:
        assert await machine.sweep_leases(conn) == 0


# States


async def test_states_of_many_chats_come_by_one_query_without_those_that_are_gone(rig: Rig) -> None:
    chats = [await rig.chat(state) for state in (State.R0, State.A0, State.XW)]
    await rig.acquire(chats[0])

    async with rig.pool.acquire() as conn:
        found = await machine.states_of(conn, [*chats, uuid4()])

    assert found == {chat_id: ChatState.of(await rig.load(chat_id)) for chat_id in chats}
    assert found[chats[1]].requires_action_deadline_at is not None


async def test_state_that_a_hint_tells_is_the_committed_one(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.acquire(chat_id)

    (hint,) = rig.published.chats()

    assert ChatState.from_hint(hint) == ChatState.of(await rig.load(chat_id))
