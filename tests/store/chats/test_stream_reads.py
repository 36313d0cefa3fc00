"""Reads for streams: their results, and that their cost does not grow with the history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from uuid import uuid4

import pytest
from msgspec import UNSET

from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.chat.parts import Text
from rookery.domain.chat.prompt import PromptRow
from rookery.store.chats import chat_view_reads, stream_reads
from tests.store.builders import StoreRig, open_store_rig


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as opened:
        yield opened


async def chat_with(world: StoreRig, count: int) -> tuple[ChatId, list[MessageId]]:
    chat_id = await world.chat(await world.user())
    return chat_id, [await world.message(chat_id, f"message {n}") for n in range(count)]


def ids_of(rows: Iterable[PromptRow]) -> list[MessageId]:
    return [row.message.id for row in rows]


async def test_messages_of_a_long_chat_are_found_by_index(world: StoreRig) -> None:
    chat_id = await world.long_chat(await world.user())
    newest = await stream_reads.find_newest_id(world.conn, chat_id)
    assert newest is not None
    seen = (await world.versions(chat_id))["history_version"]

    plans: dict[str, list[tuple[str, tuple[object, ...]]]] = {
        "messages_live": [
            (stream_reads.WINDOW, (chat_id, 200, 8_000_000)),
            (stream_reads.AFTER, (chat_id, newest - 10, 1001)),
            (stream_reads.MEASURE, (chat_id, newest - 10, 1001)),
            (stream_reads.NEWEST_ID, (chat_id,)),
        ],
        "messages_revision": [(stream_reads.DELTA, (chat_id, seen, 1001))],
    }

    for index, statements in plans.items():
        for statement, arguments in statements:
            for plan in await world.plans(statement, *arguments):
                assert index in plan, plan
                assert "Seq Scan on chat_messages" not in plan


async def test_chats_are_polled_by_key(world: StoreRig) -> None:
    owner = await world.user()
    chat_id = await world.long_chat(owner, length=10, others=300)

    hints = await stream_reads.poll(world.conn, [chat_id, uuid4()])
    plans = await world.plans(stream_reads.POLL.replace("$1", "$1::uuid[]"), "{" + str(chat_id) + "}")

    assert [hint.chat_id for hint in hints] == [chat_id]
    assert (hints[0].status, hints[0].archived, hints[0].gone) == ("waiting", False, False)
    assert all("chats_pkey" in plan for plan in plans)


async def test_listed_chats_read_one_message_each(world: StoreRig) -> None:
    owner = await world.user()
    chat_id = await world.long_chat(owner)

    plans = await world.plans(chat_view_reads.FOR_VIEWERS, "{" + str(chat_id) + "}", "{" + str(owner) + "}")
    ((viewer, listed),) = await chat_view_reads.list_for_viewers(world.conn, [(chat_id, owner)])

    assert all("messages_role" in plan and "messages_live" in plan for plan in plans)
    assert all("Seq Scan on chat_messages" not in plan for plan in plans)
    assert (viewer, listed.id, listed.has_unread, listed.children) == (owner, chat_id, True, UNSET)


async def test_chat_is_not_listed_for_who_may_not_read_it(world: StoreRig) -> None:
    owner, admin, stranger = await world.user(), await world.user(), await world.user()
    await world.conn.execute("UPDATE users SET role = 'admin' WHERE id = $1", admin)
    chat_id = await world.chat(owner)
    pairs = [(chat_id, owner), (chat_id, admin), (chat_id, stranger), (uuid4(), owner), (chat_id, uuid4())]

    found = await chat_view_reads.list_for_viewers(world.conn, pairs)

    assert [(viewer, chat.id) for viewer, chat in found] == [(owner, chat_id)]


async def test_window_has_figures_and_tells_of_older_ones(world: StoreRig) -> None:
    chat_id = await world.chat(await world.user())
    for n in range(3):
        await world.message(chat_id, f"{n}")
    await world.conn.execute("ALTER TABLE chat_messages DISABLE TRIGGER USER")
    await world.conn.execute("UPDATE chat_messages SET input_tokens = 7, cost_micros = 3, runtime_ms = 9")

    page = await stream_reads.list_window(world.conn, chat_id, tail=2)

    assert page.has_more
    assert [row.message.parts() for row in page.rows] == [(Text("1"),), (Text("2"),)]
    assert [(row.figures.input_tokens, row.figures.cost_micros, row.figures.runtime_ms) for row in page.rows] == [
        (7, 3, 9)
    ] * 2


async def test_window_ends_at_its_tail(world: StoreRig) -> None:
    chat_id, ids = await chat_with(world, 5)

    page = await stream_reads.list_window(world.conn, chat_id, tail=2)

    assert (ids_of(page.rows), page.has_more) == (ids[3:], True)
    assert (await stream_reads.list_window(world.conn, chat_id, tail=5)).has_more is False


async def test_window_ends_at_its_size(world: StoreRig) -> None:
    chat_id = await world.chat(await world.user())
    ids = [await world.message(chat_id, "x" * 1000) for _ in range(4)]

    page = await stream_reads.list_window(world.conn, chat_id, tail=10, max_bytes=2500)

    assert (ids_of(page.rows), page.has_more) == (ids[2:], True)


async def test_window_of_one_huge_message_holds_it(world: StoreRig) -> None:
    chat_id = await world.chat(await world.user())
    await world.message(chat_id, "small")
    large = await world.message(chat_id, "x" * 5000)

    page = await stream_reads.list_window(world.conn, chat_id, tail=10, max_bytes=1000)

    assert (ids_of(page.rows), page.has_more) == ([large], True)


async def test_window_without_a_tail_holds_nothing_but_knows_of_more(world: StoreRig) -> None:
    chat_id, _ = await chat_with(world, 1)

    assert await stream_reads.list_window(world.conn, chat_id, tail=0) == stream_reads.Page((), True)


async def test_delta_holds_what_people_see_that_came_after_the_seen_version(world: StoreRig) -> None:
    chat_id, _ = await chat_with(world, 2)
    seen = (await world.versions(chat_id))["history_version"]
    new = await world.message(chat_id)
    await world.message(chat_id, role="system", visibility="model")

    delta = await stream_reads.list_delta(world.conn, chat_id, seen=seen, limit=10)

    assert ids_of(delta) == [new]


async def test_delta_marks_deleted_rows_without_their_content(world: StoreRig) -> None:
    chat_id, ids = await chat_with(world, 3)
    seen = (await world.versions(chat_id))["history_version"]
    await world.cut(chat_id, from_id=ids[1])
    new = await world.message(chat_id, "instead")

    delta = [row.message for row in await stream_reads.list_delta(world.conn, chat_id, seen=seen, limit=10)]

    assert [(row.id, row.deleted) for row in delta] == [(ids[1], True), (ids[2], True), (new, False)]
    assert [row.parts() for row in delta] == [(), (), (Text("instead"),)]


async def test_delta_is_no_longer_than_asked(world: StoreRig) -> None:
    chat_id, ids = await chat_with(world, 3)

    assert ids_of(await stream_reads.list_delta(world.conn, chat_id, seen=0, limit=2)) == ids[:2]


async def test_missing_is_counted_no_further_than_asked(world: StoreRig) -> None:
    chat_id = await world.chat(await world.user())
    ids = [await world.message(chat_id, "abc") for _ in range(5)]

    missing = await stream_reads.measure_after(world.conn, chat_id, after_id=ids[0], limit=3)
    none = await stream_reads.measure_after(world.conn, chat_id, after_id=ids[4], limit=3)

    assert missing.count == 3
    assert missing.size_bytes > 0
    assert (none.count, none.size_bytes) == (0, 0)


@pytest.mark.parametrize("number", [0, -1, 2**63, 10**30])
async def test_number_that_no_message_has_is_not_live(world: StoreRig, number: int) -> None:
    chat_id = await world.chat(await world.user())

    assert not await stream_reads.is_live(world.conn, chat_id, message_id=number)
