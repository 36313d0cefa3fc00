"""Rows of chats, and later writes of titles, labels and summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store.chats import chat_rows, pins
from rookery.store.chats.chat_rows import ChatSummary
from tests.store.builders import OPEN, StoreRig, open_store_rig

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def load(world: StoreRig, chat_id: ChatId) -> ChatSummary:
    chat = await chat_rows.find_chat(world.conn, chat_id)
    assert chat is not None
    return chat


def test_columns_are_the_fields_of_a_summary_in_order() -> None:
    columns = chat_rows.COLUMNS.replace(chat_rows.PERMISSION_MODE, "c.permission_mode")
    assert f"{columns}, c.pin_order" == ", ".join(f"c.{name}" for name in ChatSummary.__struct_fields__)


async def test_a_chat_is_found_with_its_metadata(world: StoreRig) -> None:
    user = await world.user()
    root = await world.chat(user)
    child = await world.chat(user, "A child", parent=root, labels={"a": "b"}, updated_at=NOON)

    chat = await load(world, child)

    assert (chat.id, chat.parent_chat_id, chat.root_chat_id) == (child, root, root)
    assert (chat.title, chat.labels, chat.updated_at) == ("A child", {"a": "b"}, NOON)
    assert (chat.state, chat.mcp_server_ids, chat.pin_order) == (State.W, (), None)


async def test_a_missing_chat_is_none(world: StoreRig) -> None:
    assert await chat_rows.find_chat(world.conn, ChatId(uuid4())) is None


async def test_the_pin_is_the_viewers(world: StoreRig) -> None:
    user, other = await world.user(), await world.user()
    chat = await world.chat(user)
    await pins.pin(world.conn, chat, user_id=other)

    theirs = await chat_rows.find_chat(world.conn, chat, viewer_id=other)
    mine = await chat_rows.find_chat(world.conn, chat, viewer_id=user)

    assert theirs is not None
    assert mine is not None
    assert (theirs.pin_order, mine.pin_order) == (1, None)


async def test_a_title_is_written_while_the_chat_is_as_it_was_seen(world: StoreRig) -> None:
    chat = await world.chat(await world.user(), "First words")
    await world.message(chat)
    seen = (await load(world, chat)).history_version

    written = await chat_rows.write_title(
        world.conn, chat, title="Generated", seen_title="First words", seen_history_version=seen
    )

    assert written
    assert (await load(world, chat)).title == "Generated"


async def test_a_generated_title_never_overwrites_a_persons(world: StoreRig) -> None:
    chat = await world.chat(await world.user(), "First words")
    assert await chat_rows.write_title(world.conn, chat, title="Mine")

    assert not await chat_rows.write_title(world.conn, chat, title="Generated", seen_title="First words")

    assert (await load(world, chat)).title == "Mine"


async def test_texts_about_an_older_history_are_dropped(world: StoreRig) -> None:
    chat = await world.chat(await world.user(), "Title")
    await world.message(chat)
    seen = (await load(world, chat)).history_version
    await world.message(chat)

    assert not await chat_rows.write_title(world.conn, chat, title="New", seen_history_version=seen)
    assert not await chat_rows.write_summary(world.conn, chat, summary="New", seen_history_version=seen)
    assert not await chat_rows.write_turn_summary(world.conn, chat, summary="New", seen_history_version=seen)

    loaded = await load(world, chat)
    assert (loaded.title, loaded.summary, loaded.last_turn_summary) == ("Title", None, None)


async def test_texts_about_a_missing_chat_are_dropped(world: StoreRig) -> None:
    nowhere = ChatId(uuid4())

    assert not await chat_rows.write_title(world.conn, nowhere, title="New")
    assert not await chat_rows.write_summary(world.conn, nowhere, summary="New", seen_history_version=0)
    assert not await chat_rows.write_turn_summary(world.conn, nowhere, summary="New", seen_history_version=0)


async def test_a_summary_is_written_with_its_time(world: StoreRig) -> None:
    chat = await world.chat(await world.user())

    assert await chat_rows.write_summary(world.conn, chat, summary="What was done.", seen_history_version=0)

    loaded = await load(world, chat)
    assert loaded.summary == "What was done."
    assert loaded.summary_generated_at is not None


@pytest.mark.parametrize("blank", [None, "", "  \n\t"])
async def test_a_blank_turn_summary_clears_it(world: StoreRig, blank: str | None) -> None:
    chat = await world.chat(await world.user())
    assert await chat_rows.write_turn_summary(world.conn, chat, summary=" Tests pass ", seen_history_version=0)
    assert (await load(world, chat)).last_turn_summary == "Tests pass"

    assert await chat_rows.write_turn_summary(world.conn, chat, summary=blank, seen_history_version=0)

    assert (await load(world, chat)).last_turn_summary is None


async def test_texts_that_cannot_be_stored_are_repaired(world: StoreRig) -> None:
    chat = await world.chat(await world.user())

    await chat_rows.write_title(world.conn, chat, title="nul\0 half \ud83d")
    await chat_rows.write_summary(world.conn, chat, summary="nul\0", seen_history_version=0)
    await chat_rows.write_turn_summary(world.conn, chat, summary="\udc00", seen_history_version=0)

    loaded = await load(world, chat)
    assert (loaded.title, loaded.summary, loaded.last_turn_summary) == ("nul\ufffd half \ufffd", "nul\ufffd", "\ufffd")


async def test_texts_move_the_meta_version_and_keep_the_chats_place(world: StoreRig) -> None:
    chat = await world.chat(await world.user(), updated_at=NOON)
    before = await world.versions(chat)

    await chat_rows.write_title(world.conn, chat, title="New")
    await chat_rows.write_title(world.conn, chat, title="New")
    await chat_rows.write_summary(world.conn, chat, summary="New", seen_history_version=0)
    await chat_rows.write_turn_summary(world.conn, chat, summary="New", seen_history_version=0)

    assert await world.versions(chat) == before | {"meta_version": before["meta_version"] + 3}
    assert (await load(world, chat)).updated_at == NOON


async def test_a_chat_with_an_error_is_found_with_it(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    async with world.conn.transaction():
        await world.conn.execute(OPEN, chat)
        await world.conn.execute("""UPDATE chats SET status = 'error', last_error = '{"message": "x"}'""")

    loaded = await load(world, chat)

    assert (loaded.state, loaded.last_error) == (State.E0, '{"message": "x"}')
