"""Bundles: one version and one hint per chat, all or nothing, and retried after a lock timeout."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound, InvariantViolation, StaleFence, TransitionNotAllowed
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.hints import ChatHint, OwnershipHint, WatchHint, WatchKind
from rookery.store.machine import Bundle, Tx
from tests.store.machine.held_bundles import held, in_order, until_blocked, updating
from tests.store.machine.machine_rig import Rig, assistant

ALL_STATES = [state for state in State if state not in (State.N, State.INVALID)]


async def nothing(tx: Tx) -> None:
    """An empty callback."""


def final_hint(chat: Chat) -> ChatHint:
    return ChatHint(
        chat_id=chat.id,
        snapshot_version=chat.snapshot_version,
        history_version=chat.history_version,
        queue_version=chat.queue_version,
        retry_state_version=chat.retry_state_version,
        generation_attempt=chat.generation_attempt,
        status=chat.status,
        archived=chat.archived,
        worker_id=chat.worker_id,
        runner_id=chat.runner_id,
    )


# One version, one announcement


async def test_empty_bundle_bumps_the_version_once_and_announces_once_in_every_state(rig: Rig) -> None:
    for state in ALL_STATES:
        chat_id = await rig.chat(state)
        before = await rig.load(chat_id)

        await rig.update(chat_id, nothing)

        after = await rig.load(chat_id)
        assert after.snapshot_version == before.snapshot_version + 1
        assert (after.history_version, after.queue_version) == (before.history_version, before.queue_version)
        assert after.updated_at == before.updated_at
        assert rig.published.chats() == [final_hint(after)]
        assert bool(rig.published.ownership()) is state.is_runnable
        assert rig.published.watch() == []


async def test_bundle_of_several_transitions_shares_one_version_and_announces_the_final_values(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    before = await rig.load(chat_id)

    async def step_and_finish(tx: Tx) -> None:
        await machine.record_generation_attempt(tx)
        await machine.commit_step(tx, [assistant("done")])
        await machine.finish_turn(tx)
        await machine.commit_step(tx, [assistant("done again")])
        await machine.finish_turn(tx)

    await rig.update(chat_id, step_and_finish)

    after = await rig.load(chat_id)
    version = before.snapshot_version + 1
    assert (after.snapshot_version, after.history_version, after.queue_version) == (version, version, version)
    assert {m.revision for m in await rig.history(chat_id) if m.revision > before.snapshot_version} == {version}
    assert rig.published.chats() == [final_hint(after)]
    assert [hint.kind for hint in rig.published.watch()] == [WatchKind.STATUS]
    assert after.state is State.W


async def test_opening_the_chat_again_in_one_bundle_shares_version_and_row(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.load(chat_id)

    async def twice(bundle: Bundle) -> None:
        outer = await bundle.open(chat_id)
        await machine.finish_turn(outer)
        inner = await bundle.open(chat_id)
        assert inner is outer
        assert inner.state is State.W

    await rig.machine.bundle(twice)

    assert (await rig.load(chat_id)).snapshot_version == before.snapshot_version + 1
    assert len(rig.published.chats()) == 1


async def test_bundle_over_several_chats_announces_each_once_in_the_order_of_opening(rig: Rig) -> None:
    first, second = await rig.chat(State.W), await rig.chat(State.R0)

    async def both(bundle: Bundle) -> None:
        await bundle.open(second)
        await bundle.open(first)

    await rig.machine.bundle(both)

    assert [hint.chat_id for hint in rig.published.chats()] == [second, first]


async def test_created_chat_is_announced_once_with_the_wish_for_an_owner(rig: Rig) -> None:
    spec = rig.spec()
    created = await rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))

    chat = await rig.load(created.chat.id)
    assert rig.published.hints == [
        final_hint(chat),
        OwnershipHint(chat_id=chat.id, snapshot_version=1),
        WatchHint(user_id=rig.user, kind=WatchKind.CREATED, chat_id=chat.id, snapshot_version=1),
    ]


async def test_sixty_four_concurrent_updates_get_sixty_four_consecutive_versions(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    start = (await rig.load(chat_id)).snapshot_version

    async def one(index: int) -> tuple[int, int, int]:
        async def step(tx: Tx) -> tuple[int, int, int]:
            done = await machine.commit_step(tx, [assistant(f"step {index}")])
            return tx.chat.snapshot_version, done.inserted[0].id, done.inserted[0].revision

        return await rig.update(chat_id, step)

    async with asyncio.timeout(30):
        seen = sorted(await asyncio.gather(*(one(index) for index in range(64))))

    assert [version for version, _, _ in seen] == list(range(start + 1, start + 65))
    assert [revision for _, _, revision in seen] == [version for version, _, _ in seen]
    ids = [message_id for _, message_id, _ in seen]
    assert ids == sorted(ids)
    history = await rig.history(chat_id)
    assert [m.revision for m in history] == sorted(m.revision for m in history)
    assert sorted(hint.snapshot_version for hint in rig.published.chats()) == list(range(start + 1, start + 65))


async def test_concurrent_empty_updates_all_succeed_and_the_version_grows_by_their_number(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    start = (await rig.load(chat_id)).snapshot_version

    async with asyncio.timeout(20):
        await asyncio.gather(*(rig.update(chat_id, nothing) for _ in range(20)))

    assert (await rig.load(chat_id)).snapshot_version == start + 20


# Nothing on refusal


async def test_error_in_the_last_transition_undoes_the_first(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def send_and_stumble(tx: Tx) -> None:
        await machine.send_message(tx, rig.message("lost"), BusyBehavior.QUEUE)
        await machine.set_archived(tx, True)

    with pytest.raises(TransitionNotAllowed):
        await rig.update(chat_id, send_and_stumble)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_refusal_that_the_callback_swallows_still_undoes_the_bundle(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def swallow(tx: Tx) -> None:
        await machine.send_message(tx, rig.message("lost"), BusyBehavior.QUEUE)
        with pytest.raises(TransitionNotAllowed):
            await machine.set_archived(tx, True)

    with pytest.raises(TransitionNotAllowed):
        await rig.update(chat_id, swallow)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_stale_fence_that_the_callback_swallows_still_undoes_the_bundle(rig: Rig) -> None:
    first, second = await rig.chat(State.W), await rig.chat(State.R0)
    old = await rig.acquire(second)
    await rig.acquire(second)
    before = [await rig.trace(first), await rig.trace(second)]
    rig.published.clear()

    async def swallow(bundle: Bundle) -> None:
        await bundle.open(first)
        with pytest.raises(StaleFence):
            await bundle.open(second, fence=old)

    with pytest.raises(StaleFence):
        await rig.machine.bundle(swallow)

    assert [await rig.trace(first), await rig.trace(second)] == before
    assert rig.published.hints == []


async def test_missing_chat_that_the_callback_swallows_still_undoes_the_bundle(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def swallow(bundle: Bundle) -> None:
        await bundle.open(chat_id)
        with pytest.raises(ChatNotFound):
            await bundle.open(uuid4())

    with pytest.raises(ChatNotFound):
        await rig.machine.bundle(swallow)

    assert await rig.trace(chat_id) == before


@pytest.mark.parametrize("state", [State.W, State.R0])
async def test_database_error_that_the_callback_swallows_is_a_bug_and_changes_nothing(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state)
    before = await rig.trace(chat_id)

    async def swallow(tx: Tx) -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await tx.conn.execute("SELECT 1 / 0")

    with pytest.raises(InvariantViolation):
        await rig.update(chat_id, swallow)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_error_of_the_callback_reaches_the_caller_as_it_is(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)
    cause = LookupError("the caller's own")

    async def stumble(tx: Tx) -> None:
        await machine.send_message(tx, rig.message("lost"), BusyBehavior.QUEUE)
        raise cause

    with pytest.raises(LookupError) as refusal:
        await rig.update(chat_id, stumble)

    assert refusal.value is cause
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_version_of_a_rolled_back_bundle_is_given_again(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    start = (await rig.load(chat_id)).snapshot_version

    async def stumble(tx: Tx) -> None:
        assert tx.chat.snapshot_version == start + 1
        raise LookupError

    with pytest.raises(LookupError):
        await rig.update(chat_id, stumble)
    await rig.update(chat_id, nothing)

    assert [hint.snapshot_version for hint in rig.published.chats()] == [start + 1]


async def test_broken_constraint_and_guard_are_reported_as_bugs(rig: Rig) -> None:
    chat_id, other = await rig.chat(State.R0), await rig.chat(State.R0)
    before = [await rig.trace(chat_id), await rig.trace(other)]
    statements = (
        f"UPDATE chats SET archived = true, archived_at = now() WHERE id = '{chat_id}'",  # a CHECK
        f"UPDATE chats SET status = 'interrupting' WHERE id = '{other}'",  # RK001: another chat, not open
        f"UPDATE chats SET root_chat_id = id WHERE id = '{chat_id}'",  # RK002
    )

    for statement in statements:
        with pytest.raises(InvariantViolation):
            await rig.update(chat_id, lambda tx, statement=statement: tx.conn.execute(statement))  # type: ignore[misc]

    assert [await rig.trace(chat_id), await rig.trace(other)] == before
    assert rig.published.hints == []


async def test_metadata_written_in_the_bundle_lives_and_dies_with_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    async def rename(tx: Tx, title: str) -> None:
        await tx.conn.execute("UPDATE chats SET title = $2 WHERE id = $1", chat_id, title)

    async def rename_and_stumble(tx: Tx) -> None:
        await rename(tx, "never")
        raise LookupError

    with pytest.raises(LookupError):
        await rig.update(chat_id, rename_and_stumble)
    assert await rig.value("SELECT title FROM chats WHERE id = $1", chat_id) == "A chat"

    await rig.update(chat_id, lambda tx: rename(tx, "kept"))
    assert await rig.value("SELECT title FROM chats WHERE id = $1", chat_id) == "kept"


# Publishing


async def test_failing_publisher_does_not_fail_the_committed_call(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    rig.published.failing = True

    sent = await rig.send(chat_id, "still there")

    assert [m.id for m in sent.inserted] == [(await rig.history(chat_id))[-1].id]
    assert await rig.state(chat_id) is State.R0


async def test_hints_are_published_after_the_commit_and_not_before(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    async with held(updating(rig, chat_id, machine.retry_turn)) as retry:
        assert rig.published.hints == []
        assert await rig.state(chat_id) is State.W
        await retry.finish()

    assert [hint.status for hint in rig.published.chats()] == [Status.RUNNING]


async def test_lease_taken_while_an_update_waited_for_the_lock_is_seen_by_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    take = updating(rig, chat_id, lambda tx: machine.acquire(tx, worker_id=rig.worker, runner_id=uuid4()))

    await in_order(rig, take, updating(rig, chat_id, nothing))

    assert len(rig.published.chats()) == 2
    assert rig.published.ownership() == []


async def test_replica_lost_while_an_update_waited_for_the_lock_is_missed_by_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.acquire(chat_id)
    rig.published.clear()

    async with held(updating(rig, chat_id, nothing)) as leader:
        follower = asyncio.ensure_future(rig.update(chat_id, nothing))
        await until_blocked(rig)
        await rig.sql("DELETE FROM replicas WHERE id = $1", rig.worker)
        await leader.finish()
        await follower

    last = rig.published.chats()[-1]
    assert OwnershipHint(chat_id=chat_id, snapshot_version=last.snapshot_version) in rig.published.ownership()
