"""Sent messages: the texts of user messages of one chat or of all chats of an owner, newest first.

Clients use them to recall and to search earlier messages. They do not include messages without text, messages that an
edit removed, messages that only the model sees, and messages in subagents' chats, which the parents wrote.
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
# Chosen: the limit of all texts together. Older messages that exceed it are left out.
MAX_BYTES = 8 * 1024 * 1024

_texts = msgspec.json.Decoder(tuple[str, ...])

# The text parts as a JSON array, because stored JSON is escaped (`domain.chat.parts`). Lax jsonpath skips all elements
# that are not objects with a text.
_TEXTS = """(
           SELECT jsonb_path_query_array(m.content, '$[*] ? (@.type == "text").text ? (@.type() == "string")')
               AS texts) t"""
_IS_VISIBLE = "NOT m.deleted AND coalesce(m.visibility, 'model') <> 'model'"
_HAS_WORDS = r"""jsonb_path_exists(t.texts, '$[*] ? (@ like_regex "\\S")')"""

# Index messages_role, read backward from the newest row: only requested and blank rows are read. The role is given as a
# range, because with an equality the planner may scan the primary key instead (see `messages`).
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

# Finds the newest ids of each chat by the index messages_role, and then reads the contents of the newest of all.
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

# Index search_tsv, or search_chat for each of the owner's chats; the planner chooses.
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

# Returns the newest rows that fit into a size, as `messages.WINDOW` does.
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
    """A user message with its text parts, joined by line breaks."""

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
    """Return the user messages of all chats of an owner, newest first. With a query, return those that match it."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    if query is None:
        return _prompts(await conn.fetch(LIST_OF_OWNER, owner_id, limit))
    return _prompts(await search.fetch_with_custom_plan(conn, LIST_FOUND, owner_id, limit, search.for_messages(query)))


def _prompts(records: Iterable[asyncpg.Record]) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(message_id, chat_id, "\n".join(_texts.decode(parts.unescape(texts))))
        for message_id, chat_id, texts in records
    )
