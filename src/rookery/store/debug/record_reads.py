"""Reads of debug records, without records of removed history. The list of a run's steps reads no prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import (
    AttemptRow,
    AttemptStatus,
    AttemptSummaryRow,
    ReplayRow,
    RequestRow,
    RunKind,
    RunRow,
    RunStatus,
    SearchedStep,
    StepRow,
    StepStatus,
    StepSummaryRow,
    raw,
)
from rookery.store.debug.recording_state import IS_KEPT

MAX_LIMIT = 100


def _columns(kind: type[msgspec.Struct], prefix: str) -> str:
    return ", ".join(f"{prefix}.{name}" for name in kind.__struct_fields__)


RUN_COLUMNS = _columns(RunRow, "r")
LIST_RUNS = f"""
    SELECT {RUN_COLUMNS}
      FROM chat_debug_runs r
     WHERE r.chat_id = $1
       AND ($2::timestamptz IS NULL OR (r.started_at, r.id) < ($2, $3))
       AND ($4::text IS NULL OR r.kind = $4)
       AND ($5::text IS NULL OR r.status = $5)
       AND {IS_KEPT}
     ORDER BY r.started_at DESC, r.id DESC
     LIMIT $6
"""
FIND_RUN = f"SELECT {RUN_COLUMNS} FROM chat_debug_runs r WHERE r.id = $1 AND r.chat_id = $2 AND {IS_KEPT}"
FIND_CHAT = "SELECT c.id, c.owner_id FROM chat_debug_runs r JOIN chats c ON c.id = r.chat_id WHERE r.id = $1"
LIST_STEPS = (
    f"SELECT {_columns(StepSummaryRow, 's')} FROM chat_debug_steps s WHERE s.run_id = $1 ORDER BY s.step_number"
)
FIND_STEP = f"SELECT {_columns(StepRow, 's')} FROM chat_debug_steps s WHERE s.id = $1 AND s.run_id = $2"
LIST_REQUESTS = """
    SELECT id, step_number, normalized_request
      FROM chat_debug_steps
     WHERE run_id = $1 AND step_number <= $2
     ORDER BY step_number
"""
LIST_REPLAYS = """
    SELECT id, step_number, replay_form
      FROM chat_debug_steps
     WHERE run_id = $1 AND step_number <= $2
     ORDER BY step_number
"""
# White space in the query matches any white space. In JSON, a line break is the two characters \n. False matches are
# removed later.
SEARCH_STEPS = """
    SELECT s.id, s.step_number, s.normalized_request, s.normalized_response, s.error,
           s.metadata -> 'prior_errors' AS prior_errors
      FROM chat_debug_steps s
     WHERE s.run_id = $1
       AND concat_ws(' ', s.normalized_request::text, s.normalized_response::text, s.error::text,
                     s.metadata ->> 'prior_errors') ILIKE $2
     ORDER BY s.step_number
     LIMIT $3
"""
LIST_ATTEMPTS = f"""
    SELECT {_columns(AttemptSummaryRow, "a")}
      FROM chat_debug_attempts a
      JOIN chat_debug_steps s ON s.id = a.step_id
     WHERE s.run_id = $1
     ORDER BY s.step_number, a.number
"""
LIST_EXCHANGES = f"SELECT {_columns(AttemptRow, 'a')} FROM chat_debug_attempts a WHERE a.step_id = $1 ORDER BY a.number"
FIND_ATTEMPT = f"SELECT {_columns(AttemptRow, 'a')} FROM chat_debug_attempts a WHERE a.step_id = $1 AND a.number = $2"


class _Place(msgspec.Struct, frozen=True, array_like=True):
    started_at: datetime
    id: UUID


class RunPage(msgspec.Struct, frozen=True):
    runs: Sequence[RunRow]
    next_cursor: str | None


async def list_runs(
    conn: Connection,
    chat_id: ChatId,
    *,
    limit: int = 50,
    cursor: str | None = None,
    kind: RunKind | None = None,
    status: RunStatus | None = None,
) -> RunPage:
    """Return a page of a chat's runs, the newest first. Raises `InvalidInput` for a wrong limit or cursor."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    after = None if cursor is None else page_cursors.decode(cursor, _Place)
    records = await conn.fetch(
        LIST_RUNS, chat_id, after and after.started_at, after and after.id, kind, status, limit + 1
    )
    runs = [_run(record) for record in records[:limit]]
    has_more = len(records) > limit
    return RunPage(runs, page_cursors.encode(_Place(runs[-1].started_at, runs[-1].id)) if has_more else None)


