"""Races over whole chats, in both orders: acquire, archive and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import (
    ChatArchived,
    ChatBusy,
    ChatNotFound,
    ParentArchived,
    StaleFence,
    TransitionNotAllowed,
)
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.held_bundles import (
    Action,
    bundling,
    finishing,
    held,
    in_order,
    owned,
    pass_through,
    sending,
    spoken,
    stepping,
    updating,
)
from tests.store.machine.machine_rig import Rig, add_replica

# Ownership


def taking(rig: Rig, chat_id: ChatId, worker_id: UUID) -> Action[Chat | None]:
    """A worker's acquisition, held with the row locked and before the admission ends."""

    async def run(hold: Callable[[], Awaitable[None]]) -> Chat | None:
        async def admit(tx: Tx) -> bool:
            await hold()
            return True

        return await machine.try_acquire(rig.machine, chat_id, worker_id=worker_id, runner_id=uuid4(), admit=admit)

    return run


async def test_of_two_workers_the_second_skips_the_locked_row(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)

    async with held(taking(rig, chat_id, rig.worker)) as winner:
        assert await taking(rig, chat_id, other)(pass_through) is None
        taken = await winner.finish()

    assert taken is not None
    assert (await rig.load(chat_id)).worker_id == rig.worker
    assert [hint.snapshot_version for hint in rig.published.chats()] == [taken.snapshot_version]


