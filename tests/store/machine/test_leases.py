"""Leases: one heartbeat for all chats, the reported losses, and the race with a takeover. Two runners never both
commit.
"""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.held_bundles import bundling, held, until_blocked
from tests.store.machine.machine_rig import Conn, Rig, add_replica, assistant, words

Key = tuple[UUID, UUID]


async def yes(tx: Tx) -> bool:
    return True


def key_of(chat_id: ChatId, fence: Fence) -> Key:
    return chat_id, fence.runner_id


async def beat(rig: Rig, *keys: Key) -> set[Key]:
    async with rig.pool.acquire() as conn:
        return await machine.renew_leases(conn, keys)


async def take(rig: Rig, chat_id: ChatId, worker_id: UUID) -> Chat | None:
    return await machine.try_acquire(rig.machine, chat_id, worker_id=worker_id, runner_id=uuid4(), admit=yes)


async def another_worker(rig: Rig) -> UUID:
    async with rig.pool.acquire() as conn:
        return await add_replica(conn)


async def owned_chats(rig: Rig, count: int) -> dict[ChatId, Fence]:
    """Running chats, all owned by the rig's worker."""
    chats = {chat_id: await rig.acquire(chat_id) for chat_id in [await rig.chat(State.R0) for _ in range(count)]}
    rig.published.clear()
    return chats


async def candidates(rig: Rig) -> set[ChatId]:
    async with rig.pool.acquire() as conn:
        return {candidate.chat_id for candidate in await machine.list_candidates(conn, 20)}


async def commits(rig: Rig, chat_id: ChatId, fence: Fence, said: str) -> bool:
    try:
        await rig.update(chat_id, lambda tx: machine.commit_step(tx, [assistant(said)]), fence=fence)
    except StaleFence:
        return False
    return True


# One beat


async def test_beat_renews_every_lease_and_moves_nothing_else(rig: Rig) -> None:
    chats = await owned_chats(rig, 3)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '60 s'")
    before = {chat_id: (await rig.trace(chat_id))[0] for chat_id in chats}
    keys = {key_of(*each) for each in chats.items()}

    assert await beat(rig, *keys) == keys

    assert {chat_id: (await rig.trace(chat_id))[0] for chat_id in chats} == before
    assert all([(await rig.load(chat_id)).leased for chat_id in chats])
    assert await rig.value("SELECT count(*) FROM chat_heartbeats") == 3
    assert rig.published.hints == []


async def test_renewal_without_runners_succeeds(rig: Rig) -> None:
    assert await beat(rig) == set()


async def test_lease_that_is_lost_does_not_come_back_and_costs_no_other(rig: Rig) -> None:
    kept, taken, left, deleted = chats = await owned_chats(rig, 4)
    await rig.acquire(taken)
    await rig.update(left, machine.abandon)
    await rig.update(deleted, machine.finish_turn)
    await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, deleted))
    stranger = (uuid4(), uuid4())

    held_still = await beat(rig, *(key_of(*each) for each in chats.items()), stranger)

    assert held_still == {key_of(kept, chats[kept])}


async def test_chat_deleted_while_the_beat_is_under_way_costs_no_other_lease(rig: Rig) -> None:
    gone, kept = chats = await owned_chats(rig, 2)
    await rig.update(gone, machine.finish_turn)
    await rig.sql("DELETE FROM chat_heartbeats")
    keys = [key_of(*each) for each in chats.items()]

    async with held(bundling(rig, lambda bundle: machine.delete_family(bundle, gone))) as deletion:
        beating = asyncio.ensure_future(beat(rig, *keys))
        await until_blocked(rig)
        await deletion.finish()
        held_still = await beating

    assert held_still == {key_of(kept, chats[kept])}
    assert (await rig.load(kept)).leased


async def test_beat_does_not_wait_for_a_transition(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)

    async with held(bundling(rig, lambda bundle: bundle.open(chat_id))):
        async with asyncio.timeout(5):
            assert await beat(rig, key_of(chat_id, chats[chat_id]))


# All leases deleted by hand


async def test_owner_whose_beat_comes_back_first_keeps_its_chats(rig: Rig) -> None:
    chats = await owned_chats(rig, 3)
    other = await another_worker(rig)
    await rig.sql("DELETE FROM chat_heartbeats")
    assert await candidates(rig) == set(chats)

    keys = {key_of(*each) for each in chats.items()}
    assert await beat(rig, *keys) == keys

    assert await candidates(rig) == set()
    assert [await take(rig, chat_id, other) for chat_id in chats] == [None] * 3
    assert all([await commits(rig, chat_id, fence, "went on") for chat_id, fence in chats.items()])


