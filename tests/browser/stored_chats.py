"""Chats that are written to the database as a whole, because a model could not produce so many messages in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.store import machine
from rookery.store.chats import search
from rookery.store.db.hints import Hint
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.machine import ChatSpec, Machine
from tests.browser.browser_user import Visitor
from tests.browser.faulty_connection import EventLoopThread

# The last row says so, and nothing else does.
END = "this is the end of chat"
# Both people and the model speak of it, once in a thousand messages.
RARE = "heron"

# A stored message: who said it, and its parts.
Step = tuple[Role, list[dict[str, object]]]

_FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version, created_by)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', CASE
             WHEN n % 999 = 8 THEN 'I saw a heron at ' || n || '.'
             WHEN n % 2 = 0 THEN 'And what about ' || n || '?'
             ELSE E'Some **words** about `' || n || E'`:\\n\\n- first\\n- second\\n\\n' || repeat('words and more ', 20)
           END)), 1, CASE WHEN n % 2 = 0 THEN $3::uuid END
      FROM generate_series(1, $2::int) n
"""
_SAY = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    VALUES ($1, 'assistant', 'both', jsonb_build_array(jsonb_build_object('type', 'text', 'text', $2::text)), 1)
"""


class _Silent:
    """Publishes no hints: no page shows these chats yet, and the server reads them on request."""

    def publish(self, hints: Sequence[Hint]) -> None:
        return


_ADD = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    VALUES ($1, $2, 'both', $3::jsonb, 1)
"""


async def rest_chat(
    database: Database,
    *,
    owner: UUID,
    model: UUID,
    title: str,
    messages: int = 2,
    answer: str | None = None,
    steps: Sequence[Step] = (),
) -> str:
    """Write a chat at rest with this number of messages, then `steps` with their parts, and `answer` as the last
    message.

    One transaction writes all of it, so that no worker sees the chat running.
    """
    first = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=owner)
    spec = ChatSpec(owner_id=owner, title=title, model_config_id=model, messages=(first,))

    async def make(bundle: machine.Bundle) -> str:
        created = await machine.create_chat(bundle, spec)
        tx = await bundle.open(created.chat.id)
        await tx.conn.execute(_FILL, tx.chat.id, messages - 2, owner)
        for role, parts in steps:
            await tx.conn.execute(_ADD, tx.chat.id, role.value, json.dumps(parts))
        await tx.conn.execute(_SAY, tx.chat.id, answer or f"{END} {title}")
        await machine.finish_turn(tx)
        return str(tx.chat.id)

    return await Machine(database.api, _Silent()).bundle(make)


class StoredChats:
    """Writes such chats for tests."""

    def __init__(self, backstage: EventLoopThread, url: str) -> None:
        self._backstage = backstage
        self._url = url

    def chat(
        self, owner: Visitor, title: str, *, messages: int = 2, answer: str | None = None, steps: Sequence[Step] = ()
    ) -> str:
        user = UUID(owner.ask("GET", "/users/me")["id"])
        model = UUID(owner.ask("GET", "/model-configs")["items"][0]["id"])
        return self._backstage.run(self._make(user, model, title, messages, answer, steps))

    async def _make(
        self, owner: UUID, model: UUID, title: str, messages: int, answer: str | None, steps: Sequence[Step]
    ) -> str:
        async with await Database.connect(DatabaseConfig(self._url, pool_worker=1)) as database:
            chat = await rest_chat(
                database, owner=owner, model=model, title=title, messages=messages, answer=answer, steps=steps
            )
            # What is searched for is found a moment later; nobody waits for that here.
            async with database.api.acquire() as conn:
                await search.backfill(conn, batch=1_000)
            return chat
