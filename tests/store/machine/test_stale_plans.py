"""Opening a chat reads one page, even if the planner's statistics are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rookery.domain.chat.messages import MAX_ID, ChatId
from rookery.store.authorized import messages as pages
from rookery.store.chats import messages, stream_reads
from rookery.store.machine import View, bundle_runner, open_calls
from tests.store.machine.machine_rig import Conn, Rig
from tests.store.machine.test_query_plans import scans_of_messages

LENGTH, HIDDEN, OTHERS, PAGE = 3_000, 200, 10, 50

FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, $3, '[{"type": "text", "text": "x"}]', 1
      FROM generate_series(1, $2::int) n
"""
# Behind the chat's id.
STATEMENTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "window": (stream_reads.WINDOW, (PAGE, 2**23)),
    "older": (messages.OLDER, (MAX_ID,)),
    "after": (stream_reads.AFTER, (0, PAGE)),
    "measure": (stream_reads.MEASURE, (0, PAGE)),
    "newest id": (stream_reads.NEWEST_ID, ()),
    "delta": (stream_reads.DELTA, (MAX_ID, PAGE)),
    "pending calls": (open_calls.TURN_CALLS, ()),
}
# Asked outside of the machine.
PAGES: dict[str, tuple[str, tuple[object, ...]]] = {
    "page": (pages.NEWEST, (0, MAX_ID, PAGE)),
    "page after": (pages.OLDEST, (0, PAGE)),
}
MODES = ("force_custom_plan", "force_generic_plan")


async def misled(rig: Rig) -> list[ChatId]:
    """Two long chats among others. The statistics are from a time when no message was visible and one chat did not
    exist.
    """
    chats = [await rig.create() for _ in range(OTHERS + 1)]
    for chat_id in chats:
        await fill(rig, chat_id, HIDDEN, "model")
    await rig.sql("ANALYZE chat_messages")
    long = [chats[0], await rig.create()]
    for chat_id in (*long, *chats[1:]):
        await fill(rig, chat_id, LENGTH if chat_id in long else PAGE, "both")
    return long


async def test_opening_a_long_chat_reads_a_page_with_stale_statistics(rig: Rig) -> None:
    for chat_id in await misled(rig):
        for mode in MODES:

            async def explain(view: View, mode: str = mode) -> dict[str, Any]:
                return await explained(view.conn, view.chat.id, STATEMENTS, mode)

            for name, plan in (await rig.machine.read(chat_id, explain)).items():
                check(name, plan)
            async with rig.pool.acquire() as conn, conn.transaction():
                await conn.execute(bundle_runner.BY_INDEX)
                for name, plan in (await explained(conn, chat_id, PAGES, mode)).items():
                    check(name, plan)


def check(name: str, plan: dict[str, Any]) -> None:
    scans = list(scans_of_messages(plan))
    assert scans, name
    touched = sum(
        (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] for scan in scans
    )
    # A window looks at its rows twice: for their sizes, then for their content. Hidden rows are the oldest.
    assert touched <= 2 * PAGE + HIDDEN + 2, (name, touched, json.dumps(plan, indent=1))


async def explained(
    conn: Conn, chat_id: ChatId, statements: Mapping[str, tuple[str, tuple[object, ...]]], mode: str
) -> dict[str, Any]:
    await conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
    plans = {}
    for name, (statement, arguments) in statements.items():
        await conn.execute(f"PREPARE planned AS {statement}")
        literals = ", ".join(f"'{argument}'" for argument in (chat_id, *arguments))
        found = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned ({literals})")
        await conn.execute("DEALLOCATE planned")
        plans[name] = json.loads(found)[0]["Plan"]
    return plans


async def fill(rig: Rig, chat_id: ChatId, count: int, visibility: str) -> None:
    await rig.update(chat_id, lambda tx: tx.conn.execute(FILL, chat_id, count, visibility))
