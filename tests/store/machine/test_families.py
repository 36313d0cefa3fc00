"""Families: a root and its subagents' chats are archived, unarchived and deleted together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID, uuid4

import pytest
from asyncpg.connection import LoggedQuery

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import (
    ChatBusy,
    ChatNotFound,
    ChatNotRoot,
    InvalidState,
    ParentArchived,
    TransitionNotAllowed,
)
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import AgentNotice, File
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.db.hints import WatchKind
from rookery.store.machine import Bundle
from tests.store.machine.machine_rig import FAILED, Rig, assistant

DEPENDENT_TABLES = (
    "chat_messages",
    "chat_queued_messages",
    "chat_heartbeats",
    "chat_file_links",
    "chat_pins",
    "chat_read_cursors",
    "chat_message_search",
)


async def set_archived(rig: Rig, root: UUID, archived: bool = True) -> list[Chat]:
    return await rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, root, archived=archived))


async def delete(rig: Rig, root: UUID) -> list[Chat]:
    return await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, root))


async def family(rig: Rig, *children: State) -> list[ChatId]:
    """A root at rest and children in these states, in the order of their creation."""
    root = await rig.chat(State.W)
    members = [root]
    for state in children:
        child = await rig.child(root)
        match state:
            case State.W:
                await rig.update(child, machine.finish_turn)
            case State.E1:
                await rig.send(child, "queued")
                await rig.update(child, lambda tx: machine.finish_error(tx, FAILED))
            case State.I0:
                await rig.update(child, machine.interrupt)
            case _:
                assert state is State.R0
        members.append(child)
    rig.published.clear()
    return members


async def states(rig: Rig, members: Sequence[ChatId]) -> list[State]:
    return [await rig.state(chat_id) for chat_id in members]


# Archive and unarchive


async def test_family_is_archived_and_unarchived_as_one_with_the_root_first(rig: Rig) -> None:
    members = await family(rig, State.W, State.E1)
    before = [await rig.load(chat_id) for chat_id in members]

    archived = await set_archived(rig, members[0])
    assert [chat.id for chat in archived] == members
    assert await states(rig, members) == [State.XW, State.XW, State.XE1]
    assert await rig.value("SELECT count(*) FROM chats WHERE archived_at IS NOT NULL") == 3
    back = await set_archived(rig, members[0], False)

    assert [chat.id for chat in back] == members
    assert await states(rig, members) == [State.W, State.W, State.E1]
    assert await rig.value("SELECT count(*) FROM chats WHERE archived_at IS NOT NULL") == 0
    for was, chat in zip(before, back, strict=True):
        assert (chat.last_error, chat.queue_len, chat.history_version) == (
            was.last_error,
            was.queue_len,
            was.history_version,
        )
        assert (chat.updated_at, chat.snapshot_version) == (was.updated_at, was.snapshot_version + 2)


async def test_every_member_is_announced_once_after_the_one_commit(rig: Rig) -> None:
    members = await family(rig, State.W, State.W)

    for archived, kind in ((True, WatchKind.ARCHIVED), (False, WatchKind.UNARCHIVED)):
        rig.published.clear()
        await set_archived(rig, members[0], archived)

        assert [(hint.chat_id, hint.archived) for hint in rig.published.chats()] == [(m, archived) for m in members]
        assert [(hint.chat_id, hint.kind) for hint in rig.published.watch()] == [(m, kind) for m in members]
        assert rig.published.ownership() == []


async def test_member_that_is_as_asked_already_passes_and_is_announced_too(rig: Rig) -> None:
    members = await family(rig, State.W, State.W)
    await rig.update(members[1], lambda tx: machine.set_archived(tx, True))
    before = await rig.load(members[1])
    rig.published.clear()

    archived = await set_archived(rig, members[0])

    assert [chat.id for chat in archived] == members
    assert (await rig.load(members[1])).snapshot_version == before.snapshot_version + 1
    assert [hint.chat_id for hint in rig.published.chats()] == members
    assert [(hint.chat_id, hint.kind) for hint in rig.published.watch()] == [(m, WatchKind.ARCHIVED) for m in members]


@pytest.mark.parametrize("state", [State.R0, State.I0])
async def test_one_busy_member_keeps_the_whole_family_as_it_is(rig: Rig, state: State) -> None:
    members = await family(rig, State.W, state)
    before = [await rig.trace(chat_id) for chat_id in members]

    with pytest.raises(TransitionNotAllowed):
        await set_archived(rig, members[0])

    assert [await rig.trace(chat_id) for chat_id in members] == before
    assert rig.published.hints == []


async def test_one_invalid_member_keeps_the_whole_family_as_it_is_even_if_its_flag_matches(rig: Rig) -> None:
    members = await family(rig, State.W, State.W)
    await rig.force(members[1], "status = 'asleep', archived = true, archived_at = now()")
    before = [await rig.trace(chat_id) for chat_id in members]

    with pytest.raises(InvalidState) as refusal:
        await set_archived(rig, members[0])

    assert refusal.value.chat_id == members[1]
    assert [await rig.trace(chat_id) for chat_id in members] == before
    assert rig.published.hints == []


async def test_child_and_missing_chat_are_no_targets(rig: Rig) -> None:
    root, child = await family(rig, State.W)
    before = [await rig.trace(root), await rig.trace(child)]

    for act in (set_archived, delete):
        with pytest.raises(ChatNotRoot):
            await act(rig, child)
        with pytest.raises(ChatNotFound):
            await act(rig, uuid4())

    assert [await rig.trace(root), await rig.trace(child)] == before
    assert rig.published.hints == []


async def test_refusal_of_a_family_that_the_callback_swallows_still_undoes_the_bundle(rig: Rig) -> None:
    root, busy = await family(rig, State.R0)
    before = await rig.trace(root)

    async def swallow(bundle: Bundle) -> None:
        with pytest.raises(ChatBusy):
            await machine.delete_family(bundle, root)

    with pytest.raises(ChatBusy) as refusal:
        await rig.machine.bundle(swallow)

    assert refusal.value.chat_id == busy
    assert await rig.trace(root) == before


async def test_archiving_removes_the_pins_of_all_users_and_unarchiving_does_not_restore_them(rig: Rig) -> None:
    root, other = await rig.chat(State.W), await rig.chat(State.W)
    guest = await rig.value("INSERT INTO users (username) VALUES ('guest') RETURNING id")
    for chat_id, user, order in ((root, rig.user, 1), (other, rig.user, 2), (root, guest, 1)):
        await rig.sql("INSERT INTO chat_pins VALUES ($1, $2, $3)", chat_id, user, order)

    await set_archived(rig, root)
    await set_archived(rig, root, False)

    assert await rig.value("SELECT array_agg(chat_id) FROM chat_pins") == [other]


async def test_archived_root_takes_no_new_child(rig: Rig) -> None:
    root = await rig.chat(State.W)
    await set_archived(rig, root)
    rig.published.clear()

    with pytest.raises(ParentArchived):
        await rig.child(root)

    assert await rig.value("SELECT count(*) FROM chats") == 1
    assert rig.published.hints == []


async def test_families_do_not_touch_each_other(rig: Rig) -> None:
    mine, theirs = await family(rig, State.W), await family(rig, State.R0)
    before = [await rig.trace(chat_id) for chat_id in theirs]

    await set_archived(rig, mine[0])
    await delete(rig, mine[0])

    assert [await rig.trace(chat_id) for chat_id in theirs] == before


# Delete


async def test_deleting_a_family_removes_everything_that_hangs_on_it(rig: Rig) -> None:
    root = await rig.create()
    child = await rig.child(root)
    shared, own = await rig.add_file(), await rig.add_file()
    other = await rig.create(_with_files(rig, shared))
    for chat_id in (root, child):
        await rig.send(chat_id, "queued")
        await rig.acquire(chat_id)
        for file_id in (shared, own):
            await rig.sql("INSERT INTO chat_file_links VALUES ($1, $2)", chat_id, file_id)
        await rig.sql("INSERT INTO chat_read_cursors VALUES ($1, $2, 1)", chat_id, rig.user)
        await rig.update(chat_id, lambda tx: machine.finish_error(tx, FAILED))
    await rig.sql("INSERT INTO chat_pins VALUES ($1, $2, 1)", root, rig.user)
    kept = await rig.trace(other)
    rig.published.clear()

    gone = await delete(rig, root)

    assert [chat.id for chat in gone] == [root, child]
    for table in DEPENDENT_TABLES:
        assert await rig.value(f"SELECT count(*) FROM {table} WHERE chat_id = ANY ($1)", [root, child]) == 0, table
    assert await rig.value("SELECT count(*) FROM chats") == 1
    assert await rig.trace(other) == kept
    assert await rig.value("SELECT count(*) FROM chat_files WHERE id = ANY ($1)", [shared, own]) == 2


def _with_files(rig: Rig, *files: UUID) -> NewMessage:
    content = tuple(File(media_type="text/plain", file_id=file_id) for file_id in files)
    return NewMessage(role=Role.USER, content=content, created_by=rig.user)


async def test_deletion_announces_every_member_as_gone_and_asks_for_no_owner(rig: Rig) -> None:
    members = await family(rig, State.W, State.E1)
    versions = [(await rig.load(chat_id)).snapshot_version for chat_id in members]

    await delete(rig, members[0])

    assert [(h.chat_id, h.gone, h.snapshot_version) for h in rig.published.chats()] == [
        (chat_id, True, version + 1) for chat_id, version in zip(members, versions, strict=True)
    ]
    assert [(h.chat_id, h.kind) for h in rig.published.watch()] == [(m, WatchKind.DELETED) for m in members]
    assert rig.published.ownership() == []


async def test_deletion_tells_the_readers_who_can_look_up_nothing_any_more(rig: Rig) -> None:
    members = await family(rig, State.W)
    reader = await rig.value("INSERT INTO users (username) VALUES ('grace') RETURNING id")
    for user in (reader, None):
        await rig.sql("INSERT INTO chat_shares (chat_id, user_id, created_at) VALUES ($1, $2, now())", members[0], user)

    await delete(rig, members[0])

    assert [(h.chat_id, h.users) for h in rig.published.watch()] == [(member, (reader,)) for member in members]


async def test_archived_family_can_be_deleted(rig: Rig) -> None:
    members = await family(rig, State.W)
    await set_archived(rig, members[0])

    await delete(rig, members[0])

    assert await rig.value("SELECT count(*) FROM chats") == 0


@pytest.mark.parametrize("state", [State.R0, State.I0])
async def test_family_with_a_member_at_work_is_not_deleted(rig: Rig, state: State) -> None:
    members = await family(rig, State.W, state)
    before = [await rig.trace(chat_id) for chat_id in members]

    with pytest.raises(ChatBusy) as refusal:
        await delete(rig, members[0])

    assert refusal.value.chat_id == members[2]
    assert [await rig.trace(chat_id) for chat_id in members] == before
    assert rig.published.hints == []


async def test_family_with_an_invalid_member_is_not_deleted_before_it_is_repaired(rig: Rig) -> None:
    members = await family(rig, State.W)
    await rig.force(members[1], "archived = true, archived_at = now(), status = 'running', last_error = NULL")
    before = [await rig.trace(chat_id) for chat_id in members]

    with pytest.raises(InvalidState):
        await delete(rig, members[0])
    assert [await rig.trace(chat_id) for chat_id in members] == before

    await rig.update(members[1], machine.reconcile_invalid_state)
    await delete(rig, members[0])
    assert await rig.value("SELECT count(*) FROM chats") == 0


# Notices


def _note(ran: list[str], query: LoggedQuery) -> None:
    ran.append(query.query)


async def test_parent_is_locked_for_the_same_number_of_statements_with_one_report_and_with_twenty(rig: Rig) -> None:
    lengths: list[int] = []
    for count in (1, 1, 20):
        root, *children = await family(rig, *[State.R0] * count)
        for child in children:
            await rig.commit(child, assistant("My report."))
            await rig.update(child, machine.finish_turn)
        ran: list[str] = []
        connections = [await rig.pool.acquire() for _ in range(rig.pool.get_max_size())]
        for conn in connections:
            conn.add_query_logger(partial(_note, ran))
            await rig.pool.release(conn)

        woken = await machine.try_wake(rig.machine, root)

        assert woken is not None
        assert [part.report for part in woken.message.parts() if isinstance(part, AgentNotice)] == [
            "My report."
        ] * count
        lengths.append(len(ran))

    # The first wake also reads the types of the columns.
    assert lengths[2] <= lengths[1]
