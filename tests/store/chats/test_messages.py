"""Reads of messages: for users, for the model, and the indexes that they use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Effort, Message, MessageId, Role, Visibility
from rookery.domain.chat.prompt import PromptRow
from rookery.store.chats import messages, stream_reads
from tests.store.builders import StoreRig, open_store_rig


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def chat_with(world: StoreRig, count: int) -> tuple[ChatId, list[MessageId]]:
    chat = await world.chat(await world.user())
    return chat, [await world.message(chat, f"message {n}") for n in range(count)]


def ids(rows: Iterable[Message]) -> list[MessageId]:
    return [row.id for row in rows]


def told_ids(rows: Iterable[PromptRow]) -> list[MessageId]:
    return ids(row.message for row in rows)


def test_columns_are_the_fields_of_a_message_in_order() -> None:
    assert ", ".join(f"m.{name}" for name in Message.__struct_fields__) == messages.COLUMNS


async def test_a_row_is_read_with_true_types(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    content = (parts.Text("nul \0 and \ue000"), parts.Text("é"))
    message_id = await world.message(chat, role="user", visibility="user", content=content, effort="high")

    message = await messages.find_visible(world.conn, chat, message_id=message_id)

    assert message is not None
    assert (message.id, message.chat_id) == (message_id, chat)
    assert message.role is Role.USER
    assert message.visibility is Visibility.USER
    assert message.reasoning_effort is Effort.HIGH
    assert isinstance(message.chat_id, UUID)
    assert message.parts() == content


async def test_people_see_live_rows_meant_for_them_in_order(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    await world.message(chat, role="system", visibility="model")
    seen = [
        await world.message(chat, role="user"),
        await world.message(chat, role="assistant", visibility="user", compressed=True),
        await world.message(chat, role="tool"),
    ]
    await world.message(chat, role="user", visibility="model")
    removed = await world.message(chat)
    await world.cut(chat, from_id=removed)
    other, _ = await chat_with(world, 1)

    assert ids((await messages.list_oldest(world.conn, chat, limit=10)).messages) == seen
    assert told_ids((await stream_reads.list_window(world.conn, chat, tail=10)).rows) == seen
    assert await messages.find_visible(world.conn, chat, message_id=removed) is None
    assert await messages.find_visible(world.conn, other, message_id=seen[0]) is None


async def test_pages_go_forward_from_an_id(world: StoreRig) -> None:
    chat, rows = await chat_with(world, 5)
    await chat_with(world, 2)

    first = await messages.list_oldest(world.conn, chat, limit=2, after_id=rows[0])
    rest = await messages.list_oldest(world.conn, chat, limit=2, after_id=first.messages[-1].id)

    assert (ids(first.messages), first.has_more) == (rows[1:3], True)
    assert (ids(rest.messages), rest.has_more) == (rows[3:], False)


@pytest.mark.parametrize("far", [2**63, 10**30])
async def test_number_that_no_row_can_have_is_a_place_before_or_after_all(world: StoreRig, far: int) -> None:
    chat, rows = await chat_with(world, 2)

    assert await messages.find_visible(world.conn, chat, message_id=MessageId(far)) is None
    assert await messages.find_visible(world.conn, chat, message_id=MessageId(-far)) is None
    assert ids((await messages.list_oldest(world.conn, chat, limit=5, after_id=-far)).messages) == rows
    assert ids((await messages.list_oldest(world.conn, chat, limit=5, after_id=far)).messages) == []


async def test_a_missing_chat_has_no_messages(world: StoreRig) -> None:
    nowhere = ChatId(uuid4())
    await chat_with(world, 1)

    assert await messages.list_oldest(world.conn, nowhere, limit=5) == messages.MessagePage((), False)
    assert await stream_reads.list_window(world.conn, nowhere, tail=5) == stream_reads.Page((), False)
    assert await messages.list_prompt(world.conn, nowhere) == ()
    assert await stream_reads.list_delta(world.conn, nowhere, seen=0, limit=5) == ()


async def test_the_prompt_is_everything_for_the_model_before_the_first_compaction(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    told = [
        await world.message(chat, role="system", visibility="model"),
        await world.message(chat, role="user"),
        await world.message(chat, role="user", visibility="model"),
        await world.message(chat, role="assistant"),
        await world.message(chat, role="tool"),
    ]
    await world.message(chat, role="system", visibility="user")

    assert told_ids(await messages.list_prompt(world.conn, chat)) == told


async def compact(world: StoreRig, chat: ChatId) -> MessageId:
    """Insert the three rows of a compaction. Return the boundary."""
    boundary = await world.message(chat, "summary", role="user", visibility="model", compressed=True)
    await world.message(chat, role="assistant", visibility="user", compressed=True)
    await world.message(chat, role="tool", visibility="both", compressed=True)
    return boundary


async def test_the_prompt_starts_over_at_the_newest_boundary_but_keeps_system_rows(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    system = await world.message(chat, role="system", visibility="model")
    await world.message(chat, role="user")
    await compact(world, chat)
    await world.message(chat, role="assistant")
    boundary = await compact(world, chat)
    late_system = await world.message(chat, role="system", visibility="model")
    question = await world.message(chat, role="user")

    prompt = await messages.list_prompt(world.conn, chat)

    assert told_ids(prompt) == [system, boundary, late_system, question]


async def test_an_edit_before_the_boundary_brings_the_older_rows_back(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    first = await world.message(chat, role="user")
    answer = await world.message(chat, role="assistant")
    edited = await world.message(chat, role="user")
    await compact(world, chat)

    await world.cut(chat, from_id=edited)

    assert told_ids(await messages.list_prompt(world.conn, chat)) == [first, answer]


async def test_long_chats_are_read_through_their_indexes(world: StoreRig) -> None:
    chat = await world.long_chat(await world.user())
    history_version = (await world.versions(chat))["history_version"]
    statements: list[tuple[str, tuple[object, ...], set[str]]] = [
        (messages.NEWEST, (chat, 0, 2**63 - 1, 51), {"messages_live"}),
        (messages.OLDEST, (chat, 10**6, 51), {"messages_live"}),
        (messages.WINDOW, (chat, 50, 2**23), {"messages_live"}),
        (messages.OLDER, (chat, 100), {"messages_live"}),
        (messages.DELTA, (chat, history_version, 1001), {"messages_revision"}),
        (messages.PROMPT, (chat,), {"messages_live", "messages_boundary", "messages_role"}),
    ]

    for statement, arguments, indexes in statements:
        for plan in await world.plans(statement, *arguments):
            assert "Seq Scan" not in plan, plan
            assert {index for index in indexes if index in plan} == indexes, plan


async def test_pages_of_a_chat_that_dominates_the_table_do_not_walk_everybodys_rows(world: StoreRig) -> None:
    chat = await world.long_chat(await world.user(), others=3)
    statements: list[tuple[str, tuple[object, ...]]] = [
        (messages.NEWEST, (chat, 0, 2**63 - 1, 51)),
        (messages.OLDEST, (chat, 0, 51)),
        (messages.OLDER, (chat, 2**63 - 1)),
        (messages.DELTA, (chat, 1, 51)),
    ]

    for statement, arguments in statements:
        for plan in await world.plans(statement, *arguments):
            assert "chat_messages_pkey" not in plan, plan
            assert "Seq Scan" not in plan, plan