async def test_worker_that_comes_later_sees_the_fresh_lease_and_leaves_no_trace(rig: Rig) -> None:
    chat_id, _ = await owned(rig, State.R0)
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)
    before = await rig.trace(chat_id)

    assert await taking(rig, chat_id, other)(pass_through) is None

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_worker_skips_a_chat_that_a_user_is_changing_and_the_user_asks_for_one(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    async with held(sending(rig, chat_id, "next")) as send:
        assert await taking(rig, chat_id, rig.worker)(pass_through) is None
        await send.finish()

    assert len(rig.published.ownership()) == 1
    assert await taking(rig, chat_id, rig.worker)(pass_through) is not None


async def test_send_waits_for_an_acquisition_and_finds_the_owner(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    await in_order(rig, taking(rig, chat_id, rig.worker), sending(rig, chat_id, "next"))

    assert await rig.state(chat_id) is State.R1
    assert rig.published.ownership() == []


async def test_slow_owner_is_stale_after_a_takeover_whichever_way_it_writes(rig: Rig) -> None:
    chat_id, slow = await owned(rig, State.R0)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '31 seconds'")
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)

    taken, refused = await in_order(rig, taking(rig, chat_id, other), stepping(rig, chat_id, slow, "too late"))
    assert taken is not None
    assert isinstance(refused, StaleFence)
    for late in (finishing(rig, chat_id, slow), updating(rig, chat_id, machine.abandon, fence=slow)):
        with pytest.raises(StaleFence):
            await late(pass_through)

    await stepping(rig, chat_id, rig.fence(taken), "in time")(pass_through)
    assert await spoken(rig, chat_id) == ["hello", "in time"]


async def test_slow_owner_that_commits_first_keeps_its_step_and_the_takeover_is_skipped(rig: Rig) -> None:
    chat_id, slow = await owned(rig, State.R0)
    await rig.sql("UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() - interval '31 seconds'")
    async with rig.pool.acquire() as conn:
        other = await add_replica(conn)

    async with held(stepping(rig, chat_id, slow, "just in time")) as step:
        assert await taking(rig, chat_id, other)(pass_through) is None
        await step.finish()
    taken = await taking(rig, chat_id, other)(pass_through)

    assert taken is not None
    assert await spoken(rig, chat_id) == ["hello", "just in time"]
    assert len(rig.published.ownership()) == 1


# Archives


def archiving(rig: Rig, root: ChatId, *, archived: bool = True) -> Action[list[Chat]]:
    return bundling(rig, lambda bundle: machine.set_family_archived(bundle, root, archived=archived))


async def test_send_to_a_chat_that_was_just_archived_is_refused(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    _, refused = await in_order(rig, archiving(rig, chat_id), sending(rig, chat_id, "next"))

    assert isinstance(refused, ChatArchived)
    assert await rig.state(chat_id) is State.XW


async def test_archive_of_a_chat_that_just_got_a_message_is_refused(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    _, refused = await in_order(rig, sending(rig, chat_id, "next"), archiving(rig, chat_id))

    assert isinstance(refused, TransitionNotAllowed)
    assert not isinstance(refused, ChatArchived)
    assert await rig.state(chat_id) is State.R0


async def test_child_of_a_root_that_was_just_archived_is_refused(rig: Rig) -> None:
    root = await rig.chat(State.W)
    spec = rig.spec(parent_chat_id=root, root_chat_id=root)

    _, refused = await in_order(
        rig, archiving(rig, root), bundling(rig, lambda bundle: machine.create_chat(bundle, spec))
    )

    assert isinstance(refused, ParentArchived)
    assert await rig.value("SELECT count(*) FROM chats") == 1


async def test_archive_sees_the_child_that_was_just_created_and_is_refused_while_it_works(rig: Rig) -> None:
    root = await rig.chat(State.W)
    spec = rig.spec(parent_chat_id=root, root_chat_id=root)

    created, refused = await in_order(
        rig, bundling(rig, lambda bundle: machine.create_chat(bundle, spec)), archiving(rig, root)
    )

    assert isinstance(refused, TransitionNotAllowed)
    assert await rig.state(root) is State.W
    assert await rig.state(created.chat.id) is State.R0


async def test_archive_takes_along_the_child_that_was_just_created_once_it_rests(rig: Rig) -> None:
    root = await rig.chat(State.W)
    spec = rig.spec(parent_chat_id=root, root_chat_id=root)

    async def create_idle(bundle: machine.Bundle) -> ChatId:
        created = await machine.create_chat(bundle, spec)
        await machine.finish_turn(await bundle.open(created.chat.id))
        return created.chat.id

    child, members = await in_order(rig, bundling(rig, create_idle), archiving(rig, root))

    assert isinstance(members, list)
    assert [chat.id for chat in members] == [root, child]
    assert await rig.state(child) is State.XW


async def test_second_archive_of_a_family_waits_and_finds_it_done(rig: Rig) -> None:
    root = await rig.chat(State.W)

    first, second = await in_order(rig, archiving(rig, root), archiving(rig, root))

    assert isinstance(second, list)
    assert [chat.archived for chat in (*first, *second)] == [True, True]
    assert await rig.state(root) is State.XW


async def test_unarchive_and_archive_take_turns(rig: Rig) -> None:
    root = await rig.chat(State.XW)

    await in_order(rig, archiving(rig, root, archived=False), archiving(rig, root))

    assert await rig.state(root) is State.XW
    assert [hint.archived for hint in rig.published.chats()] == [False, True]


async def test_deletion_of_a_family_and_a_new_child_take_turns(rig: Rig) -> None:
    root = await rig.chat(State.W)
    spec = rig.spec(parent_chat_id=root, root_chat_id=root)
    creating = bundling(rig, lambda bundle: machine.create_chat(bundle, spec))
    deleting = bundling(rig, lambda bundle: machine.delete_family(bundle, root))

    _, busy = await in_order(rig, creating, deleting)
    assert isinstance(busy, ChatBusy)
    child = await rig.value("SELECT id FROM chats WHERE root_chat_id = $1", root)
    assert isinstance(child, UUID)
    await rig.update(child, machine.finish_turn)
    _, missing = await in_order(rig, deleting, creating)

    assert isinstance(missing, ChatNotFound)
    assert await rig.value("SELECT count(*) FROM chats") == 0


# Rollbacks


async def test_update_behind_one_that_rolls_back_gets_the_version_it_gave_up(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    start = (await rig.load(chat_id)).snapshot_version

    async with held(sending(rig, chat_id, "lost")) as lost:
        waiting = asyncio.ensure_future(rig.send(chat_id, "kept"))
        lost.task.cancel()
        await waiting

    assert [hint.snapshot_version for hint in rig.published.chats()] == [start + 1]
    assert await spoken(rig, chat_id) == ["hello", "kept"]
    assert await rig.state(chat_id) is State.R0