async def test_every_chat_without_a_lease_is_leased_again_or_taken_over_and_has_one_committer(rig: Rig) -> None:
    chats = await owned_chats(rig, 6)
    other = await another_worker(rig)
    first, rest = list(chats)[:3], list(chats)[3:]
    await rig.sql("DELETE FROM chat_heartbeats")

    taken = {chat_id: await take(rig, chat_id, other) for chat_id in first}
    held_still = await beat(rig, *(key_of(*each) for each in chats.items()))

    assert held_still == {key_of(chat_id, chats[chat_id]) for chat_id in rest}
    assert await candidates(rig) == set()
    assert all([(await rig.load(chat_id)).leased for chat_id in chats])
    for chat_id, old in chats.items():
        new = taken.get(chat_id)
        outcome = [
            await commits(rig, chat_id, old, "by the old owner"),
            new is not None and await commits(rig, chat_id, rig.fence(new), "by the new owner"),
        ]
        assert outcome == ([True, False] if chat_id in rest else [False, True])
        said = "by the old owner" if chat_id in rest else "by the new owner"
        assert [words(message) for message in await rig.history(chat_id)] == ["hello", said]


# The beat and a takeover at the same time


async def test_takeover_that_judged_before_the_beat_wins_and_the_next_beat_says_so(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)
    other, old = await another_worker(rig), chats[chat_id]
    await rig.sql("DELETE FROM chat_heartbeats")
    judged, go_on = asyncio.Event(), asyncio.Event()

    async def admit(tx: Tx) -> bool:
        judged.set()
        await go_on.wait()
        return True

    async with asyncio.timeout(10):
        taking = asyncio.ensure_future(
            machine.try_acquire(rig.machine, chat_id, worker_id=other, runner_id=uuid4(), admit=admit)
        )
        await judged.wait()
        assert await beat(rig, key_of(chat_id, old)) == {key_of(chat_id, old)}
        go_on.set()
        taken = await taking

    assert taken is not None
    assert not await commits(rig, chat_id, old, "by the old owner")
    assert await commits(rig, chat_id, rig.fence(taken), "by the new owner")
    assert await beat(rig, key_of(chat_id, old)) == set()


async def test_takeover_that_is_written_and_not_committed_wins_over_a_beat(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)
    other, old, runner_id = await another_worker(rig), chats[chat_id], uuid4()
    await rig.sql("DELETE FROM chat_heartbeats")

    async def acquire(bundle: machine.Bundle) -> Chat:
        return await machine.acquire(await bundle.open(chat_id), worker_id=other, runner_id=runner_id)

    async with held(bundling(rig, acquire)) as takeover:
        assert await beat(rig, key_of(chat_id, old)) == {key_of(chat_id, old)}
        taken = await takeover.finish()

    assert (await rig.load(chat_id)).runner_id == runner_id
    assert await beat(rig, key_of(chat_id, old), (chat_id, runner_id)) == {(chat_id, runner_id)}
    assert not await commits(rig, chat_id, old, "by the old owner")
    assert await commits(rig, chat_id, rig.fence(taken), "by the new owner")


async def test_beat_that_is_not_committed_does_not_hold_up_a_takeover_and_loses_to_it(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)
    other, old = await another_worker(rig), chats[chat_id]
    await rig.sql("DELETE FROM chat_heartbeats")

    async with rig.pool.acquire() as conn, asyncio.timeout(10):
        taken = await _take_during_a_beat(rig, conn, chat_id, old=old, other=other)

    assert await beat(rig, key_of(chat_id, old)) == set()
    assert not await commits(rig, chat_id, old, "by the old owner")
    assert await commits(rig, chat_id, rig.fence(taken), "by the new owner")
    assert (await rig.load(chat_id)).leased


async def test_beat_that_is_committed_keeps_a_takeover_out(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)
    other, old = await another_worker(rig), chats[chat_id]
    await rig.sql("DELETE FROM chat_heartbeats")
    listed = await candidates(rig)  # looked at before the beat, tried after it

    await beat(rig, key_of(chat_id, old))
    taken = [await take(rig, candidate, other) for candidate in listed]

    assert taken == [None]
    assert await commits(rig, chat_id, old, "by the old owner")


async def _take_during_a_beat(rig: Rig, conn: Conn, chat_id: ChatId, *, old: Fence, other: UUID) -> Chat:
    async with conn.transaction():
        assert await machine.renew_leases(conn, [key_of(chat_id, old)])
        taken = await take(rig, chat_id, other)
    assert taken is not None
    return taken


async def test_stale_owner_learns_of_its_loss_from_its_fence_before_its_beat(rig: Rig) -> None:
    (chat_id,) = chats = await owned_chats(rig, 1)
    await rig.sql("DELETE FROM chat_heartbeats")
    await take(rig, chat_id, await another_worker(rig))

    with pytest.raises(StaleFence) as refusal:
        await rig.update(chat_id, machine.finish_turn, fence=chats[chat_id])

    assert refusal.value.field == "worker_id"
