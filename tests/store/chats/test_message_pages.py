"""Pages of messages for the API: order, positions, queue, versions, and the search in one chat."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rookery.domain.chat.errors import InvalidInput, MessageNotFound
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.chat.prompt import PromptRow
from rookery.store.authorized.messages import MessageList
from tests.store.builders import OPEN
from tests.store.chats.chat_lists import ChatLists, open_shelf


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


async def listed(lists: ChatLists, chat_id: ChatId, **options: int) -> MessageList:
    return await lists.by("ada").messages.list(chat_id, **options)


def ids(page: MessageList) -> list[MessageId]:
    return [row.message.id for row in page.items]


async def written(lists: ChatLists, chat_id: ChatId, count: int) -> list[MessageId]:
    """The messages, oldest first."""
    return [await lists.world.message(chat_id, role="user") for _ in range(count)]


async def test_without_a_place_the_newest_come_first_with_queue_and_versions(lists: ChatLists) -> None:
    chat = await lists.chat()
    rows = await written(lists, chat, 3)
    await lists.set(chat, "status = 'running'")
    async with lists.world.conn.transaction():
        await lists.world.conn.execute(OPEN, chat)
        await lists.world.conn.execute(
            "INSERT INTO chat_queued_messages (chat_id, position, content, content_version, created_by)"
            " VALUES ($1, 2, '[]', 1, $2), ($1, 1, '[]', 1, $2)",
            chat,
            lists.id("ada"),
        )

    page = await listed(lists, chat, limit=2)

    assert (ids(page), page.has_more, page.has_newer) == (rows[:0:-1], True, False)
    assert [queued.position for queued in page.queued_messages or ()] == [1, 2]
    versions = await lists.world.versions(chat)
    assert (page.snapshot_version, page.history_version) == (versions["snapshot_version"], versions["history_version"])
    assert page.history_version < page.snapshot_version


async def test_places_cut_the_list(lists: ChatLists) -> None:
    chat = await lists.chat()
    a, b, c, d, e = await written(lists, chat, 5)

    for options, found, has_more in (
        ({"before_id": d, "limit": 2}, [c, b], True),
        ({"before_id": c}, [b, a], False),
        ({"before_id": 0}, [], False),
        ({"before_id": 2**70}, [e, d, c, b, a], False),
        ({"after_id": b, "limit": 2}, [c, d], True),
        ({"after_id": c}, [d, e], False),
        ({"after_id": 0, "limit": 1}, [a], True),
        ({"after_id": 2**70}, [], False),
        ({"after_id": a, "before_id": e}, [d, c, b], False),
        ({"after_id": a, "before_id": e, "limit": 2}, [d, c], True),
    ):
        page = await listed(lists, chat, **options)
        assert (ids(page), page.has_more, page.queued_messages) == (found, has_more, None), options


async def test_a_poller_walks_a_burst_without_gaps(lists: ChatLists) -> None:
    chat = await lists.world.long_chat(lists.id("ada"), length=300, others=1)
    seen: list[MessageId] = []

    while (page := await listed(lists, chat, after_id=seen[-1] if seen else 0)).items:
        seen += ids(page)

    assert len(seen) == 300
    assert seen == sorted(seen)


async def test_around_a_message_are_its_neighbours(lists: ChatLists) -> None:
    chat = await lists.chat()
    a, b, c, d, e = await written(lists, chat, 5)

    for middle, limit, found, has_more, has_newer in (
        (c, 3, [d, c, b], True, True),
        (c, 4, [d, c, b, a], False, True),
        (c, 1, [c], True, True),
        (a, 3, [b, a], False, True),
        (e, 2, [e, d], True, False),
        (c, 50, [e, d, c, b, a], False, False),
    ):
        page = await listed(lists, chat, around_id=middle, limit=limit)
        assert (ids(page), page.has_more, page.has_newer) == (found, has_more, has_newer), (middle, limit)
        assert page.queued_messages is None


async def test_around_what_is_not_there_is_nothing(lists: ChatLists) -> None:
    chat, other = await lists.chats(2)
    hidden = await lists.world.message(chat, visibility="model")
    foreign = await lists.world.message(other)
    deleted = await lists.world.message(chat)
    await lists.world.cut(chat, from_id=deleted)

    for missing in (hidden, foreign, deleted, 0, 2**70):
        with pytest.raises(MessageNotFound):
            await listed(lists, chat, around_id=missing)
        with pytest.raises(MessageNotFound):
            await lists.by("ada").messages.get(chat, MessageId(missing))
    assert ids(await listed(lists, chat)) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"before_id": -1}, "before_id"),
        ({"after_id": -1}, "after_id"),
        ({"around_id": -1}, "around_id"),
        ({"after_id": 5, "before_id": 5}, "after_id"),
        ({"around_id": 5, "before_id": 9}, "around_id"),
        ({"around_id": 5, "after_id": 1}, "around_id"),
    ],
)
async def test_bad_places_are_refused_by_name(lists: ChatLists, options: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await listed(lists, await lists.chat(), **options)

    assert caught.value.field == field


async def test_messages_come_with_their_figures(lists: ChatLists) -> None:
    chat = await lists.chat()
    async with lists.world.conn.transaction():
        await lists.world.conn.execute(OPEN, chat)
        message_id = await lists.world.conn.fetchval(
            "INSERT INTO chat_messages (chat_id, role, visibility, content, content_version, input_tokens, cost_micros)"
            " VALUES ($1, 'assistant', 'both', '[]', 1, 7, 9) RETURNING id",
            chat,
        )

    def figures(row: PromptRow) -> tuple[int | None, int | None]:
        return row.figures.input_tokens, row.figures.cost_micros

    assert figures(await lists.by("ada").messages.get(chat, message_id)) == (7, 9)
    for options in ({}, {"after_id": 0}, {"around_id": message_id}):
        assert [figures(row) for row in (await listed(lists, chat, **options)).items] == [(7, 9)]


async def test_a_chat_is_searched_newest_first(lists: ChatLists) -> None:
    chat, other = await lists.chats(2)
    first = await lists.world.message(chat, "A fox\0 in the hay.", role="user")
    await lists.world.message(chat, "fox", role="system")
    second = await lists.world.message(chat, "Two foxes and a Fox.")
    await lists.world.message(other, "fox")
    await lists.sweep()
    mine = lists.by("ada").messages

    found = await mine.search(chat, "fox")

    assert [(match.chat_id, match.message_id) for match in found] == [(chat, second), (chat, first)]
    assert [match.snippet for match in found] == ["Two foxes and a Fox.", "A fox in the hay."]
    assert await mine.search(chat, "fox", limit=1) == found[:1]
    assert await mine.search(chat, "...") == ()
    for query, limit, field in (("x" * 1001, 5, "q"), ("fox", 0, "limit"), ("fox", 201, "limit")):
        with pytest.raises(InvalidInput) as caught:
            await mine.search(chat, query, limit=limit)
        assert caught.value.field == field