async def find_run(conn: Connection, chat_id: ChatId, run_id: UUID) -> RunRow | None:
    record = await conn.fetchrow(FIND_RUN, run_id, chat_id)
    return None if record is None else _run(record)


async def find_chat(conn: Connection, run_id: UUID) -> tuple[ChatId, UUID] | None:
    """Return the chat of a run and its owner."""
    record = await conn.fetchrow(FIND_CHAT, run_id)
    return None if record is None else (ChatId(record["id"]), record["owner_id"])


async def list_steps(conn: Connection, run_id: UUID) -> list[StepSummaryRow]:
    """Return the steps of a run in order, without requests and responses."""
    return [StepSummaryRow(**_step_fields(record)) for record in await conn.fetch(LIST_STEPS, run_id)]


async def find_step(conn: Connection, run_id: UUID, step_id: UUID) -> StepRow | None:
    record = await conn.fetchrow(FIND_STEP, step_id, run_id)
    return None if record is None else StepRow(**_step_fields(record))


async def list_requests(conn: Connection, run_id: UUID, *, last_number: int) -> list[RequestRow]:
    """Return the stored requests of the steps up to a number, in order.

    Together they contain all messages of the last one.
    """
    records = await conn.fetch(LIST_REQUESTS, run_id, last_number)
    return [RequestRow(record[0], record[1], raw(record[2])) for record in records]


async def search_steps(conn: Connection, run_id: UUID, query: str, *, limit: int) -> list[SearchedStep]:
    """Return the first steps of a run that may contain the query, in order. White space and case do not matter."""
    words = (_like(json.dumps(word, ensure_ascii=False)[1:-1]) for word in query.split())
    records = await conn.fetch(SEARCH_STEPS, run_id, f"%{'%'.join(words)}%", limit)
    return [SearchedStep(**_with_raw(record, _SEARCHED_JSON)) for record in records]


_SEARCHED_JSON = ("normalized_request", "normalized_response", "error", "prior_errors")


def _like(text: str) -> str:
    """Return a LIKE pattern that matches the text."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def list_replay_forms(conn: Connection, run_id: UUID, *, last_number: int) -> list[ReplayRow]:
    """Return the stored calls of the steps up to a number, in order."""
    return [ReplayRow(*record) for record in await conn.fetch(LIST_REPLAYS, run_id, last_number)]


async def list_attempts(conn: Connection, run_id: UUID) -> list[AttemptSummaryRow]:
    """Return the attempts of all steps of a run, in order, without headers and bodies."""
    return [AttemptSummaryRow(**_attempt_fields(record)) for record in await conn.fetch(LIST_ATTEMPTS, run_id)]


async def list_exchanges(conn: Connection, step_id: UUID) -> list[AttemptRow]:
    """Return the attempts of a step, in order, with headers and bodies."""
    return [AttemptRow(**_attempt_fields(record)) for record in await conn.fetch(LIST_EXCHANGES, step_id)]


async def find_attempt(conn: Connection, step_id: UUID, number: int) -> AttemptRow | None:
    record = await conn.fetchrow(FIND_ATTEMPT, step_id, number)
    return None if record is None else AttemptRow(**_attempt_fields(record))


def _run(record: asyncpg.Record) -> RunRow:
    fields = _with_raw(record, ("summary",))
    return RunRow(**{**fields, "kind": RunKind(fields["kind"]), "status": RunStatus(fields["status"])})


def _step_fields(record: asyncpg.Record) -> dict[str, Any]:
    fields = _with_raw(record, ("usage", "error", "metadata", "cache", "normalized_request", "normalized_response"))
    return {**fields, "status": StepStatus(fields["status"])}


def _attempt_fields(record: asyncpg.Record) -> dict[str, Any]:
    fields = _with_raw(record, ("body_meta", "request_headers", "response_headers"))
    return {**fields, "status": AttemptStatus(fields["status"])}


def _with_raw(record: asyncpg.Record, names: tuple[str, ...]) -> dict[str, Any]:
    fields = dict(record)
    for name in names:
        if fields.get(name) is not None:
            fields[name] = raw(fields[name])
    return fields
