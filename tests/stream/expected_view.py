"""The expected view of a chat, read from the database, and its differences from a client's view."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from rookery.client.reducer import View
from rookery.domain.chat.chat import Chat
from rookery.store.chats import chat_views, stream_reads
from rookery.stream import views


async def stored_view(pool: asyncpg.Pool, chat: Chat) -> View:
    async with pool.acquire() as conn:
        page = await stream_reads.list_window(conn, chat.id, tail=10_000)
        queue = await stream_reads.list_queue(conn, chat.id)
    return View(
        messages={row.message.id: plain(views.message(row)) for row in page.rows},
        queue=tuple(plain(views.queued_message(row)) for row in queue),
        status=chat.status,
        archived=chat.archived,
        error=None if chat.last_error is None else plain(chat_views.chat_error(chat.last_error)),
        retry=None if chat.retry_state is None else plain(views.retry(chat.retry_state)),
        last_message_id=max((row.message.id for row in page.rows), default=0),
    )


def plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def difference(shown: View, stored: View) -> list[str]:
    """Return the fields in which a client differs. A client with a short window may lack old messages only."""
    names = ["queue", "status", "archived", "error", "retry", "last_message_id"]
    found = [name for name in names if getattr(shown, name) != getattr(stored, name)]
    first = min(shown.messages, default=0)
    if dict(shown.messages) != {number: each for number, each in stored.messages.items() if number >= first}:
        found.append("messages")
    if (shown.action is not None) != (stored.status == "requires_action"):
        found.append("action")
    return found


def preview_of(shown: View) -> str:
    return "".join(part["part"].get("text", "") for part in shown.preview)
