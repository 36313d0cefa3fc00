"""The usage ledger: an append-only table with one row per call, for all purposes and outcomes.

The row of a step is written in the transaction that commits the step. Other rows are written separately, and never
change the chat: a new `history_version` would invalidate a running generation.

`usage_daily` contains the sums of each day (UTC) for reports over long periods. A day is recomputed while calls may
still be added to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.db.pool import Connection

MAX_REPORT_DAYS = 366
# The most expensive chats of a report. The other groups have few keys.
MAX_REPORTED_CHATS = 500

_INSERT = """
    INSERT INTO model_usage (owner_id, chat_id, root_chat_id, message_id, purpose, provider_id, model_config_id, model,
                             key_source, status, input_tokens, cache_read_tokens, cache_write_tokens,
                             cache_write_1h_tokens, output_tokens, reasoning_tokens, total_tokens, web_searches,
                             context_tokens, cost_micros, runtime_ms, request_id, at)
"""
# The statement reads the root chat from the chat, so that callers cannot pass a wrong one. Both columns are NULL if
# the chat was deleted.
RECORD = f"""
    {_INSERT}
    SELECT $1, c.id, coalesce(c.root_chat_id, c.id), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
           $17, $18, $19, $20, $21, coalesce($22, clock_timestamp())
      FROM (SELECT) one
      LEFT JOIN chats c ON c.id = $2
    RETURNING id
"""
_IDENTITY = ("owner_id", "at", "purpose", "model", "runtime_ms", "request_id", "output_tokens")
# Index model_usage_at. The caller sets the time, to the microsecond, so that it identifies the call.
IS_RECORDED = """
    SELECT EXISTS (SELECT FROM model_usage
                    WHERE at = $2 AND owner_id = $1 AND purpose = $3 AND model = $4 AND runtime_ms = $5
                      AND request_id IS NOT DISTINCT FROM $6 AND output_tokens IS NOT DISTINCT FROM $7)
"""
# An index-only scan of model_usage_spend.
SPENT = """
    SELECT coalesce(sum(cost_micros), 0)::bigint
      FROM model_usage
     WHERE owner_id = $1
       AND at >= $2
       AND at < $3
       AND key_source <> 'user'
