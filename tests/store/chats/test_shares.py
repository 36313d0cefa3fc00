"""Shares: the readers of a chat, and the constraints of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import ChatNotFound, ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.chats import shares
from rookery.store.chats.shares import ShareChange, SharePatch, SharingSettings
from rookery.store.settings import settings
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

NOW = datetime(2026, 5, 1, tzinfo=UTC)


class Shared:
    """A chat of an owner, with methods that share it."""

    def __init__(self, world: StoreRig, owner: UUID, chat: ChatId) -> None:
        self.world = world
        self.owner = owner
        self.chat = chat

    async def patch(self, users: dict[UUID, str | None] | None = None, **fields: object) -> ShareChange:
        patch = SharePatch(users=users or {}, **fields)  # type: ignore[arg-type]
        return await shares.patch_shares(self.world.conn, self.chat, patch=patch, by=self.owner, now=NOW)

    async def reads(self, user: UUID, chat: ChatId | None = None) -> bool:
        found: bool = await self.world.conn.fetchval(
            f"SELECT {shares.SHARED_WITH.format(user='$2')} FROM chats c WHERE c.id = $1", chat or self.chat, user
        )
        return found


@pytest.fixture
async def shared(database_url: str) -> AsyncIterator[Shared]:
    async with open_store_rig(database_url) as world:
        owner = (await person(world.conn, "owner")).id
        yield Shared(world, owner, await world.chat(owner))


async def test_reader_may_read_the_family_and_other_users_may_not(shared: Shared) -> None:
    bob, eve = await person(shared.world.conn, "bob"), await person(shared.world.conn, "eve")
    child = await shared.world.chat(shared.owner, parent=shared.chat)

    change = await shared.patch({bob.id: "read"})

    assert change == ShareChange(added=frozenset({bob.id}))
    assert await shared.reads(bob.id)
    assert await shared.reads(bob.id, child)
    assert not await shared.reads(eve.id)
    (entry,) = await shares.list_shares(shared.world.conn, shared.chat)
    assert entry.user is not None
    assert (entry.user.username, entry.role, entry.granted_by, entry.created_at) == ("bob", "read", shared.owner, NOW)


async def test_everyone_reads_what_is_shared_with_everyone(shared: Shared) -> None:
    bob = await person(shared.world.conn, "bob")

    assert (await shared.patch(everyone="read")).everyone is True
    assert await shared.reads(bob.id)
    assert await shares.list_readers(shared.world.conn, shared.chat) == []
    assert (await shared.patch(everyone=None)).takes_access
    assert not await shared.reads(bob.id)


async def test_unchanged_entries_are_no_change(shared: Shared) -> None:
    bob = await person(shared.world.conn, "bob")
    await shared.patch({bob.id: "read"}, everyone="read")

    assert (await shared.patch({bob.id: "read", uuid4(): None}, everyone="read")).is_empty
    assert (await shared.patch()).is_empty


async def test_disabled_sharing_has_no_effect_and_loses_nothing(shared: Shared) -> None:
    bob = await person(shared.world.conn, "bob")
    await shared.patch({bob.id: "read"}, everyone="read")

    await settings.write_setting(shared.world.conn, shares.SETTING, value=SharingSettings(enabled=False))
    assert not await shares.is_sharing_enabled(shared.world.conn)
    assert not await shared.reads(bob.id)
    assert not await shares.is_shared(shared.world.conn, shared.chat)

    await settings.write_setting(shared.world.conn, shares.SETTING, value=SharingSettings(enabled=True))
    assert await shared.reads(bob.id)
    assert await shares.is_shared(shared.world.conn, shared.chat)


async def test_owner_unknown_and_disabled_users_are_refused_by_field(shared: Shared) -> None:
    gone = await person(shared.world.conn, "gone", disabled=True)
    bob = await person(shared.world.conn, "bob")

    for user_id in (shared.owner, uuid4(), gone.id):
        with pytest.raises(InvalidInput) as refused:
            await shared.patch({bob.id: "read", user_id: "read"})
        assert refused.value.field == f"users.{user_id}"
    for wrong in ({"users": {bob.id: "write"}}, {"everyone": "write"}):
        with pytest.raises(InvalidInput):
            await shared.patch(**wrong)
    assert await shares.list_shares(shared.world.conn, shared.chat) == []


async def test_child_and_missing_chat_are_refused(shared: Shared) -> None:
    child = await shared.world.chat(shared.owner, parent=shared.chat)

    with pytest.raises(ChatNotRoot):
        await Shared(shared.world, shared.owner, child).patch(everyone="read")
    with pytest.raises(ChatNotFound):
        await Shared(shared.world, shared.owner, ChatId(uuid4())).patch(everyone="read")


async def test_database_refuses_shares_of_children_and_of_owners(shared: Shared) -> None:
    child = await shared.world.chat(shared.owner, parent=shared.chat)
    statement = "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)"

    for chat, user in [(child, None), (shared.chat, shared.owner)]:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await shared.world.conn.execute(statement, chat, user)
        assert refused.value.sqlstate == "RK002"


async def test_hundred_and_first_entry_is_refused(shared: Shared) -> None:
    people = [await person(shared.world.conn) for _ in range(shares.MAX_ENTRIES + 1)]
    await shared.patch({user.id: "read" for user in people[:-1]})

    with pytest.raises(InvalidInput):
        await shared.patch({people[-1].id: "read"})

    await shared.patch({people[-1].id: "read", people[0].id: None})
    assert len(await shares.list_shares(shared.world.conn, shared.chat)) == shares.MAX_ENTRIES


async def test_reader_leaves_and_what_everyone_reads_stays(shared: Shared) -> None:
    bob = await person(shared.world.conn, "bob")
    await shared.patch({bob.id: "read"}, everyone="read")

    assert await shares.leave(shared.world.conn, shared.chat, user_id=bob.id)
    assert not await shares.leave(shared.world.conn, shared.chat, user_id=bob.id)
    assert await shared.reads(bob.id)


async def test_patches_at_once_both_count(shared: Shared) -> None:
    bob, eve = await person(shared.world.conn, "bob"), await person(shared.world.conn, "eve")

    async def grant(conn: asyncpg.Connection, user: UUID) -> None:
        patch = SharePatch(users={user: "read"})
        await shares.patch_shares(conn, shared.chat, patch=patch, by=shared.owner, now=NOW)

    async with shared.world.connection() as first, shared.world.connection() as second:
        await asyncio.gather(grant(first, bob.id), grant(second, eve.id))

    assert set(await shares.list_readers(shared.world.conn, shared.chat)) == {bob.id, eve.id}
