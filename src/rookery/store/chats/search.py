"""Full-text search over titles and over the messages of users and models.

Titles are indexed as they are. A message enters `chat_message_search` pending, by trigger, and a sweep fills it in.
No version of a chat moves. Only text parts are searchable; tool calls, reasoning and files are not. `chat_list` and
`sent_messages` decide which chats are searched; a title and each message match separately.

PostgreSQL's parser has three limits that user text may exceed, and one such row must not stop the sweep:

- a tsvector over 1 MiB raises: the input is cut, and a row that still fails is filled with nothing;
- words over 2 kB are dropped with a notice: they are broken up before;
- some inputs take quadratic time (measured, 200,000 characters: "a_" repeated over 60 s, "<!--" repeated 55 s, both
  under 1 s as prepared here): long runs without a space are broken up, and "<" never reaches the parser. That also
  makes the words inside tags searchable, which the parser would skip.
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

# PostgreSQL refuses query words over 2,046 bytes. Half of that is chosen, as folding case can lengthen a word.
_MAX_QUERY_WORD_BYTES = 1_023

# Chosen: longer than words are, short enough that quadratic time stays small.
_LONGEST_RUN = 200

# U+E000 and U+E001 are how stored content escapes U+E000 and U+0000 (`domain.chat.parts`): both sides of a search read
# them, and "<", as spaces.
_ESCAPES = "<\ue000\ue001"
_UNSEARCHABLE = re.compile("[<\0\ue000\ue001\ud800-\udfff]")
_SPACED = dict.fromkeys(map(ord, "\ue000\ue001"), " ")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_RUN}}}")

# Newest first. SKIP LOCKED: a sweep waits neither for another replica's nor for an edit that removes rows, so it cannot
# be part of a deadlock. Index search_pending holds pending rows only.
TAKE_PENDING = """
    SELECT message_id
      FROM chat_message_search
     WHERE tsv IS NULL
     ORDER BY message_id DESC
     LIMIT $1
       FOR UPDATE SKIP LOCKED
"""

# The text parts of a message `m`, joined. Lax jsonpath skips everything that is not an object with a text: unusual
# content has nothing to search for and is not an error.
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

FILL_WITH_NOTHING = """
    UPDATE chat_message_search
       SET tsv = ''
     WHERE message_id = $1
"""

# Connections keep no session state: it ends with the transaction.
PLAN_EACH = "SET LOCAL plan_cache_mode = force_custom_plan"

# Errors caused by a row's text, not by the state of the database. A timeout counts: it would recur.
_BAD_TEXT = (asyncpg.ProgramLimitExceededError, asyncpg.DataError, asyncpg.QueryCanceledError)


async def sweep(conn: Connection, *, batch: int = 20) -> int:
    """Index the newest pending messages, at most `batch` of them. Return their number; zero means that none is pending.

    A batch is one transaction, which locks its rows. An edit that removes one of them waits for it, so keep `batch`
    small.
    """
    async with conn.transaction():
        pending = [record["message_id"] for record in await conn.fetch(TAKE_PENDING, batch)]
        if pending and not await _try_fill(conn, pending):
            for message_id in pending:
                if not await _try_fill(conn, [message_id]):
                    await conn.execute(FILL_WITH_NOTHING, message_id)
        return len(pending)


async def backfill(conn: Connection, *, max_rows: int = 50_000, batch: int = 20) -> int:
    """Run the job once: sweep until no row is pending or `max_rows` are filled. Return how many were filled.

    Each batch is a separate transaction, so a cancelled run keeps its progress.
    """
    filled = 0
    while filled < max_rows:
        swept = await sweep(conn, batch=min(batch, max_rows - filled))
        if not swept:
            break
        filled += swept
    return filled


def for_titles(query: str) -> str:
    """Return the query in a form for `websearch_to_tsquery`, to be matched with titles."""
    _check_query(query)
    return _UNSTORABLE.sub(" ", query)


def for_messages(query: str) -> str:
    """Return the query in a form for `websearch_to_tsquery`, to be matched with messages: prepared as they were."""
    _check_query(query)
    return _LONG_RUN.sub(r"\g<0> ", _UNSEARCHABLE.sub(" ", query))


def plain(text: str) -> str:
    """Return stored text for display: the escapes of `domain.chat.parts` are shown as spaces."""
    return text.translate(_SPACED)


async def fetch_planned(conn: Connection, statement: str, *arguments: object) -> list[asyncpg.Record]:
    """Run a search with its own plan.

    Rare and common words need different plans, and a prepared statement settles on one plan for all words. Measured in
    a list of 20 chats among 200,000, for a common word: 12 ms, against 152 ms by the generic plan.
    """
    async with conn.transaction():
        await conn.execute(PLAN_EACH)
        found: list[asyncpg.Record] = await conn.fetch(statement, *arguments)
    return found


async def _try_fill(conn: Connection, message_ids: Sequence[MessageId]) -> bool:
    """Fill the search rows of these messages. If PostgreSQL fails on one of the texts, fill none and return False."""
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
        raise InvalidInput("q", "A word of this search is too long to be found. Shorten it.")
