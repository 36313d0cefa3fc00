"""Full-text search: the matches, and texts that cannot be indexed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec
import pytest

from rookery.domain.access.rights import UserActor
from rookery.domain.chat import parts
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.content.search_query import Archived, ChatQuery, Source
from rookery.store.chats import chat_list, chat_rows, search
from rookery.store.chats.chat_list import ResolvedQuery
from tests.store.builders import StoreRig, open_store_rig

# Hyphenated words of four-byte characters, 200,000 in all: each part and each whole is a lexeme, together over 1 MiB.
TOO_MUCH_FOR_A_TSVECTOR = " ".join(
    "-".join(chr(0x20000 + (6 * n + k) % 40_000) + chr(0x20000 + n) for k in range(6)) for n in range(11_000)
)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def sweep_all(conn: asyncpg.Connection) -> int:
    total = 0
    while done := await search.sweep(conn):
        total += done
    return total


async def hits(
    world: StoreRig, owner: UUID, query: str, *, archived: Archived = Archived.NO, limit: int = 50
) -> list[tuple[ChatId, MessageId | None]]:
    """Return the found chats, each with the message that matched."""
    wanted = ResolvedQuery(
        query=ChatQuery(search=(query,), archived=archived), sources=frozenset({Source.CREATED_BY_ME})
    )
    page = await chat_list.list_chats(world.conn, wanted, actor=UserActor(owner), limit=limit)
    return [(chat.id, chat.match.message_id) for chat in page.items if chat.match is not None]


async def found(world: StoreRig, owner: UUID, query: str) -> list[ChatId]:
    return [chat_id for chat_id, _ in await hits(world, owner, query)]


async def pending(world: StoreRig) -> list[int]:
    records = await world.conn.fetch("SELECT message_id FROM chat_message_search WHERE tsv IS NULL ORDER BY message_id")
    return [record["message_id"] for record in records]


async def test_a_title_is_found_at_once(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user, "Deploy the beehive")
    await world.chat(user, "Something else")

    assert await hits(world, user, "beehive") == [(chat, None)]


async def test_a_message_is_found_after_the_sweep(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "The honey is ready.", role="user")
    newest = await world.message(chat, "More honey!")
    assert await found(world, user, "honey") == []

    assert await search.sweep(world.conn) == 2

    assert await hits(world, user, "honey") == [(chat, newest)]
    assert await search.sweep(world.conn) == 0


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("quick", True),
        ("QUICK fox", True),
        ('"quick brown"', True),
        ('"brown quick"', False),
        ("quick -fox", False),
        ("quick -cat", True),
        ("cat OR fox", True),
        ("cat", False),
        ("...!?", False),
        ("", False),
        ("   ", False),
        ("%", False),
        ("' \" \\ & | ! ( ) : *", False),
        ("fox\0", True),
        ("fox \ud83d", True),
    ],
)
async def test_the_query_reads_like_a_web_search(world: StoreRig, query: str, matches: bool) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "The quick brown fox")
    await sweep_all(world.conn)

    assert await found(world, user, query) == ([chat] if matches else [])


async def test_text_parts_are_joined_by_a_space_and_nothing_else_is_searched(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    content: list[parts.Part] = [
        parts.Text("alpha"),
        parts.Reasoning("hidden"),
        parts.ToolCall("1", "execute", args=msgspec.Raw(b'{"text": "hidden", "type": "text"}')),
        parts.Text("beta"),
    ]
    await world.message(chat, content=content)
    await sweep_all(world.conn)

    assert await found(world, user, '"alpha beta"') == [chat]
    assert await found(world, user, "hidden") == []


async def test_the_storage_escapes_are_not_part_of_words(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "left\0right up\ue000down \ue000\ue001end")
    await sweep_all(world.conn)

    for query in ("left", "right", "left\0right", "up", "down", "up\ue000down", "end"):
        assert await found(world, user, query) == [chat], query


async def test_words_inside_tags_are_found(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "Map<Beekeeper, Hive>")
    await sweep_all(world.conn)

    assert await found(world, user, "beekeeper") == [chat]
    assert await found(world, user, "Map<Beekeeper") == [chat]


@pytest.mark.parametrize(
    ("role", "visibility", "compressed"),
    [
        ("system", "both", False),
        ("tool", "both", False),
        ("user", "model", False),
        ("assistant", "user", True),
    ],
)
async def test_rows_not_meant_for_reading_are_not_searched(
    world: StoreRig, role: str, visibility: str, compressed: bool
) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "secret", role=role, visibility=visibility, compressed=compressed)

    assert await sweep_all(world.conn) == 0
    assert await found(world, user, "secret") == []


async def test_a_removed_message_is_not_found(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    message = await world.message(chat, "regret")
    await sweep_all(world.conn)

    await world.cut(chat, from_id=message)

    assert await found(world, user, "regret") == []


async def test_a_childs_title_and_text_find_the_root(world: StoreRig) -> None:
    user = await world.user()
    root = await world.chat(user)
    child = await world.chat(user, "Research pollen", parent=root)
    await world.message(child, "Nectar flows.")
    await sweep_all(world.conn)

    assert await found(world, user, "pollen") == [root]
    assert await found(world, user, "nectar") == [root]


async def test_only_the_owners_chats_in_the_asked_archive_state_are_found(world: StoreRig) -> None:
    user, other = await world.user(), await world.user()
    for owner in (user, other):
        await world.message(await world.chat(owner, "wasp"), "wasp")
    archived = await world.chat(user, "wasp", archived=True)
    await sweep_all(world.conn)

    assert len(await found(world, user, "wasp")) == 1
    assert await hits(world, user, "wasp", archived=Archived.YES) == [(archived, None)]
    assert len(await hits(world, user, "wasp", archived=Archived.ANY)) == 2


async def test_hits_come_newest_first_and_bounded(world: StoreRig) -> None:
    user = await world.user()
    made = [await world.chat(user, "drone") for _ in range(4)]

    assert await hits(world, user, "drone", limit=3) == [(chat, None) for chat in made[:0:-1]]


@pytest.mark.parametrize("query", ["x" * 1001, "\U00020000" * 600])
async def test_a_query_that_is_too_long_is_refused_by_name(world: StoreRig, query: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await found(world, await world.user(), query)

    assert caught.value.field == "q"


async def test_the_longest_word_allowed_is_no_error(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    word = "x" * 900
    await world.message(chat, f"see {word} there")
    await sweep_all(world.conn)

    assert await found(world, user, word) == [chat]


async def test_the_sweep_takes_the_newest_first(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    rows = [await world.message(chat) for _ in range(5)]

    assert await search.sweep(world.conn, batch=2) == 2

    assert await pending(world) == rows[:3]


async def test_two_sweeps_at_once_share_the_work(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    rows = [await world.message(chat) for _ in range(4)]

    async with world.connection() as other, other.transaction():
        assert await search.sweep(other, batch=2) == 2  # holds its rows until the outer transaction ends
        async with asyncio.timeout(10):
            assert await search.sweep(world.conn, batch=10) == 2

        assert await pending(world) == rows[2:]
    assert await pending(world) == []


async def test_the_sweep_moves_no_version(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    await world.message(chat)
    before = await world.versions(chat)
    before_at = await chat_rows.find_chat(world.conn, chat)

    assert await search.sweep(world.conn) == 1

    assert await world.versions(chat) == before
    assert await chat_rows.find_chat(world.conn, chat) == before_at


async def test_a_long_message_is_found_by_its_beginning(world: StoreRig) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, "needle " + "hay " * 1_250_000 + "thread")
    await sweep_all(world.conn)

    assert await found(world, user, "needle") == [chat]
    assert await found(world, user, "thread") == []


# Each of these takes PostgreSQL's parser a minute, or makes it raise or drop the word, when it is given as it is.
@pytest.mark.parametrize(
    "text",
    ["x" * 5_000_000, "a_" * 2_500_000, "<!-- " * 100_000, "1_" * 100_000, "é" * 1_000_000, "\ue000" * 300_000],
    ids=["no spaces", "underscores", "comments", "digits", "long non-ascii", "escapes"],
)
async def test_hostile_text_costs_the_sweep_little(world: StoreRig, text: str) -> None:
    user = await world.user()
    chat = await world.chat(user)
    await world.message(chat, f"first {text}")
    neighbour = await world.chat(user)
    await world.message(neighbour, "first neighbour")
    await world.conn.execute("SET statement_timeout = '20s'")

    assert await sweep_all(world.conn) == 2

    assert set(await found(world, user, "first")) == {chat, neighbour}


async def test_a_row_that_cannot_be_indexed_stays_empty_and_does_not_stop_the_sweep(world: StoreRig) -> None:
    user = await world.user()
    chats_around = [await world.chat(user) for _ in range(3)]
    for chat, text in zip(chats_around, ["before", TOO_MUCH_FOR_A_TSVECTOR, "after"], strict=True):
        await world.message(chat, text)
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await world.conn.fetchval("SELECT to_tsvector('simple', $1)", TOO_MUCH_FOR_A_TSVECTOR)

    assert await sweep_all(world.conn) == 3

    assert await found(world, user, "before") == [chats_around[0]]
    assert await found(world, user, "after") == [chats_around[2]]
    assert await pending(world) == []
    assert await world.conn.fetchval("SELECT count(*) FROM chat_message_search WHERE tsv = ''") == 1


@pytest.mark.parametrize(
    "content", ["[]", "[1, null, []]", '[{"type": "text"}]', '[{"type": "text", "text": {"a": 1}}]']
)
async def test_odd_content_is_swept_like_any_other(world: StoreRig, content: str) -> None:
    chat = await world.chat(await world.user())
    await world.message(chat, content=content)

    assert await sweep_all(world.conn) == 1
    assert await pending(world) == []


async def test_the_sweep_finds_what_is_pending_by_its_index(world: StoreRig) -> None:
    await world.long_chat(await world.user())
    await world.conn.execute("UPDATE chat_message_search SET tsv = '' WHERE message_id % 50 > 0")
    await world.conn.execute("ANALYZE")

    for plan in await world.plans(search.TAKE_PENDING, 20):
        assert "search_pending" in plan, plan


async def test_backfill_fills_the_newest_up_to_its_limit_and_then_the_rest(world: StoreRig) -> None:
    chat = await world.chat(await world.user())
    messages = [await world.message(chat) for _ in range(7)]

    assert await search.backfill(world.conn, max_rows=5, batch=2) == 5
    assert await pending(world) == messages[:2]
    assert await search.backfill(world.conn, batch=2) == 2
    assert await search.backfill(world.conn) == 0
