"""Rows for tests of the store's reads and metadata, written with plain SQL.

Messages are guarded by triggers: each builder opens a transition (one version) and writes inside of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, MessageId

OPEN = "UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1"


class StoreRig:
    """A database with one model; `conn` is a connection to it."""

    def __init__(self, url: str, conn: asyncpg.Connection, *, model_id: UUID) -> None:
        self.conn = conn
        self.model_id = model_id
        self._url = url

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Return a second connection, for races."""
        conn = await asyncpg.connect(self._url)
        try:
            yield conn
        finally:
            await conn.close()

    async def user(self) -> UUID:
        name = f"user-{uuid4().hex}"
        return UUID(str(await self.conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", name)))

    async def chat(
        self,
        owner_id: UUID,
        title: str = "A chat",
        *,
        parent: ChatId | None = None,
        archived: bool = False,
        labels: Mapping[str, str] | None = None,
        updated_at: datetime | None = None,
    ) -> ChatId:
        chat_id = await self.conn.fetchval(
            """
            INSERT INTO chats (owner_id, parent_chat_id, root_chat_id, status, archived, archived_at, title, labels,
                               last_model_config_id, updated_at)
            VALUES ($1, $2, $2, 'waiting', $3, CASE WHEN $3 THEN now() END, $4, $5, $6, coalesce($7, clock_timestamp()))
            RETURNING id
            """,
            owner_id,
            parent,
            archived,
            title,
            json.dumps(labels or {}),
            self.model_id,
            updated_at,
        )
        return ChatId(UUID(str(chat_id)))

    async def message(
        self,
        chat_id: ChatId,
        text: str = "Hello.",
        *,
        role: str = "assistant",
        visibility: str = "both",
        compressed: bool = False,
        content: Sequence[parts.Part] | str | None = None,
        effort: str | None = None,
    ) -> MessageId:
        """Insert one row. `content` is parts, or JSON that is stored unchanged."""
        stored = content if isinstance(content, str) else parts.encode(content or [parts.Text(text)])
        async with self.conn.transaction():
            await self.conn.execute(OPEN, chat_id)
            message_id = await self.conn.fetchval(
                """
                INSERT INTO chat_messages
                       (chat_id, role, visibility, compressed, content, content_version, reasoning_effort)
                VALUES ($1, $2, $3, $4, $5, 1, $6)
                RETURNING id
                """,
                chat_id,
                role,
                visibility,
                compressed,
                stored,
                effort,
            )
        return MessageId(message_id)

    async def long_chat(self, owner_id: UUID, *, length: int = 500, others: int = 100) -> ChatId:
        """Create a chat with many messages between other chats of half its length, and update the planner's
        statistics.
        """
        chats = [await self.chat(owner_id) for _ in range(others + 1)]
        async with self.conn.transaction():
            for chat_id in chats:
                await self.conn.execute(OPEN, chat_id)
            await self.conn.execute(
                """
                INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
                SELECT c.id, CASE WHEN i % 2 = 0 THEN 'assistant' ELSE 'user' END, 'both',
                       jsonb_build_array(jsonb_build_object('type', 'text', 'text', repeat('word ', 20) || i)), 1
                  FROM generate_series(1, $2::int) i
                 CROSS JOIN unnest($1::uuid[]) AS c (id)
                 WHERE c.id = $3 OR i > $2 / 2
                """,
                chats,
                length,
                chats[0],
            )
        await self.conn.execute("ANALYZE")
        return chats[0]

    async def cut(self, chat_id: ChatId, *, from_id: MessageId) -> None:
        """Soft-delete the end of a history, as an edit does."""
        async with self.conn.transaction():
            await self.conn.execute(OPEN, chat_id)
            await self.conn.execute(
                "UPDATE chat_messages SET deleted = true WHERE chat_id = $1 AND id >= $2", chat_id, from_id
            )

    async def versions(self, chat_id: ChatId) -> dict[str, int]:
        record = await self.conn.fetchrow(
            """
            SELECT snapshot_version, history_version, queue_version, retry_state_version, generation_attempt,
                   meta_version
              FROM chats
             WHERE id = $1
            """,
            chat_id,
        )
        assert record is not None
        return dict(record)

    async def plans(self, statement: str, *arguments: object) -> list[str]:
        """Return the plans that PostgreSQL chooses: for these arguments, and the generic plan of a prepared
        statement.
        """
        literals = ", ".join(f"'{argument}'" for argument in arguments)
        await self.conn.execute(f"PREPARE planned AS {statement}")
        found = []
        for mode in ("force_custom_plan", "force_generic_plan"):
            await self.conn.execute(f"SET plan_cache_mode = {mode}")
            records = await self.conn.fetch(f"EXPLAIN EXECUTE planned ({literals})")
            found.append("\n".join(record[0] for record in records))
        await self.conn.execute("RESET plan_cache_mode")
        await self.conn.execute("DEALLOCATE planned")
        return found


@asynccontextmanager
async def open_store_rig(url: str) -> AsyncIterator[StoreRig]:
    conn = await asyncpg.connect(url)
    try:
        provider_id = await conn.fetchval("INSERT INTO model_providers (type, name) VALUES ('x', 'x') RETURNING id")
        model_id = await conn.fetchval(
            "INSERT INTO model_configs (provider_id, model, context_limit) VALUES ($1, 'm', 1000) RETURNING id",
            provider_id,
        )
        yield StoreRig(url, conn, model_id=model_id)
    finally:
        await conn.close()
