"""Watches the database during a run: which chats are at rest, and that committed messages stay unchanged.

It also ages the rows of leases that are not renewed, so that they end within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import parts
from rookery.store.db.database_errors import DATABASE_ERRORS
from tests.chaos.run_results import Call, ChatRecord, Result, Row, Sighting

LOOK_SECONDS = 0.1
# Leases that are not renewed for this long count as lost. In a fast run, replicas renew every second and fence
# themselves off after four.
LEASE_SECONDS = 6

CHATS = """
    SELECT id, status, queue_len, snapshot_version, history_version, last_error::text
      FROM chats
     WHERE id = ANY ($1)
"""
# Ids are assigned before the commit, so a row may appear after one with a higher id.
NEW_ROWS = """
    SELECT id, chat_id, revision, md5(content::text) AS digest
      FROM chat_messages
     WHERE id > $1 - 300
"""
ROWS = """
    SELECT id, revision, role, content::text AS content, md5(content::text) AS digest
      FROM chat_messages
     WHERE chat_id = $1 AND NOT deleted
     ORDER BY id
"""
AGE = f"""
    UPDATE chat_heartbeats
       SET heartbeat_at = heartbeat_at - lease_ttl()
     WHERE heartbeat_at BETWEEN clock_timestamp() - lease_ttl() AND clock_timestamp() - interval '{LEASE_SECONDS} s'
"""


class Watch:
    """`run` watches until cancelled. A chat is at rest when it waits for its user or has failed."""

    def __init__(self, pool: asyncpg.Pool, *, ages_leases: bool) -> None:
        self._pool = pool
        self._ages_leases = ages_leases
        self._chats: dict[UUID, asyncpg.Record | None] = {}
        self._looked = asyncio.Condition()
        self._last_id = 0
        self._seen: set[int] = set()
        self.sightings: list[Sighting] = []
        self.versions: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def add(self, chat_id: UUID) -> None:
        self._chats[chat_id] = None

    def expect(self, chat_id: UUID) -> None:
        """Something was committed, so earlier observations do not count."""
        self._chats[chat_id] = None

    def forget(self, chat_id: UUID) -> None:
        """Stop watching a finished chat."""
        self._chats.pop(chat_id, None)

    async def until_rest(self, chat_id: UUID) -> None:
        async with self._looked:
            await self._looked.wait_for(lambda: _rests(self._chats[chat_id]))

    def unrested(self) -> list[str]:
        return [f"{chat_id}: {row and dict(row)}" for chat_id, row in self._chats.items() if not _rests(row)]

    async def run(self) -> None:
        while True:
            with contextlib.suppress(*DATABASE_ERRORS):
                await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        before = {chat_id for chat_id, row in self._chats.items() if row is None}
        rows = await self._pool.fetch(CHATS, list(self._chats))
        if self._ages_leases:
            await self._pool.execute(AGE)
        for row in await self._pool.fetch(NEW_ROWS, self._last_id):
            self._last_id = max(self._last_id, row["id"])
            if row["id"] not in self._seen:
                self._seen.add(row["id"])
                self.sightings.append(Sighting(str(row["chat_id"]), row["id"], row["revision"], row["digest"]))
        async with self._looked:
            for row in rows:
                chat_id: UUID = row["id"]
                # The result does not include commits during the query.
                if self._chats.get(chat_id, row) is not None or chat_id in before:
                    self._chats[chat_id] = row
                seen, now = self.versions[str(chat_id)], (row["snapshot_version"], row["history_version"])
                if not seen or seen[-1] != now:
                    seen.append(now)
            self._looked.notify_all()


def _rests(row: asyncpg.Record | None) -> bool:
    return row is not None and (row["status"] == "error" or (row["status"] == "waiting" and not row["queue_len"]))


async def read_chat(conn: asyncpg.Connection | asyncpg.pool.PoolConnectionProxy, chat_id: UUID) -> ChatRecord:
    """Return the current state of the chat for the invariants."""
    (chat,) = await conn.fetch(CHATS, [chat_id])
    return ChatRecord(
        id=str(chat_id),
        status=chat["status"],
        error=chat["last_error"],
        queued=chat["queue_len"],
        snapshot_version=chat["snapshot_version"],
        history_version=chat["history_version"],
        rows=tuple(_row(row) for row in await conn.fetch(ROWS, chat_id)),
    )


def _row(row: asyncpg.Record) -> Row:
    content = parts.decode(row["content"].encode())
    return Row(
        id=row["id"],
        revision=row["revision"],
        role=row["role"],
        text="\n".join(part.text for part in content if isinstance(part, parts.Text)),
        calls=tuple(Call(part.tool_call_id, part.tool_name) for part in content if isinstance(part, parts.ToolCall)),
        results=tuple(
            Result(part.tool_call_id, part.is_error, _number(part))
            for part in content
            if isinstance(part, parts.ToolResult)
        ),
        digest=row["digest"],
    )


def _number(part: parts.ToolResult) -> int | None:
    result = msgspec.json.decode(part.result) if isinstance(part.result, msgspec.Raw) else None
    return result.get("number") if isinstance(result, dict) else None
