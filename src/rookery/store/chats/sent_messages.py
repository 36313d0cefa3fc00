"""Sent messages: the texts of user messages, newest first, of one chat or of all chats of an owner.

For recalling and finding earlier messages. Messages without text (a lone file), messages removed by an edit, and
messages for the model only are not included. User messages in subagents' chats come from their parent and are not
included either.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.chats import search
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection

MAX_LIMIT = 2_000
DEFAULT_LIMIT = 500
# Chosen: the limit of all texts together, newest first. Messages may be long, and no user pages through more than this.
MAX_BYTES = 8 * 1024 * 1024

_texts = msgspec.json.Decoder(tuple[str, ...])

# The text parts as a JSON array, because stored text is escaped as JSON (`domain.chat.parts`). Lax jsonpath skips
# everything that is not an object with a text.
_TEXTS = """(
           SELECT jsonb_path_query_array(m.content, '$[*] ? (@.type == "text").text ? (@.type() == "string")')
               AS texts) t"""
_IS_VISIBLE = "NOT m.deleted AND coalesce(m.visibility, 'model') <> 'model'"
_HAS_WORDS = r"""jsonb_path_exists(t.texts, '$[*] ? (@ like_regex "\\S")')"""

# Index messages_role, from its newest row on: no more rows are read than are blank or requested. The role is a range of
# one: an equality would leave the order open, and the planner could walk the primary key instead (see `messages`).
OF_CHAT = f"""
    SELECT m.id, m.chat_id, t.texts
      FROM chat_messages m
     CROSS JOIN LATERAL {_TEXTS}
     WHERE m.chat_id = $1
       AND m.role >= 'user' AND m.role <= 'user'
       AND {_IS_VISIBLE}
       AND {_HAS_WORDS}
     ORDER BY m.role, m.id DESC
     LIMIT $2
"""

# The newest of each chat, by index messages_role and without their contents; then the newest of all.
OF_OWNER = f"""
    SELECT newest.id, newest.chat_id, t.texts
      FROM (SELECT own.id, own.chat_id
              FROM chats c
             CROSS JOIN LATERAL (
                   SELECT m.id, m.chat_id
                     FROM chat_messages m
                    WHERE m.chat_id = c.id
                      AND m.role >= 'user' AND m.role <= 'user'
                      AND {_IS_VISIBLE}
                    ORDER BY m.role, m.id DESC
                    LIMIT $2) own
             WHERE c.owner_id = $1
               AND c.parent_chat_id IS NULL
             ORDER BY own.id DESC) newest
      JOIN chat_messages m ON m.id = newest.id
     CROSS JOIN LATERAL {_TEXTS}
     WHERE {_HAS_WORDS}
     ORDER BY newest.id DESC
     LIMIT $2
"""

# Index search_tsv, or the owner's chats one by one (search_chat), whichever is less.
FOUND = f"""
    SELECT m.id, m.chat_id, t.texts
      FROM chat_message_search s
      JOIN chats c ON c.id = s.chat_id
      JOIN chat_messages m ON m.id = s.message_id
     CROSS JOIN LATERAL {_TEXTS}
     WHERE s.tsv IS NOT NULL
       AND s.tsv @@ websearch_to_tsquery('simple', $3)
       AND c.owner_id = $1
       AND c.parent_chat_id IS NULL
       AND m.role = 'user'
       AND {_IS_VISIBLE}
       AND {_HAS_WORDS}
     ORDER BY m.id DESC
     LIMIT $2
"""

# As `messages.WINDOW`: sizes are summed from the newest row on, and rows that do not fit never leave the server.
_FITTING = """
    SELECT fits.id, fits.chat_id, fits.texts::text
      FROM (SELECT p.id, p.chat_id, p.texts,
                   sum(octet_length(p.texts::text)) OVER newer AS bytes,
                   row_number() OVER newer AS place
              FROM ({prompts}) p
            WINDOW newer AS (ORDER BY p.id DESC)) fits
     WHERE fits.bytes <= {max_bytes} OR fits.place = 1
     ORDER BY fits.id DESC
"""


def _fitting(prompts: str) -> str:
    return _FITTING.format(prompts=prompts, max_bytes=MAX_BYTES)


LIST_OF_CHAT, LIST_OF_OWNER, LIST_FOUND = map(_fitting, (OF_CHAT, OF_OWNER, FOUND))


class Prompt(msgspec.Struct, frozen=True):
    """A user message: its text parts, joined by line breaks."""

    id: MessageId
    chat_id: ChatId
    text: str


async def list_of_chat(conn: Connection, chat_id: ChatId, *, limit: int = DEFAULT_LIMIT) -> tuple[Prompt, ...]:
    """Return the user messages of one chat, newest first."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    return _prompts(await conn.fetch(LIST_OF_CHAT, chat_id, limit))


async def list_of_owner(
    conn: Connection, owner_id: UUID, *, query: str | None = None, limit: int = DEFAULT_LIMIT
) -> tuple[Prompt, ...]:
    """Return the user messages of all chats of an owner, newest first; with a query, those that match it (`search`)."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    if query is None:
        return _prompts(await conn.fetch(LIST_OF_OWNER, owner_id, limit))
    return _prompts(await search.fetch_planned(conn, LIST_FOUND, owner_id, limit, search.for_messages(query)))


def _prompts(records: Iterable[asyncpg.Record]) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(message_id, chat_id, "\n".join(_texts.decode(parts.unescape(texts))))
        for message_id, chat_id, texts in records
    )
