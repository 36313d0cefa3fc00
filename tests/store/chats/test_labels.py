"""Labels in the database: replaced, patched, refused as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from rookery.domain.chat.errors import ChatNotFound, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.chats import chat_rows, labels
from tests.store.builders import World, open_world


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with open_world(database_url) as world:
        yield world


async def stored(world: World, chat_id: ChatId) -> dict[str, str]:
    chat = await chat_rows.find_chat(world.conn, chat_id)
    assert chat is not None
    return chat.labels


async def test_set_replaces_all_labels(world: World) -> None:
    chat = await world.chat(await world.user(), labels={"old": "1"})

    answer = await labels.set_labels(world.conn, chat, labels={"new": "ü \ue000"})

    assert answer == {"new": "ü \ue000"}
    assert await stored(world, chat) == answer


async def test_patch_sets_removes_and_keeps(world: World) -> None:
    chat = await world.chat(await world.user(), labels={"kept": "1", "gone": "1"})

    answer = await labels.patch_labels(world.conn, chat, changes={"gone": None, "new": "2"})

    assert answer == {"kept": "1", "new": "2"}
    assert await stored(world, chat) == answer


async def test_one_bad_label_changes_nothing(world: World) -> None:
    chat = await world.chat(await world.user(), labels={"old": "1"})

    with pytest.raises(InvalidInput):
        await labels.set_labels(world.conn, chat, labels={"fine": "1", "bad": "nul\0"})
    with pytest.raises(InvalidInput):
        await labels.patch_labels(world.conn, chat, changes={"fine": "1", "bad": "half \ud83d"})

    assert await stored(world, chat) == {"old": "1"}


async def test_labels_of_a_missing_chat_are_not_found(world: World) -> None:
    nowhere = ChatId(uuid4())

    with pytest.raises(ChatNotFound):
        await labels.set_labels(world.conn, nowhere, labels={})
    with pytest.raises(ChatNotFound):
        await labels.patch_labels(world.conn, nowhere, changes={})


async def test_labels_move_the_meta_version_and_no_other(world: World) -> None:
    chat = await world.chat(await world.user())
    before = await world.versions(chat)

    await labels.set_labels(world.conn, chat, labels={"a": "1"})
    await labels.patch_labels(world.conn, chat, changes={"a": "1"})

    assert await world.versions(chat) == before | {"meta_version": before["meta_version"] + 1}


async def test_concurrent_patches_build_on_each_other(world: World) -> None:
    chat = await world.chat(await world.user())

    async def patch(number: int) -> None:
        async with world.connection() as conn:
            await labels.patch_labels(conn, chat, changes={f"k{number}": "v"})

    await asyncio.gather(*map(patch, range(10)))

    assert await stored(world, chat) == {f"k{number}": "v" for number in range(10)}
