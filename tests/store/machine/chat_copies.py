"""Copies of chats, row by row, without triggers and with equal versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID, uuid4

from rookery.domain.chat import open_tool_calls
from rookery.domain.chat.messages import ChatId
from tests.store.machine.machine_rig import Conn
from tests.store.machine.state_model_replay import Copy

# Table, the column that names the chat, and the order in which identities are to be drawn again.
_TABLES = (
    ("chats", "id", "p.target"),
    ("chat_messages", "chat_id", "p.target, t.id"),
    ("chat_queued_messages", "chat_id", "p.target, t.id"),
    ("chat_heartbeats", "chat_id", "p.target"),
)

_OTHER_COLUMNS = """
    SELECT string_agg('t.' || attname, ', ' ORDER BY attnum), string_agg(attname, ', ' ORDER BY attnum)
      FROM pg_attribute
     WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attname <> $2
"""

_KEEP_LEASES = (
    "UPDATE chat_heartbeats SET heartbeat_at = clock_timestamp() + interval '1 hour' WHERE chat_id = ANY ($1)"
)


async def copy_chats(conn: Conn, originals: Sequence[Copy]) -> list[Copy]:
    """Copy each chat, in one transaction. No other writes may run, because the triggers are disabled."""
    pairs = [(original.chat_id, uuid4()) for original in originals]
    async with conn.transaction():
        # Else the deferred check of queue positions would still be pending when the triggers come back.
        await conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await conn.execute("CREATE TEMP TABLE pairs (source uuid, target uuid) ON COMMIT DROP")
        await conn.copy_records_to_table("pairs", records=pairs)
        for table, key, order in _TABLES:
            await conn.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            found = await conn.fetchrow(_OTHER_COLUMNS, table, key)
            assert found is not None
            await conn.execute(
                f"INSERT INTO {table} ({key}, {found[1]}) SELECT p.target, {found[0]}"
                f" FROM pairs p JOIN {table} t ON t.{key} = p.source ORDER BY {order}"
            )
            await conn.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        targets = [target for _, target in pairs]
        # A walk may take longer than a lease lasts.
        await conn.execute(_KEEP_LEASES, targets)
        messages = await _ids(conn, "chat_messages", targets)
        queues = await _ids(conn, "chat_queued_messages", targets)
        await _copy_questions(conn, messages)
    return [
        _copy(original, target, messages.get(target, []), queues.get(target, []))
        for original, (_, target) in zip(originals, pairs, strict=True)
    ]


_QUESTIONS = """
    SELECT p.source, p.target, a.token, a.offers, a.asked_at, a.approved_by, a.approved_at
      FROM pairs p
      JOIN chat_approvals a ON a.chat_id = p.source
"""
_CALLS = """
    SELECT m.chat_id, m.id, m.content
      FROM chat_messages m
     WHERE m.chat_id IN (SELECT source FROM pairs)
     ORDER BY m.id
"""
_ASK = """
    INSERT INTO chat_approvals (chat_id, token, offers, asked_at, approved_by, approved_at)
    VALUES ($1, $2, $3, $4, $5, $6)
"""


async def _copy_questions(conn: Conn, messages: dict[UUID, list[int]]) -> None:
    """Copy the questions with new tokens: a token is computed from the ids of the chat and the message, which differ in
    a copy.
    """
    questions = await conn.fetch(_QUESTIONS)
    if not questions:
        return
    calls: dict[UUID, list[tuple[int, list[str]]]] = {}
    for record in await conn.fetch(_CALLS):
        named = [part["tool_call_id"] for part in json.loads(record["content"]) if part["type"] == "tool-call"]
        calls.setdefault(record["chat_id"], []).append((record["id"], named))
    await conn.execute("ALTER TABLE chat_approvals DISABLE TRIGGER USER")
    for source, target, token, *rest in questions:
        tokens = {
            open_tool_calls.replay_token(ChatId(source), old, call): open_tool_calls.replay_token(
                ChatId(target), new, call
            )
            for (old, named), new in zip(calls[source], messages[target], strict=True)
            for call in named
        }
        await conn.execute(_ASK, target, tokens[token], *rest)
    await conn.execute("ALTER TABLE chat_approvals ENABLE TRIGGER USER")


async def _ids(conn: Conn, table: str, chats: list[UUID]) -> dict[UUID, list[int]]:
    records = await conn.fetch(
        f"SELECT chat_id, array_agg(id ORDER BY id) FROM {table} WHERE chat_id = ANY ($1) GROUP BY 1", chats
    )
    return {record[0]: record[1] for record in records}


def _copy(original: Copy, target: UUID, messages: list[int], queue: list[int]) -> Copy:
    # Identities are drawn in the order of the originals'. Rows that left the queue keep the original's id, which
    # must not be found in the copy.
    waiting = sorted(original.queue, key=lambda modelled: original.queue_ids[modelled])
    ids = original.queue_ids | dict(zip(waiting, queue, strict=True))
    return Copy(
        ChatId(target),
        messages,
        ids,
        original.queue,
        original.updated_at,
        original.runnable_since,
        original.updated_version,
        original.runnable_version,
    )
