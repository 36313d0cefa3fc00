"""Query plans of transitions: the rows that they read do not grow with the history or with other users' chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.store.chats import messages, step_reads, stream_reads
from rookery.store.machine import Tx, open_calls, turn_transitions
from tests.store.machine.machine_rig import Rig

OLD, OTHERS, EACH = 4_000, 30, 500

FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both', '[{"type": "text", "text": "x"}]', 1
      FROM generate_series(1, $2::int) n
"""
STATEMENTS = {
    "turn calls": open_calls.TURN_CALLS,
    "nothing open": f"SELECT {open_calls.NOTHING_OPEN}",
    "last live role": turn_transitions._LAST_LIVE_ROLE,
    "something to compact": turn_transitions._HAS_COMPACTABLE,
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_reads_of_transitions_touch_a_handful_of_rows_of_a_long_old_chat(rig: Rig, mode: str) -> None:
    old = await rig.create()
    await fill(rig, old, OLD)
    for _ in range(OTHERS):
        await fill(rig, await rig.create(), EACH)
    await rig.sql("ANALYZE chat_messages")

    async def explain(tx: Tx) -> dict[str, Any]:
        await tx.conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        found = {}
        for index, (name, statement) in enumerate(STATEMENTS.items()):
            await tx.conn.execute(f"PREPARE s{index} (uuid) AS {statement}")
            plan = await tx.conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE s{index} ('{old}')")
            found[name] = json.loads(plan)[0]["Plan"]
        return found

    for name, plan in (await rig.update(old, explain)).items():
        scans = list(scans_of_messages(plan))
        assert scans, name
        assert {scan.get("Index Name", scan["Node Type"]) for scan in scans} <= {
            "messages_live",
            "messages_role",
            "messages_boundary",
        }, name
        touched = sum(scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in scans)
        assert touched <= 5, (name, scans)


async def fill(rig: Rig, chat_id: ChatId, count: int) -> None:
    await rig.update(chat_id, lambda tx: tx.conn.execute(FILL, chat_id, count))


def scans_of_messages(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # An index-only scan of a bitmap has no relation; those are kept by their index's name.
    if node.get("Relation Name") == "chat_messages" or str(node.get("Index Name", "")).startswith("messages_"):
        yield node
    for child in node.get("Plans", []):
        yield from scans_of_messages(child)


READS = {
    "window": (stream_reads.WINDOW, "uuid, int, bigint", "30, 8388608"),
    "newest": (messages.NEWEST, "uuid, bigint, bigint, int", "0, 9007199254740991, 20"),
    "older": (messages.OLDER, "uuid, bigint", "9007199254740991"),
    "newest id": (stream_reads.NEWEST_ID, "uuid", ""),
    "delta of a viewer": (stream_reads.CHAT_DELTA, "uuid, bigint", "{seen}"),
    "delta of a step": (step_reads.CHAT_DELTA, "uuid, bigint", "{seen}"),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_opening_a_long_chat_reads_its_end_alone_although_statistics_are_old(rig: Rig, mode: str) -> None:
    """The statistics are from a time when hardly any row was visible to users."""
    chat_id = await rig.create()
    hidden = FILL.replace("'both'", "'model'")
    await rig.sql("ALTER TABLE chat_messages SET (autovacuum_enabled = false)")
    await rig.update(chat_id, lambda tx: tx.conn.execute(hidden, chat_id, OLD))
    await rig.sql("ANALYZE chat_messages")
    await fill(rig, chat_id, OLD)
    seen = (await rig.load(chat_id)).history_version
    await fill(rig, chat_id, 5)

    async def explain(tx: Tx) -> dict[str, Any]:
        await tx.conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        found = {}
        for index, (name, (statement, types, given)) in enumerate(READS.items()):
            if name.startswith("delta"):
                # It has no transaction in which it could choose its indexes.
                await tx.conn.execute("SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on")
            await tx.conn.execute(f"PREPARE r{index} ({types}) AS {statement}")
            arguments = f"'{chat_id}'" + (f", {given.format(seen=seen)}" if given else "")
            plan = await tx.conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE r{index} ({arguments})")
            found[name] = json.loads(plan)[0]["Plan"]
        return found

    for name, plan in (await rig.update(chat_id, explain)).items():
        scans = list(scans_of_messages(plan))
        touched = sum(
            scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) for scan in scans
        )
        assert 0 < touched <= 100, (name, scans)
