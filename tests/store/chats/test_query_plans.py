"""Query plans of chat lists: rows read grow with the page and the viewer's own chats, not with other users' chats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.content import search_query
from rookery.store.chats import chat_list, chat_view_reads, sent_messages
from rookery.store.chats.chat_list import Position, Statement
from tests.store.chats.chat_lists import NOON, ChatLists, open_shelf

OTHERS, OWN = 200_000, 20
# Rows of all tables together. The plans read 25 to 31 for each of the viewer's chats, with its child and its messages:
# which plan is chosen depends on the rows that ANALYZE happens to sample. A plan that reads the chats of only one other
# user reads 4,900.
FEW = 100 * OWN
# A kept statement settles on a plan for the arguments it was given, or for any.
MODES = ("force_custom_plan", "force_generic_plan")

FILL = """
    INSERT INTO chats (owner_id, status, title, last_model_config_id, updated_at)
    SELECT ($1::uuid[])[1 + i % cardinality($1)], 'waiting', 'Common words', $2,
           $3::timestamptz - i * interval '1 second'
      FROM generate_series(1, $4::int) i
"""
FILL_MESSAGES = """
    INSERT INTO chat_messages (chat_id, revision, role, visibility, content, content_version)
    SELECT c.id, 1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           '[{"type": "text", "text": "common words"}]', 1
      FROM (SELECT id FROM chats LIMIT 40000) c
     CROSS JOIN generate_series(1, 2) n
"""
INDEX_MESSAGES = """
    INSERT INTO chat_message_search (message_id, chat_id, tsv)
    SELECT id, chat_id, to_tsvector('simple', 'common words') FROM chat_messages
        ON CONFLICT (message_id) DO UPDATE SET tsv = excluded.tsv
"""


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


async def crowd(lists: ChatLists) -> list[ChatId]:
    """A few chats of ada among chats of forty other users. The triggers are disabled, because they are slow for many
    rows.
    """
    conn = lists.world.conn
    others = [UUID(int=n) for n in range(1, 41)]
    await conn.executemany("INSERT INTO users (id, username) VALUES ($1, $2)", [(each, each.hex) for each in others])
    for table in ("chats", "chat_messages"):
        await conn.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    await conn.execute(FILL, [*others, lists.id("bob")], lists.world.model_id, NOON, OTHERS)
    await conn.execute(FILL_MESSAGES)
    for table in ("chats", "chat_messages"):
        await conn.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    mine = await lists.chats(OWN)
    for chat in mine:
        await lists.world.message(chat, "common words", role="user")
        await lists.world.message(chat, "common words")
        await lists.chat(parent=chat, title="Common words")
    await lists.pin(mine[3], mine[7])
    for chat in await lists.ids("bob", limit=5):
        await lists.share(chat, "ada")
    await conn.execute(INDEX_MESSAGES)
    await conn.execute("ANALYZE")
    return mine


QUERIES = [
    *("", "archived:any", "status:waiting", "has_unread:true", "pinned:true", "title:common", "client:api"),
    *("active_after:2000-01-01", "source:shared_with_me", "source:created_by_me,shared_with_me", "model:m"),
]
SEARCHES = ["common", '"common words" -rare', "-rare", "rare", "common source:created_by_me,shared_with_me"]


async def test_number_of_rows_read_does_not_grow_with_other_users_chats(lists: ChatLists) -> None:
    """One test checks several properties, because creating the chats takes long."""
    mine = await crowd(lists)

    await check_lists_of_few_chats(lists)
    await check_pages_of_a_long_list(lists)
    for mode in MODES:
        plan = await explained(lists.world.conn, Statement(chat_view_reads.FAMILY, (lists.id("ada"), mine[0])), mode)
        assert rows_read(plan)["chats"] <= 10, plan
        assert rows_read(plan)["chat_messages"] <= 10, plan


async def check_lists_of_few_chats(lists: ChatLists) -> None:
    ada = lists.id("ada")
    deep = Position(2, NOON - timedelta(minutes=OWN / 2), UUID(int=0))
    cases = [(q, await built(lists, "ada", q, at), mode) for q in QUERIES for at in (None, deep) for mode in MODES]
    cases += [("prompts", Statement(sent_messages.LIST_OF_OWNER, (ada, 500)), mode) for mode in MODES]
    # Searches are planned each time.
    cases += [(q, await built(lists, "ada", q), MODES[0]) for q in SEARCHES]
    cases += [("found prompts", Statement(sent_messages.LIST_FOUND, (ada, 500, "common")), MODES[0])]

    for q, statement, mode in cases:
        if statement is None:
            assert q == "pinned:true"  # all on the first page
            continue
        plan = await explained(lists.world.conn, statement, mode)
        assert sum(rows_read(plan).values()) <= FEW, (q, mode, rows_read(plan), json.dumps(plan, indent=1))


async def check_pages_of_a_long_list(lists: ChatLists) -> None:
    for hours in (0, 10, 50):
        statement = await built(lists, "bob", "", Position(2, NOON - timedelta(hours=hours), UUID(int=0)))
        assert statement is not None
        for mode in MODES:
            plan = await explained(lists.world.conn, statement, mode)
            assert "chats_list" in {scan.get("Index Name") for scan in scans(plan)}
            assert rows_read(plan)["chats"] <= 4 * 51, (hours, mode, plan)


async def test_the_number_of_queries_does_not_grow_with_the_page(lists: ChatLists) -> None:
    for chat in await lists.chats(8):
        await lists.world.message(chat, "common")
        await lists.chat(parent=chat)
    await lists.sweep()
    actor = lists.people["ada"].actor

    for q, limit, queries in (("", 1, 1), ("", 50, 1), ("common", 1, 4), ("common", 50, 4)):
        conn = Counting(lists.world.conn)
        wanted = await chat_list.resolve_query(conn, search_query.parse(q), actor=actor)  # type: ignore[arg-type]
        page = await chat_list.list_chats(conn, wanted, actor=actor, limit=limit)  # type: ignore[arg-type]

        assert len(page.items) == min(limit, 8)
        assert conn.asked == queries


class Counting:
    """A connection that counts its queries."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.asked = 0
        self._conn = conn

    def __getattr__(self, name: str) -> object:
        self.asked += 1
        return getattr(self._conn, name)


