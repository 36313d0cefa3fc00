"""Automatic archiving: the families that are due."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.chats import auto_archive
from tests.store.machine.machine_rig import Rig, assistant, make_rig

BEFORE = datetime(2020, 1, 10, tzinfo=UTC)
OLD = BEFORE - timedelta(days=3)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


class OldChats:
    """Chats whose rows are as old as the test requires. They are written without the triggers that prevent this."""

    def __init__(self, rig: Rig, conn: asyncpg.Connection) -> None:
        self.rig = rig
        self._conn = conn

    async def age(self, chat_id: ChatId, *, made: datetime, written: datetime) -> None:
        await self._conn.execute("UPDATE chats SET created_at = $2 WHERE id = $1", chat_id, made)
        await self._conn.execute("UPDATE chat_messages SET created_at = $2 WHERE chat_id = $1", chat_id, written)

    async def root(self, *, made: datetime = OLD, written: datetime = OLD, state: State = State.W) -> ChatId:
        chat_id = await self.rig.chat(state)
        await self.age(chat_id, made=made, written=written)
        return chat_id

    async def child(self, root: ChatId, *, written: datetime = OLD, is_busy: bool = False) -> ChatId:
        chat_id = await self.rig.child(root)
        if not is_busy:
            await self.rig.update(chat_id, machine.finish_turn)
        await self.age(chat_id, made=OLD, written=written)
        return chat_id


@pytest.fixture
async def attic(rig: Rig, database_url: str) -> AsyncIterator[OldChats]:
    conn = await asyncpg.connect(database_url.replace("rookery@", "postgres@"))
    await conn.execute("SET session_replication_role = replica")
    yield OldChats(rig, conn)
    await conn.close()


async def due(rig: Rig, limit: int = 1000) -> list[ChatId]:
    async with rig.pool.acquire() as conn:
        return [family.root_id for family in await auto_archive.list_due(conn, BEFORE, limit=limit)]


def test_cutoff_is_a_midnight_so_it_moves_once_a_day() -> None:
    morning = datetime(2030, 5, 15, 1, 30, tzinfo=timezone(timedelta(hours=2)))  # still the 14th in UTC

    assert auto_archive.cutoff(morning, 3) == datetime(2030, 5, 11, tzinfo=UTC)
    assert auto_archive.cutoff(morning - timedelta(hours=12), 3) == auto_archive.cutoff(morning, 3)


async def test_family_left_alone_before_the_cutoff_is_due_and_the_oldest_comes_first(rig: Rig, attic: OldChats) -> None:
    younger = await attic.root(made=OLD + timedelta(days=1))
    older = await attic.root(state=State.E1)
    await attic.child(older)

    assert await due(rig) == [older, younger]
    assert await due(rig, limit=1) == [older]


async def test_family_says_whose_it_is(rig: Rig, attic: OldChats) -> None:
    root = await attic.root()

    async with rig.pool.acquire() as conn:
        assert await auto_archive.list_due(conn, BEFORE) == [auto_archive.DueFamily(root, rig.user, "A chat")]


@pytest.mark.parametrize("state", [State.R0, State.I0, State.A0, State.XW])
async def test_chat_at_work_or_in_the_archive_is_not_due(rig: Rig, attic: OldChats, state: State) -> None:
    await attic.root(state=state)

    assert await due(rig) == []


async def test_chat_made_or_written_to_at_the_cutoff_is_not_due(rig: Rig, attic: OldChats) -> None:
    await attic.root(made=BEFORE)
    await attic.root(written=BEFORE)

    assert await due(rig) == []


async def test_age_of_a_family_is_that_of_its_newest_message(rig: Rig, attic: OldChats) -> None:
    root = await attic.root()
    await attic.child(root)
    child = await attic.child(root, written=BEFORE)

    assert await due(rig) == []
    await attic.age(child, made=OLD, written=OLD)
    assert await due(rig) == [root]


async def test_deleted_message_does_not_keep_a_family(rig: Rig, attic: OldChats) -> None:
    root = await attic.root(state=State.R0)
    first = (await rig.history(root))[0]
    await rig.commit(root, assistant("new"))
    await rig.update(root, lambda tx: machine.edit_message(tx, first.id, content=first.parts(), edited_by=rig.user))
    await rig.update(root, machine.finish_turn)
    assert await due(rig) == []

    await attic._conn.execute("UPDATE chat_messages SET created_at = $2 WHERE chat_id = $1 AND NOT deleted", root, OLD)

    assert await due(rig) == [root]


async def test_busy_child_keeps_its_family_and_no_other(rig: Rig, attic: OldChats) -> None:
    busy, other = await attic.root(), await attic.root()
    await attic.child(busy, is_busy=True)

    assert await due(rig) == [other]


async def test_pin_of_anybody_keeps_a_family(rig: Rig, attic: OldChats) -> None:
    root = await attic.root()
    await rig.sql(
        "WITH u AS (INSERT INTO users (username) VALUES ($2) RETURNING id)"
        " INSERT INTO chat_pins (chat_id, user_id, pin_order) SELECT $1, id, 1 FROM u",
        root,
        uuid4().hex,
    )

    assert await due(rig) == []


async def test_family_that_is_due_can_be_archived(rig: Rig, attic: OldChats) -> None:
    root = await attic.root()
    child = await attic.child(root)

    await rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, root, archived=True))

    assert [await rig.state(chat_id) for chat_id in (root, child)] == [State.XW, State.XW]
    assert await due(rig) == []


async def test_one_replica_archives_at_a_time(rig: Rig) -> None:
    async with rig.pool.acquire() as first, rig.pool.acquire() as second:
        assert await auto_archive.try_lock(first)
        assert not await auto_archive.try_lock(second)
        await auto_archive.unlock(first)
        assert await auto_archive.try_lock(second)
        await auto_archive.unlock(second)
