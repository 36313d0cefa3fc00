"""Rows of saved prompts: those of each user, and those that are shared with everyone."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.content import saved_prompts
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.people.errors import SavedPromptNotFound

MAX_LIMIT = 100

# Names that begin with the words come first. The texts are not read: at most 20,000 short rows are compared.
LIST = """
    SELECT p.name, CASE WHEN p.owner_id IS NULL THEN 'deployment' ELSE 'user' END, p.summary, p.updated_at,
           NOT starts_with(p.name, $2)
      FROM saved_prompts p
     WHERE (p.owner_id = $1 OR p.owner_id IS NULL)
       AND ($2 = '' OR strpos(p.name, $2) > 0 OR strpos(lower(p.summary), $2) > 0)
       AND ($3::boolean IS NULL OR (NOT starts_with(p.name, $2), p.name, p.owner_id IS NULL) > ($3, $4, $5::boolean))
     ORDER BY NOT starts_with(p.name, $2), p.name, p.owner_id IS NULL
     LIMIT $6
"""
FIND = """
    SELECT name, CASE WHEN owner_id IS NULL THEN 'deployment' ELSE 'user' END, summary, updated_at, text
      FROM saved_prompts
     WHERE owner_id IS NOT DISTINCT FROM $1 AND name = $2
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('saved_prompts:' || coalesce($1::text, ''), 0))"
COUNT = "SELECT count(*) FROM saved_prompts WHERE owner_id IS NOT DISTINCT FROM $1 AND name <> $2"
WRITE = """
    INSERT INTO saved_prompts (owner_id, name, summary, text)
    VALUES ($1, $2, $3, $4)
        ON CONFLICT (owner_id, name) DO UPDATE
       SET summary = excluded.summary,
           text = excluded.text,
           updated_at = clock_timestamp()
"""
DELETE = "DELETE FROM saved_prompts WHERE owner_id IS NOT DISTINCT FROM $1 AND name = $2 RETURNING true"

Scope = Literal["user", "deployment"]


class SavedPromptSummary(msgspec.Struct, frozen=True):
    """A saved prompt without its text. `summary` is the beginning of the text, in one line.

    `scope` is `user` for a prompt of the caller, and `deployment` for one that administrators share with everyone.
    """

    name: str
    scope: Scope
    summary: str
    updated_at: datetime


class SavedPrompt(msgspec.Struct, frozen=True):
    """A saved prompt. `variables` are the names that the text has in double braces, in their order."""

    name: str
    scope: Scope
    summary: str
    updated_at: datetime
    text: str
    variables: tuple[str, ...]


class SavedPromptPage(msgspec.Struct, frozen=True):
    items: tuple[SavedPromptSummary, ...]
    next_cursor: str | None


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sort key of a row."""

    is_inside: bool
    name: str
    is_shared: bool


async def list_prompts(
    conn: Connection, owner_id: UUID, *, words: str = "", limit: int = 20, cursor: str | None = None
) -> SavedPromptPage:
    """Return a page of the user's prompts and the shared ones, by name. The words are looked up in name and summary."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    at = None if cursor is None else page_cursors.decode(cursor, Position)
    after = (None, None, None) if at is None else (at.is_inside, at.name, at.is_shared)
    records = await conn.fetch(LIST, owner_id, words.strip().lower(), *after, limit + 1)
    rows = [SavedPromptSummary(*tuple(record)[:4]) for record in records[:limit]]
    if len(records) <= limit:
        return SavedPromptPage(tuple(rows), None)
    last = Position(records[limit - 1][4], rows[-1].name, rows[-1].scope == "deployment")
    return SavedPromptPage(tuple(rows), page_cursors.encode(last))


async def get_prompt(conn: Connection, owner_id: UUID | None, name: str) -> SavedPrompt:
    record = await conn.fetchrow(FIND, owner_id, name)
    if record is None:
        raise SavedPromptNotFound(name)
    known_name, scope, beginning, updated_at, text = record
    return SavedPrompt(known_name, scope, beginning, updated_at, text, saved_prompts.variables(text))


async def write_prompt(conn: Connection, owner_id: UUID | None, name: str, text: str) -> SavedPrompt:
    """Create or replace a prompt.

    Call it in a transaction, so that concurrent writers cannot exceed the limit together.
    """
    saved_prompts.check_name(name)
    kept = saved_prompts.checked_text(text)
    await conn.execute(LOCK, None if owner_id is None else str(owner_id))
    if await conn.fetchval(COUNT, owner_id, name) >= saved_prompts.MAX_PROMPTS:
        raise InvalidInput("name", f"There can be {saved_prompts.MAX_PROMPTS:,} saved prompts. Delete one first.")
    await conn.execute(WRITE, owner_id, name, saved_prompts.summary(kept), kept)
    return await get_prompt(conn, owner_id, name)


async def delete_prompt(conn: Connection, owner_id: UUID | None, name: str) -> None:
    if not await conn.fetchval(DELETE, owner_id, name):
        raise SavedPromptNotFound(name)