"""
_FIGURES = """
    coalesce(sum(cost_micros), 0)::bigint, count(*), count(*) FILTER (WHERE NOT priced),
    coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(cache_read_tokens), 0)::bigint,
    coalesce(sum(cache_write_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
    coalesce(sum(reasoning_tokens), 0)::bigint, coalesce(sum(runtime_ms), 0)::bigint
"""
OF_FAMILY = f"""
    SELECT {_FIGURES}
      FROM model_usage
     WHERE root_chat_id = coalesce((SELECT root_chat_id FROM chats WHERE id = $1), $1)
"""
OF_FAMILY_BY = f"""
    SELECT {{key}}, {_FIGURES}
      FROM model_usage
     WHERE root_chat_id = coalesce((SELECT root_chat_id FROM chats WHERE id = $1), $1)
     GROUP BY 1
     ORDER BY 2 DESC, 1
"""
REPORT = f"""
    SELECT {{key}}, {_FIGURES}
      FROM model_usage
     WHERE at >= $1
       AND at < $2
       AND ($3::uuid IS NULL OR owner_id = $3)
     GROUP BY 1
     ORDER BY {{order}}
"""
LOCK_KEY = 0x726F6F6B_75736167  # "rookusag"; the one-key space of advisory locks
RECOMPUTED_DAYS = 2
LOCK = "SELECT pg_advisory_xact_lock($1)"
FORGET = "DELETE FROM usage_daily WHERE day >= $1"
# Index model_usage_at.
COMPUTE = """
    INSERT INTO usage_daily (day, user_id, model_config_id, provider, model, purpose, key_source, input_tokens,
                             cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_micros,
                             unpriced_requests, requests, runtime_ms)
    SELECT (u.at AT TIME ZONE 'UTC')::date, u.owner_id, u.model_config_id, coalesce(p.name, u.provider_id::text),
           u.model, u.purpose, u.key_source, coalesce(sum(u.input_tokens), 0), coalesce(sum(u.cache_read_tokens), 0),
           coalesce(sum(u.cache_write_tokens), 0), coalesce(sum(u.output_tokens), 0),
           coalesce(sum(u.reasoning_tokens), 0), coalesce(sum(u.cost_micros), 0), count(*) FILTER (WHERE NOT u.priced),
           count(*), coalesce(sum(u.runtime_ms), 0)
      FROM model_usage u
      LEFT JOIN model_providers p ON p.id = u.provider_id
     WHERE u.at >= $1
     GROUP BY 1, 2, 3, 4, 5, 6, 7
    RETURNING day
"""


class KeySource(StrEnum):
    """The source of the key that a call used. Calls with a user's own key do not count against a limit."""

    USER = "user"
    CENTRAL = "central"
    ENV = "env"
    AMBIENT = "ambient"


class CallStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One call. Token counts are None if the provider did not report them. `cost_micros` is None without a price."""

    owner_id: UUID
    chat_id: ChatId | None
    message_id: MessageId | None = None
    purpose: str
    provider_id: UUID
    model_config_id: UUID | None
    model: str
    key_source: KeySource
    status: CallStatus
    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    web_searches: int | None = None
    context_tokens: int | None = None
    cost_micros: int | None = None
    runtime_ms: int = 0
    request_id: str | None = None
    at: datetime | None = None  # the end of the call; None means now


# The number of fields of `call_values`: all but owner, chat and message.
CALL_WIDTH = len(Entry.__struct_fields__) - 3


class Figures(msgspec.Struct, frozen=True):
    """Sums over calls. The cost leaves out calls without a price, which `unpriced_request_count` counts."""

    cost_micros: int
    request_count: int
    unpriced_request_count: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    runtime_ms: int


class FamilyCost(msgspec.Struct, frozen=True):
    """The cost of a root chat and its subagents, in total, by model id, by chat id and by purpose."""

    total: Figures
    by_model: Mapping[str, Figures]
    by_chat: Mapping[str, Figures]
    by_purpose: Mapping[str, Figures]


class GroupBy(StrEnum):
    USER = "user"
    MODEL = "model"
    PROVIDER = "provider"
    DAY = "day"
    PURPOSE = "purpose"
    CHAT = "chat"


_GROUPS = {
    GroupBy.USER: "owner_id::text",
    GroupBy.MODEL: "model",
    GroupBy.PROVIDER: "provider_id::text",
    GroupBy.DAY: "to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    GroupBy.PURPOSE: "purpose",
    # A chat with its subagents. Deleted chats, and calls for no chat, have one group with an empty key.
    GroupBy.CHAT: "coalesce(root_chat_id::text, '')",
}
_ORDERS = {GroupBy.CHAT: f"2 DESC, 1 LIMIT {MAX_REPORTED_CHATS}"}


# Queries for the display names of report keys. Keys of the other groups are names already.
_NAMES = {
    GroupBy.USER: "SELECT id::text, username FROM users WHERE id::text = ANY ($1::text[])",
    GroupBy.PROVIDER: """
        SELECT id::text, coalesce(nullif(display_name, ''), name) FROM model_providers WHERE id::text = ANY ($1::text[])
    """,
}
# Titles are contents of chats, which only their owners may read here.
_TITLES = "SELECT id::text, title FROM chats WHERE id = ANY ($1::text[]::uuid[]) AND owner_id = $2"


async def record_call(conn: Connection, entry: Entry) -> int:
    """Append a call. Returns the id of its row."""
    row_id: int = await conn.fetchval(RECORD, *msgspec.structs.astuple(entry))
    return row_id


def insert_call(chat: str, message: str, *, first: int) -> str:
    """Return an INSERT for use in another statement, which has rows `chat` of chats and `message` with a message_id.

    The parameters from `first` on are `call_values`.
    """
    values = ", ".join(f"${first + place}" for place in range(CALL_WIDTH - 1))
    return f"""
    {_INSERT}
    SELECT {chat}.owner_id, {chat}.id, coalesce({chat}.root_chat_id, {chat}.id), {message}.message_id, {values},
           coalesce(${first + CALL_WIDTH - 1}, clock_timestamp())
      FROM {chat}, {message}
    """


def call_values(entry: Entry) -> tuple[object, ...]:
    """Return the values of a call without its owner, chat and message."""
    return msgspec.structs.astuple(entry)[-CALL_WIDTH:]


async def is_recorded(conn: Connection, entry: Entry) -> bool:
    """Return whether the ledger contains this call. Use it before a retry if the outcome of the write is unknown."""
    found: bool = await conn.fetchval(IS_RECORDED, *(getattr(entry, name) for name in _IDENTITY))
    return found


async def spent_micros(conn: Connection, user_id: UUID, *, start: datetime, end: datetime) -> int:
    """Return the cost of a user's calls between two times. Calls with the user's own keys do not count."""
    spent: int = await conn.fetchval(SPENT, user_id, start, end)
    return spent


async def family_cost(conn: Connection, chat_id: ChatId) -> FamilyCost:
    """Return the cost of the root chat and all its subagents, given the id of any of them."""
    total = await conn.fetchrow(OF_FAMILY, chat_id)
    assert total is not None
    by_model, by_chat, by_purpose = [
        {key: Figures(*figures) for key, *figures in await conn.fetch(OF_FAMILY_BY.format(key=each), chat_id) if key}
        for each in ("model", "chat_id::text", "purpose")
    ]
    return FamilyCost(Figures(*total), by_model, by_chat, by_purpose)


async def report(
    conn: Connection, group_by: GroupBy, *, start: datetime, end: datetime, user_id: UUID | None = None
) -> dict[str, Figures]:
    """Return the sums between two times, of one user or of all users, by group key.

    Chats are those with the highest cost, up to `MAX_REPORTED_CHATS`.
    """
    if not start < end or (end - start).days > MAX_REPORT_DAYS:
        raise InvalidInput("to", f"The report must end after its start and cover at most {MAX_REPORT_DAYS} days.")
    statement = REPORT.format(key=_GROUPS[group_by], order=_ORDERS.get(group_by, "1"))
    rows = await conn.fetch(statement, start, end, user_id)
    return {key: Figures(*figures) for key, *figures in rows}


async def list_names(
    conn: Connection, group_by: GroupBy, *, keys: Collection[str], viewer_id: UUID | None = None
) -> dict[str, str]:
    """Return the display names of report keys that are ids.

    Ids of deleted rows, and chats of other users than `viewer_id`, have none.
    """
    if group_by is GroupBy.CHAT:
        ids = [key for key in keys if key]
        return {key: title for key, title in await conn.fetch(_TITLES, ids, viewer_id)}
    statement = _NAMES.get(group_by)
    if statement is None:
        return {}
    return {key: name for key, name in await conn.fetch(statement, list(keys))}


async def roll_up(conn: Connection, *, now: datetime, days: int = RECOMPUTED_DAYS) -> int:
    """Recompute the daily sums of the last `days` days, including today. Returns the number of rows."""
    first = first_day(now, days)
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    async with conn.transaction():
        # Without the lock, two concurrent runs would delete the same rows and then insert duplicates.
        await conn.execute(LOCK, LOCK_KEY)
        await conn.execute(FORGET, first)
        return len(await conn.fetch(COMPUTE, start))


def first_day(now: datetime, days: int) -> date:
    return now.astimezone(UTC).date() - timedelta(days=days - 1)
