"""Read cursors and unread messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import UserActor
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.chats import chat_view_reads, read_cursors
from tests.store.builders import StoreRig, open_store_rig


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def has_unread(world: StoreRig, chat_id: ChatId, user_id: UUID) -> bool:
    seen = await chat_view_reads.find_chat(world.conn, chat_id, actor=UserActor(user_id))
    assert seen is not None
    return seen.chat.has_unread


async def test_every_answer_is_unread_before_the_first_look(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat)

    assert await has_unread(world, chat, user)


async def test_reading_to_the_newest_leaves_nothing_unread(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat)
    newest = await world.message(chat)

    assert await read_cursors.mark_read(world.conn, chat, user_id=user) == newest

    assert not await has_unread(world, chat, user)


async def test_an_answer_after_the_cursor_is_unread(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    first = await world.message(chat)
    await world.message(chat)

    await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=first)

    assert await has_unread(world, chat, user)


async def test_the_cursor_never_goes_back_by_itself(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    first, second = await world.message(chat), await world.message(chat)
    await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=second)

    assert await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=first) == second

    assert not await has_unread(world, chat, user)


async def test_the_cursor_goes_back_when_forced(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    first, second = await world.message(chat), await world.message(chat)
    await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=second)

    assert await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=first, force=True) == first

    assert await has_unread(world, chat, user)


@pytest.mark.parametrize("claimed", [10**6, 2**63 - 1, 2**63, 10**30])
async def test_a_cursor_beyond_the_chat_does_not_hide_later_answers(world: StoreRig, claimed: int) -> None:
    user = await world.user()
    chat = await world.chat(user)
    newest = await world.message(chat)

    assert await read_cursors.mark_read(world.conn, chat, user_id=user, message_id=MessageId(claimed)) == newest
    await world.message(chat)

    assert await has_unread(world, chat, user)


async def test_reading_an_empty_chat_hides_nothing(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)

    assert await read_cursors.mark_read(world.conn, chat, user_id=user) == 0
    await world.message(chat)

    assert await has_unread(world, chat, user)


@pytest.mark.parametrize(
    ("role", "visibility", "is_unread"),
    [
        ("assistant", "both", True),
        ("assistant", "user", True),
        ("assistant", "model", False),
        ("user", "both", False),
        ("tool", "both", False),
        ("system", "user", False),
    ],
)
async def test_only_answers_that_people_see_are_unread(
    world: StoreRig, role: str, visibility: str, is_unread: bool
) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, role=role, visibility=visibility)

    assert await has_unread(world, chat, user) is is_unread


async def test_a_deleted_answer_is_not_unread(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    message = await world.message(chat)

    await world.cut(chat, from_id=message)

    assert not await has_unread(world, chat, user)


async def test_a_cursor_is_its_owners_alone(world: StoreRig) -> None:
    user, other = await world.user(), await world.user()
    chat = await world.chat(user)
    await world.message(chat)
    await world.conn.execute("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", chat, other)

    await read_cursors.mark_read(world.conn, chat, user_id=other)

    assert await has_unread(world, chat, user)
    assert not await has_unread(world, chat, other)


async def test_nothing_is_unread_for_who_cannot_mark_it_read(world: StoreRig) -> None:
    stranger = await world.user()
    chat = await world.chat(await world.user())
    await world.message(chat)

    assert not await has_unread(world, chat, stranger)


async def test_cursors_move_no_version(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat)
    before = await world.versions(chat)

    await read_cursors.mark_read(world.conn, chat, user_id=user)

    assert await world.versions(chat) == before


async def test_a_missing_chat_is_not_found(world: StoreRig) -> None:
    with pytest.raises(ChatNotFound):
        await read_cursors.mark_read(world.conn, ChatId(uuid4()), user_id=await world.user())
