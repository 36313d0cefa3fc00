"""Sent messages of one chat and of all chats of a user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from rookery.domain.chat import parts
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.chats import sent_messages
from rookery.store.chats.sent_messages import Prompt
from tests.store.chats.chat_lists import ChatLists, open_shelf


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


async def asked(lists: ChatLists, chat_id: ChatId, **options: int) -> list[str]:
    return [prompt.text for prompt in await lists.by("ada").messages.prompts(chat_id, **options)]


async def test_prompts_come_newest_first_with_their_ids(lists: ChatLists) -> None:
    chat, other = await lists.chats(2)
    first = await lists.world.message(chat, "one", role="user")
    await lists.world.message(other, "elsewhere", role="user")
    second = await lists.world.message(chat, "two", role="user")

    found = await lists.by("ada").messages.prompts(chat)

    assert found == (Prompt(second, chat, "two"), Prompt(first, chat, "one"))


async def test_text_parts_are_joined_in_order_and_nothing_else(lists: ChatLists) -> None:
    chat = await lists.chat()
    content: list[parts.Part] = [
        parts.Text("look at"),
        parts.FileReference("a.py", 1, 2, "quoted"),
        parts.File("image/png", file_id=uuid4()),
        parts.Text("this\0 \ue000 \\ue000 \\ thing"),
    ]
    await lists.world.message(chat, role="user", content=content)

    assert await asked(lists, chat) == ["look at\nthis\0 \ue000 \\ue000 \\ thing"]


async def test_blank_deleted_hidden_and_foreign_rows_are_left_out(lists: ChatLists) -> None:
    chat = await lists.chat()
    await lists.world.message(chat, "kept", role="user")
    await lists.world.message(chat, "for people", role="user", visibility="user")
    await lists.world.message(chat, " \n\t", role="user")
    await lists.world.message(chat, role="user", content=[parts.File("image/png", file_id=uuid4())])
    await lists.world.message(chat, role="user", content='[1, null, {"type": "text"}, {"type": "text", "text": 5}]')
    await lists.world.message(chat, "for the model", role="user", visibility="model")
    await lists.world.message(chat, "system", role="system")
    await lists.world.message(chat, "answer")
    await lists.world.cut(chat, from_id=await lists.world.message(chat, "regretted", role="user"))

    assert await asked(lists, chat) == ["for people", "kept"]


async def test_the_limit_counts_prompts_and_not_blanks(lists: ChatLists) -> None:
    chat = await lists.chat()
    for n in range(4):
        await lists.world.message(chat, str(n), role="user")
        await lists.world.message(chat, " ", role="user")

    assert await asked(lists, chat, limit=1) == ["3"]
    assert await asked(lists, chat, limit=3) == ["3", "2", "1"]
    assert await asked(lists, chat, limit=2000) == ["3", "2", "1", "0"]


@pytest.mark.parametrize("limit", [-1, 0, 2001])
async def test_a_limit_out_of_range_is_refused_by_name(lists: ChatLists, limit: int) -> None:
    chat, mine = await lists.chat(), lists.by("ada").messages

    for call in (
        mine.prompts(chat, limit=limit),
        mine.list_prompts(lists.id("ada"), limit=limit),
        mine.list_prompts(lists.id("ada"), query="x", limit=limit),
    ):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "limit"


async def test_long_prompts_are_cut_off_from_the_oldest_on(lists: ChatLists) -> None:
    chat = await lists.chat()
    await lists.world.message(chat, "small and old", role="user")
    await lists.world.message(chat, "x" * sent_messages.MAX_BYTES, role="user")

    assert [len(text) for text in await asked(lists, chat)] == [sent_messages.MAX_BYTES]
    await lists.world.message(chat, "newest", role="user")
    assert await asked(lists, chat) == ["newest"]


async def test_own_prompts_are_those_of_all_own_root_chats(lists: ChatLists) -> None:
    first, second = await lists.chats(2)
    child, archived, foreign = await lists.chat(parent=first), await lists.chat(archived=True), await lists.chat("bob")
    await lists.share(foreign, "ada")
    said = [
        await lists.world.message(chat, f"words {n}", role="user")
        for n, chat in enumerate((first, second, child, archived, foreign, first))
    ]
    await lists.world.message(second, " ", role="user")

    found = await lists.by("ada").messages.list_prompts(lists.id("ada"))

    assert found == (
        Prompt(said[5], first, "words 5"),
        Prompt(said[3], archived, "words 3"),
        Prompt(said[1], second, "words 1"),
        Prompt(said[0], first, "words 0"),
    )
    assert await lists.by("ada").messages.list_prompts(lists.id("ada"), limit=2) == found[:2]


async def test_own_prompts_are_found_by_their_words(lists: ChatLists) -> None:
    chat, foreign = await lists.chat(), await lists.chat("bob")
    fox = await lists.world.message(chat, "The quick fox", role="user")
    await lists.world.message(chat, "a quick answer")
    await lists.world.message(chat, "the slow dog", role="user")
    await lists.world.message(foreign, "quick", role="user")
    await lists.world.message(await lists.chat(parent=chat), "quick", role="user")
    await lists.sweep()
    mine = lists.by("ada").messages

    async def found(query: str) -> list[int]:
        return [prompt.id for prompt in await mine.list_prompts(lists.id("ada"), query=query)]

    assert await found("QUICK") == [fox]
    assert await found('"quick fox" -dog') == [fox]
    assert len(await found("fox OR dog")) == 2
    assert await found("...") == await found("") == await found("cat") == []


async def test_a_query_that_is_too_long_is_refused_by_name(lists: ChatLists) -> None:
    with pytest.raises(InvalidInput) as caught:
        await lists.by("ada").messages.list_prompts(lists.id("ada"), query="x" * 1001)

    assert caught.value.field == "q"


async def test_prompts_of_a_long_chat_are_read_from_its_end(lists: ChatLists) -> None:
    chat = await lists.world.long_chat(lists.id("ada"))

    for plan in await lists.world.plans(sent_messages.LIST_OF_CHAT, chat, 5):
        assert "messages_role" in plan, plan
        assert "Seq Scan" not in plan, plan