async def built(lists: ChatLists, name: str, q: str, position: Position | None = None) -> Statement | None:
    actor = lists.people[name].actor
    wanted = await chat_list.resolve_query(lists.world.conn, search_query.parse(q), actor=actor)
    return chat_list.build(wanted, viewer_id=actor.id, position=position, limit=50)


async def explained(conn: asyncpg.Connection, statement: Statement, mode: str) -> dict[str, Any]:
    await conn.execute(f"SET plan_cache_mode = {mode}")
    await conn.execute(f"PREPARE planned AS {statement.sql}")
    found = await conn.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned ({', '.join(map(literal, statement.arguments))})"
    )
    await conn.execute("DEALLOCATE planned; RESET plan_cache_mode")
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


def literal(value: object) -> str:
    text = "{" + ",".join(value) + "}" if isinstance(value, list) else str(value)
    return f"'{text}'"


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Scan" in node["Node Type"]:
        yield node
    for child in node.get("Plans", []):
        yield from scans(child)


def rows_read(plan: dict[str, Any]) -> dict[str, float]:
    """Return the number of rows that were read from each table, including filtered rows; for bitmaps, the rows of the
    index.
    """
    read = dict.fromkeys(("chats", "chat_messages", "chat_message_search"), 0.0)
    prefixes = {"chats_": "chats", "messages_": "chat_messages", "search_": "chat_message_search"}
    for scan in scans(plan):
        table = scan.get("Relation Name")
        if scan["Node Type"] == "Bitmap Index Scan":
            table = next((name for prefix, name in prefixes.items() if scan["Index Name"].startswith(prefix)), None)
        if table in read:
            removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
            read[table] += (scan["Actual Rows"] + removed) * scan["Actual Loops"]
    return read
