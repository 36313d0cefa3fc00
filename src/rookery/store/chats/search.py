"""Full-text search in titles and in the messages of users and models: the search index and its queries.

Titles are indexed as they are. A trigger inserts each message into `chat_message_search` as pending, and a sweep
computes its tsvector. No version of a chat changes. Only text parts are searchable; tool calls, reasoning and files are
not. `chat_list` and `sent_messages` select the chats to search. A title and each message match separately.

PostgreSQL's parser has three limits. A text that exceeds one of them must not stop the sweep:

- A tsvector over 1 MiB is an error. The input is cut, and a row that still fails gets an empty tsvector.
- Words over 2 kB are dropped with a notice. They are split before.
- Some inputs take quadratic time (measured with 200,000 characters: "a_" repeated over 60 s, "<!--" repeated 55 s; both
  under 1 s as prepared here). Long runs without a space are split, and "<" is replaced. Words inside tags, which the
  parser would skip, are therefore searchable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import asyncpg

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import MessageId
from rookery.store.db.pool import Connection

MAX_TEXT_CHARS = 200_000
MAX_QUERY_CHARS = 1_000

# PostgreSQL refuses query words over 2,046 bytes. Half of that is chosen, because case folding can lengthen a word.
_MAX_QUERY_WORD_BYTES = 1_023

# Chosen: longer than any word, and short enough that quadratic time does not matter.
_LONGEST_RUN = 200

# Stored content escapes U+E000 and U+0000 by U+E000 and U+E001 (`domain.chat.parts`). In messages and in queries, these
# characters and "<" are replaced by spaces.
_ESCAPES = "<\ue000\ue001"
_UNSEARCHABLE = re.compile("[<\0\ue000\ue001\ud800-\udfff]")
_SPACED = dict.fromkeys(map(ord, "\ue000\ue001"), " ")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_RUN}}}")

# Newest first. With SKIP LOCKED, a sweep does not wait for another replica or for an edit that removes rows, so it
# cannot deadlock. The index search_pending has pending rows only.
TAKE_PENDING = """
    SELECT message_id
      FROM chat_message_search
     WHERE tsv IS NULL
     ORDER BY message_id DESC
     LIMIT $1
       FOR UPDATE SKIP LOCKED
"""

# The text parts of a message `m`, joined. Lax jsonpath skips all elements that are not objects with a text.
TEXT_OF_MESSAGE = """(
           SELECT coalesce(string_agg(part.text #>> '{}', ' ' ORDER BY part.place), '') AS text
             FROM jsonb_path_query(m.content, '$[*] ? (@.type == "text").text ? (@.type() == "string")')
                  WITH ORDINALITY AS part (text, place))"""

FILL = f"""
    UPDATE chat_message_search s
       SET tsv = to_tsvector('simple', regexp_replace(
                   translate(left(t.text, {MAX_TEXT_CHARS}), '{_ESCAPES}', '{" " * len(_ESCAPES)}'),
                   '\\S{{{_LONGEST_RUN}}}', '\\& ', 'g'))
      FROM chat_messages m
     CROSS JOIN LATERAL {TEXT_OF_MESSAGE} t
     WHERE m.id = s.message_id
       AND s.message_id = ANY($1::bigint[])
"""

FILL_EMPTY = """
    UPDATE chat_message_search
       SET tsv = ''
     WHERE message_id = $1
"""

# SET LOCAL, because connections must not keep session state.
CUSTOM_PLAN = "SET LOCAL plan_cache_mode = force_custom_plan"

# Errors that a row's text causes, not the state of the database. A timeout is included, because it would occur again.
_BAD_TEXT = (asyncpg.ProgramLimitExceededError, asyncpg.DataError, asyncpg.QueryCanceledError)


async def sweep(conn: Connection, *, batch: int = 20) -> int:
    """Index at most `batch` pending messages, the newest first. Return their number; 0 means that none is pending.

    A batch is one transaction, which locks its rows. An edit that removes one of them waits, so keep `batch` small.
    """
    async with conn.transaction():
        pending = [record["message_id"] for record in await conn.fetch(TAKE_PENDING, batch)]
        if pending and not await _try_fill(conn, pending):
            for message_id in pending:
                if not await _try_fill(conn, [message_id]):
                    await conn.execute(FILL_EMPTY, message_id)
        return len(pending)


async def backfill(conn: Connection, *, max_rows: int = 50_000, batch: int = 20) -> int:
    """Index pending messages until none is left or `max_rows` are done. Return the number of indexed messages.

    Each batch is its own transaction, so a cancelled run keeps its progress.
    """
    filled = 0
    while filled < max_rows:
        swept = await sweep(conn, batch=min(batch, max_rows - filled))
        if not swept:
            break
        filled += swept
    return filled


def for_titles(query: str) -> str:
    """Return the argument of `websearch_to_tsquery` for a search in titles."""
    _check_query(query)
    return _UNSTORABLE.sub(" ", query)


def for_messages(query: str) -> str:
    """Return the argument of `websearch_to_tsquery` for a search in messages, prepared as their text is."""
    _check_query(query)
    return _LONG_RUN.sub(r"\g<0> ", _UNSEARCHABLE.sub(" ", query))


def without_escapes(text: str) -> str:
    """Return stored text with spaces for the escapes of `domain.chat.parts`."""
    return text.translate(_SPACED)


async def fetch_with_custom_plan(conn: Connection, statement: str, *arguments: object) -> list[asyncpg.Record]:
    """Run a search with a custom plan.

    Rare and common words need different plans, but a prepared statement gets one generic plan for all words. Measured
    for a common word, with 200,000 chats and a page of 20: 12 ms with a custom plan, and 152 ms with the generic one.
    """
    async with conn.transaction():
        await conn.execute(CUSTOM_PLAN)
        found: list[asyncpg.Record] = await conn.fetch(statement, *arguments)
    return found


async def _try_fill(conn: Connection, message_ids: Sequence[MessageId]) -> bool:
    """Index these messages. If PostgreSQL fails on one of the texts, index none and return False."""
    try:
        async with conn.transaction():
            await conn.execute(FILL, message_ids)
    except _BAD_TEXT:
        return False
    return True


def _check_query(query: str) -> None:
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidInput(
            "q", f"A search can have at most {MAX_QUERY_CHARS:,} characters; this one has {len(query):,}."
        )
    if any(len(word.encode(errors="replace")) > _MAX_QUERY_WORD_BYTES for word in query.split()):
        raise InvalidInput("q", "A word of this search is too long. Shorten it.")
