"""Lists of chats page by page, and the texts written about chats afterwards."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from rookery.chat.errors import InvalidInput
from rookery.chat.messages import ChatId
from rookery.chat.states import State
from rookery.store import chats, pins
from rookery.store.chats import ChatSummary
from tests.store.builders import OPEN, World, open_world

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with open_world(database_url) as world:
        yield world


async def chats_of(world: World, owner: UUID, count: int) -> list[ChatId]:
    """Newest first, as a list shows them."""
    return [await world.chat(owner, updated_at=NOON - timedelta(minutes=n)) for n in range(count)]


async def all_pages(world: World, owner: UUID, *, limit: int) -> list[list[ChatId]]:
    pages = []
    cursor: str | None = None
    while True:
        page = await chats.list_chats(world.conn, owner, limit=limit, cursor=cursor)
        pages.append([chat.id for chat in page.chats])
        if (cursor := page.next_cursor) is None:
            return pages


async def load(world: World, chat_id: ChatId) -> ChatSummary:
    chat = await chats.find_chat(world.conn, chat_id)
    assert chat is not None
    return chat


def test_columns_are_the_fields_of_a_summary_in_order() -> None:
    assert f"{chats.COLUMNS}, c.pin_order" == ", ".join(f"c.{name}" for name in ChatSummary.__struct_fields__)


async def test_a_chat_is_found_with_its_metadata(world: World) -> None:
    user = await world.user()
    root = await world.chat(user)
    child = await world.chat(user, "A child", parent=root, labels={"a": "b"}, updated_at=NOON)

    chat = await load(world, child)

    assert (chat.id, chat.parent_chat_id, chat.root_chat_id) == (child, root, root)
    assert (chat.title, chat.labels, chat.updated_at) == ("A child", {"a": "b"}, NOON)
    assert (chat.state, chat.mcp_server_ids, chat.pin_order) == (State.W, (), None)


async def test_a_missing_chat_is_none(world: World) -> None:
    assert await chats.find_chat(world.conn, ChatId(uuid4())) is None


async def test_the_pin_is_the_viewers(world: World) -> None:
    user, other = await world.user(), await world.user()
    chat = await world.chat(user)
    await pins.pin(world.conn, chat, user_id=other)

    theirs = await chats.find_chat(world.conn, chat, viewer_id=other)
    mine = await chats.find_chat(world.conn, chat, viewer_id=user)

    assert theirs is not None
    assert mine is not None
    assert (theirs.pin_order, mine.pin_order) == (1, None)


async def test_pages_hold_each_chat_once_newest_first(world: World) -> None:
    user = await world.user()
    listed = await chats_of(world, user, 7)

    assert await all_pages(world, user, limit=3) == [listed[:3], listed[3:6], listed[6:]]


async def test_a_list_that_fills_its_last_page_ends_there(world: World) -> None:
    user = await world.user()
    listed = await chats_of(world, user, 4)

    assert await all_pages(world, user, limit=2) == [listed[:2], listed[2:]]


async def test_chats_of_the_same_moment_are_told_apart_by_id(world: World) -> None:
    user = await world.user()
    same = [await world.chat(user, updated_at=NOON) for _ in range(5)]

    pages = await all_pages(world, user, limit=2)

    assert [chat for page in pages for chat in page] == sorted(same, reverse=True)


async def test_only_the_owners_roots_in_the_asked_archive_state_are_listed(world: World) -> None:
    user, other = await world.user(), await world.user()
    root, archived = await world.chat(user), await world.chat(user, archived=True)
    await world.chat(user, parent=root)
    await world.chat(other)

    active = await chats.list_chats(world.conn, user)
    shelved = await chats.list_chats(world.conn, user, archived=True)

    assert [chat.id for chat in active.chats] == [root]
    assert [chat.id for chat in shelved.chats] == [archived]


async def test_pins_come_first_in_their_order_and_on_no_other_page(world: World) -> None:
    user = await world.user()
    listed = await chats_of(world, user, 6)
    for index in (5, 1):
        await pins.pin(world.conn, listed[index], user_id=user)

    pages = await all_pages(world, user, limit=3)

    assert pages == [[listed[5], listed[1], listed[0]], [listed[2], listed[3], listed[4]]]


@pytest.mark.parametrize("pinned", [2, 3, 4])
async def test_pins_that_fill_the_first_page_leave_the_rest_to_the_next(world: World, pinned: int) -> None:
    user = await world.user()
    listed = await chats_of(world, user, 5)
    for chat in listed[:pinned]:
        await pins.pin(world.conn, chat, user_id=user)

    pages = await all_pages(world, user, limit=2)

    assert pages[0] == listed[:pinned]
    assert [chat for page in pages for chat in page] == listed


async def test_the_viewers_pins_order_another_owners_list(world: World) -> None:
    user, other = await world.user(), await world.user()
    first, second = await chats_of(world, user, 2)
    await pins.pin(world.conn, first, user_id=user)
    await pins.pin(world.conn, second, user_id=other)

    page = await chats.list_chats(world.conn, user, viewer_id=other)

    assert [(chat.id, chat.pin_order) for chat in page.chats] == [(second, 1), (first, None)]


async def test_the_cursor_stays_good_when_its_chat_moves_or_goes(world: World) -> None:
    user = await world.user()
    listed = await chats_of(world, user, 5)
    page = await chats.list_chats(world.conn, user, limit=2)
    moved = page.chats[-1].id

    await world.conn.execute("UPDATE chats SET updated_at = $2 WHERE id = $1", moved, NOON + timedelta(days=1))
    after_move = await chats.list_chats(world.conn, user, limit=2, cursor=page.next_cursor)
    await world.conn.execute("DELETE FROM chats WHERE id = $1", moved)
    after_deletion = await chats.list_chats(world.conn, user, limit=2, cursor=page.next_cursor)

    assert [chat.id for chat in after_move.chats] == listed[2:4]
    assert after_deletion == after_move


async def test_microseconds_survive_the_cursor(world: World) -> None:
    user = await world.user()
    listed = [await world.chat(user, updated_at=NOON - timedelta(microseconds=n)) for n in range(4)]

    assert await all_pages(world, user, limit=1) == [[chat] for chat in listed]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "not a cursor!",
        "é" * 34,
        "A" * 34,
        "A" * 10_000,
        base64.urlsafe_b64encode(b"\x01" + b"\x7f" + b"\xff" * 23).decode().rstrip("="),
        base64.urlsafe_b64encode(b"\x01" + b"\x80" + b"\x00" * 23).decode().rstrip("="),
    ],
)
async def test_a_made_up_cursor_is_refused_by_name(world: World, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await chats.list_chats(world.conn, await world.user(), cursor=cursor)

    assert caught.value.field == "cursor"


@pytest.mark.parametrize("limit", [-1, 0, 201])
async def test_a_limit_out_of_range_is_refused_by_name(world: World, limit: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        await chats.list_chats(world.conn, await world.user(), limit=limit)

    assert caught.value.field == "limit"


async def test_the_label_filter_takes_chats_that_have_them_all(world: World) -> None:
    user = await world.user()
    both = await world.chat(user, labels={"team": "a", "env": "x", "more": "1"})
    await world.chat(user, labels={"team": "a"})
    await world.chat(user, labels={"team": "b", "env": "x"})
    pinned = await world.chat(user, labels={"team": "a", "env": "x"})
    other_pin = await world.chat(user)
    for chat in (other_pin, pinned):
        await pins.pin(world.conn, chat, user_id=user)

    first = await chats.list_chats(world.conn, user, labels={"team": "a", "env": "x"}, limit=1)
    second = await chats.list_chats(
        world.conn, user, labels={"team": "a", "env": "x"}, limit=1, cursor=first.next_cursor
    )

    assert [chat.id for chat in first.chats] == [pinned]
    assert ([chat.id for chat in second.chats], second.next_cursor) == ([both], None)


async def test_a_label_filter_no_label_can_have_is_refused_by_name(world: World) -> None:
    with pytest.raises(InvalidInput) as caught:
        await chats.list_chats(world.conn, await world.user(), labels={"team": "nul\0"})

    assert caught.value.field == "labels.team"


async def test_long_lists_are_read_through_chats_list_at_any_depth(world: World) -> None:
    user, other = await world.user(), await world.user()
    for owner in (user, other):
        await world.conn.execute(
            """
            INSERT INTO chats (owner_id, status, title, last_model_config_id, updated_at)
            SELECT $1, 'waiting', 'Chat ' || i, $2, $3::timestamptz - i * interval '1 minute'
              FROM generate_series(1, 3000) i
            """,
            owner,
            world.model_id,
            NOON,
        )
    await pins.pin(world.conn, await world.chat(user), user_id=user)
    await world.conn.execute("ANALYZE")

    for statement in (chats.FIRST_PAGE, chats.NEXT_PAGE):
        for depth in (0, 1500, 2900):
            at = NOON - timedelta(minutes=depth)
            for plan in await world.plans(statement, user, user, "false", at, uuid4(), 51):
                assert "using chats_list" in plan, plan
                assert "Seq Scan on chats" not in plan, plan


async def test_a_title_is_written_while_the_chat_is_as_it_was_seen(world: World) -> None:
    chat = await world.chat(await world.user(), "First words")
    await world.message(chat)
    seen = (await load(world, chat)).history_version

    written = await chats.write_title(
        world.conn, chat, title="Generated", seen_title="First words", seen_history_version=seen
    )

    assert written
    assert (await load(world, chat)).title == "Generated"


async def test_a_generated_title_never_overwrites_a_persons(world: World) -> None:
    chat = await world.chat(await world.user(), "First words")
    assert await chats.write_title(world.conn, chat, title="Mine")

    assert not await chats.write_title(world.conn, chat, title="Generated", seen_title="First words")

    assert (await load(world, chat)).title == "Mine"


async def test_texts_about_an_older_history_are_dropped(world: World) -> None:
    chat = await world.chat(await world.user(), "Title")
    await world.message(chat)
    seen = (await load(world, chat)).history_version
    await world.message(chat)

    assert not await chats.write_title(world.conn, chat, title="New", seen_history_version=seen)
    assert not await chats.write_summary(world.conn, chat, summary="New", seen_history_version=seen)
    assert not await chats.write_turn_summary(world.conn, chat, summary="New", seen_history_version=seen)

    loaded = await load(world, chat)
    assert (loaded.title, loaded.summary, loaded.last_turn_summary) == ("Title", None, None)


async def test_texts_about_a_missing_chat_are_dropped(world: World) -> None:
    nowhere = ChatId(uuid4())

    assert not await chats.write_title(world.conn, nowhere, title="New")
    assert not await chats.write_summary(world.conn, nowhere, summary="New", seen_history_version=0)
    assert not await chats.write_turn_summary(world.conn, nowhere, summary="New", seen_history_version=0)


async def test_a_summary_is_written_with_its_time(world: World) -> None:
    chat = await world.chat(await world.user())

    assert await chats.write_summary(world.conn, chat, summary="What was done.", seen_history_version=0)

    loaded = await load(world, chat)
    assert loaded.summary == "What was done."
    assert loaded.summary_generated_at is not None


@pytest.mark.parametrize("blank", [None, "", "  \n\t"])
async def test_a_blank_turn_summary_clears_it(world: World, blank: str | None) -> None:
    chat = await world.chat(await world.user())
    assert await chats.write_turn_summary(world.conn, chat, summary=" Tests pass ", seen_history_version=0)
    assert (await load(world, chat)).last_turn_summary == "Tests pass"

    assert await chats.write_turn_summary(world.conn, chat, summary=blank, seen_history_version=0)

    assert (await load(world, chat)).last_turn_summary is None


async def test_texts_that_cannot_be_stored_are_repaired(world: World) -> None:
    chat = await world.chat(await world.user())

    await chats.write_title(world.conn, chat, title="nul\0 half \ud83d")
    await chats.write_summary(world.conn, chat, summary="nul\0", seen_history_version=0)
    await chats.write_turn_summary(world.conn, chat, summary="\udc00", seen_history_version=0)

    loaded = await load(world, chat)
    assert (loaded.title, loaded.summary, loaded.last_turn_summary) == ("nul\ufffd half \ufffd", "nul\ufffd", "\ufffd")


async def test_texts_move_the_meta_version_and_keep_the_chats_place(world: World) -> None:
    chat = await world.chat(await world.user(), updated_at=NOON)
    before = await world.versions(chat)

    await chats.write_title(world.conn, chat, title="New")
    await chats.write_title(world.conn, chat, title="New")
    await chats.write_summary(world.conn, chat, summary="New", seen_history_version=0)
    await chats.write_turn_summary(world.conn, chat, summary="New", seen_history_version=0)

    assert await world.versions(chat) == before | {"meta_version": before["meta_version"] + 3}
    assert (await load(world, chat)).updated_at == NOON


async def test_a_chat_with_an_error_is_listed_with_it(world: World) -> None:
    user = await world.user()
    chat = await world.chat(user)
    async with world.conn.transaction():
        await world.conn.execute(OPEN, chat)
        await world.conn.execute("""UPDATE chats SET status = 'error', last_error = '{"message": "x"}'""")

    [listed] = (await chats.list_chats(world.conn, user)).chats

    assert (listed.state, listed.last_error) == (State.E0, '{"message": "x"}')
