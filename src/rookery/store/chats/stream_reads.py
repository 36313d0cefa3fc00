"""Reads for streams: messages with their figures, the queue, pending calls, and the current hints of chats.

The statements for messages are those of `messages` with the figures added, so their plans are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.approvals import Asked
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import MAX_ID, ChatId, MessageId, QueuedMessage, is_id
from rookery.domain.chat.open_tool_calls import CallRow, OpenCall
from rookery.domain.chat.parts import ContentError, ToolCall
from rookery.domain.chat.prompt import PromptRow
from rookery.store.chats import approval_rules, chat_delta, messages
from rookery.store.chats.messages import WINDOW_MAX_BYTES
from rookery.store.db.hints import ChatHint
from rookery.store.db.pool import Connection
from rookery.store.machine import Machine, open_calls, queue_rows
from rookery.store.machine.bundle import CHAT_COLUMNS
from rookery.store.people import sessions


def _with_figures(statement: str) -> str:
    last = "m.created_at"
    assert statement.count(f"{last}\n") == 1, "m.created_at is the last column of `messages.COLUMNS`"
    return statement.replace(f"{last}\n", f"{last}, {messages.FIGURES}\n")


WINDOW = _with_figures(messages.WINDOW)
DELTA = _with_figures(messages.DELTA)
CHAT_DELTA = chat_delta.statement(CHAT_COLUMNS, only="coalesce(m.visibility, 'model') <> 'model'")
AFTER = _with_figures(messages.OLDEST)

# Counts the messages that a client lacks, before they are read. If there are too many, the client gets a window
# instead.
MEASURE = """
    SELECT count(*), coalesce(sum(octet_length(missing.content::text)), 0)::bigint
      FROM (SELECT m.content
              FROM chat_messages m
             WHERE m.chat_id >= $1 AND m.chat_id <= $1
               AND (m.chat_id, m.id) > ($1, $2)
               AND NOT m.deleted
               AND coalesce(m.visibility, 'model') <> 'model'
             ORDER BY m.chat_id, m.id
             LIMIT $3) missing
"""

NEWEST_ID = """
    SELECT m.id
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND NOT m.deleted
       AND coalesce(m.visibility, 'model') <> 'model'
     ORDER BY m.chat_id DESC, m.id DESC
     LIMIT 1
"""

QUEUE = f"SELECT {queue_rows.QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = $1 ORDER BY position, id"

DECLARED_TOOLS = """
    SELECT t.tool ->> 'name'
      FROM chats c
     CROSS JOIN LATERAL jsonb_array_elements(c.dynamic_tools) AS t (tool)
     WHERE c.id = $1 AND jsonb_typeof(c.dynamic_tools) = 'array'
"""

# The fields of `ChatHint` between `v` and `gone`.
_HINT_FIELDS = ChatHint.__struct_fields__[1:-1]
POLL = f"""
    SELECT id AS chat_id, {", ".join(_HINT_FIELDS[1:])}
      FROM chats
     WHERE id = ANY ($1)
"""

FAMILY = """
    SELECT id, owner_id, coalesce(root_chat_id, id)
      FROM chats
     WHERE id = ANY ($1)
"""

# The equivalent of `sessions.authenticate` for streams. An expired session is not extended.
RECORD_SEEN = """
    WITH seen AS (
         UPDATE sessions s
            SET last_seen_at = $2,
                expires_at = greatest(s.expires_at, least($2 + $3::interval, s.created_at + $4::interval))
          WHERE s.id = ANY ($1)
            AND s.expires_at > $2
            AND s.last_seen_at < $2 - $5::interval
         RETURNING s.user_id)
    UPDATE users u SET last_seen_at = greatest(u.last_seen_at, $2) FROM seen WHERE u.id = seen.user_id
"""


class Page(msgspec.Struct, frozen=True):
    """Messages in ascending order. `has_more`: there are older ones."""

    rows: tuple[PromptRow, ...]
    has_more: bool


class MissingMessages(msgspec.Struct, frozen=True):
    """The number and size of the messages that a client lacks, counted up to a limit."""

    count: int
    size_bytes: int


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for the client or a user. `args` is the JSON that the model wrote.

    `offers` is set for a call that needs an approval: the rules that the answer "always" would create, or why the
    brake holds the call. `message_id` is the message with the call.
    """

    tool_call_id: str
    tool_name: str
    args: Raw
    offers: Asked | None = None
    message_id: int = 0


class Member(msgspec.Struct, frozen=True):
    """A chat as a member of its family. `root_id` of a root is its own id."""

    chat_id: ChatId
    owner_id: UUID
    root_id: UUID


async def list_window(conn: Connection, chat_id: ChatId, *, tail: int, max_bytes: int = WINDOW_MAX_BYTES) -> Page:
    """Return the newest visible messages: at most `tail`, and at most `max_bytes` of content or one message."""
    rows = _rows(reversed(await conn.fetch(WINDOW, chat_id, tail, max_bytes)))
    before = rows[0].message.id if rows else MAX_ID
    return Page(rows, await conn.fetchval(messages.OLDER, chat_id, before) is not None)


class VisibleDelta(msgspec.Struct, frozen=True):
    """A chat, and its visible rows that changed since a history version. `is_complete` is False if there are more."""

    chat: Chat
    rows: tuple[PromptRow, ...]
    is_complete: bool


async def read_delta(machine: Machine, chat_id: ChatId, *, seen: int) -> VisibleDelta:
    """Return the chat and its visible changes since history version `seen`, in one round trip."""
    found = await chat_delta.read_delta(machine, CHAT_DELTA, chat_id, seen=seen)
    if found is None:
        raise ChatNotFound(chat_id)
    return VisibleDelta(Chat(*found.chat), _rows(found.rows), found.is_complete)


async def list_delta(conn: Connection, chat_id: ChatId, *, seen: int, limit: int) -> tuple[PromptRow, ...]:
    """Return the visible changes since history version `seen`: inserted rows, and deleted rows without their content.

    If the client has one of the deleted rows, its history was cut by an edit.
    """
    return _rows(await conn.fetch(DELTA, chat_id, seen, limit))


async def list_after(conn: Connection, chat_id: ChatId, *, after_id: MessageId, limit: int) -> tuple[PromptRow, ...]:
    """Return the visible messages after this one, oldest first."""
    return _rows(await conn.fetch(AFTER, chat_id, after_id, limit))


async def is_live(conn: Connection, chat_id: ChatId, *, message_id: int) -> bool:
    """Return whether the message is in this chat, visible to users and not deleted."""
    return (
        is_id(message_id) and await messages.find_visible(conn, chat_id, message_id=MessageId(message_id)) is not None
    )


async def measure_after(conn: Connection, chat_id: ChatId, *, after_id: MessageId, limit: int) -> MissingMessages:
    """Return the number and size of the visible messages after this one."""
    record = await conn.fetchrow(MEASURE, chat_id, after_id, limit)
    assert record is not None
    return MissingMessages(*record)


async def find_newest_id(conn: Connection, chat_id: ChatId) -> MessageId | None:
    """Return the id of the newest visible message."""
    newest: MessageId | None = await conn.fetchval(NEWEST_ID, chat_id)
    return newest


async def list_queue(conn: Connection, chat_id: ChatId) -> tuple[QueuedMessage, ...]:
    """Return the queued messages, in their order."""
    return tuple(queue_rows.queued_of(record) for record in await conn.fetch(QUEUE, chat_id))


async def list_pending_calls(conn: Connection, chat_id: ChatId) -> tuple[PendingCall, ...]:
    """Return the calls that wait for a user's approval. If there are none, return those that wait for the client."""
    records = await conn.fetch(open_calls.TURN_CALLS, chat_id)
    opened = open_tool_calls.open_calls(CallRow(*record) for record in records)
    if offers := await approval_rules.list_offers(conn, chat_id):
        asked: dict[OpenCall, Asked | None] = {**approval_rules.select_asked(opened, offers, chat_id=chat_id)}
    else:
        names = {record[0] for record in await conn.fetch(DECLARED_TOOLS, chat_id)}
        asked = dict.fromkeys(open_tool_calls.select_dynamic(opened, names))
    args: dict[tuple[int, str], Raw] = {}
    for message_id in {call.message_id for call in asked}:
        args.update(await _args_of(conn, chat_id, message_id=MessageId(message_id)))
    return tuple(_pending(call, args, offered) for call, offered in asked.items())


async def list_questions(conn: Connection, chat_id: ChatId) -> dict[str, PendingCall]:
    """Return the calls that wait for a user's approval, by their ids."""
    pending = await list_pending_calls(conn, chat_id)
    return {call.tool_call_id: call for call in pending if call.offers is not None}


async def poll(conn: Connection, chat_ids: Sequence[UUID]) -> list[ChatHint]:
    """Return the current hint of each chat. Deleted chats are left out."""
    return [ChatHint(**dict(record)) for record in await conn.fetch(POLL, chat_ids)]


async def list_members(conn: Connection, chat_ids: Sequence[UUID]) -> list[Member]:
    """Return the owner and the root of each chat that exists."""
    return [Member(*record) for record in await conn.fetch(FAMILY, chat_ids)]


async def record_seen(conn: Connection, session_ids: Sequence[UUID], *, now: datetime) -> None:
    """Record that streams use these sessions, and extend them. Ids of tokens are ignored."""
    await conn.execute(RECORD_SEEN, session_ids, now, sessions.IDLE, sessions.LONGEST, sessions.SEEN_EVERY)


async def _args_of(conn: Connection, chat_id: ChatId, *, message_id: MessageId) -> dict[tuple[int, str], Raw]:
    message = await messages.find_visible(conn, chat_id, message_id=message_id)
    try:
        content = message.parts() if message is not None else ()
    except ContentError:
        content = ()
    return {
        (message_id, part.tool_call_id): part.args
        for part in content
        if isinstance(part, ToolCall) and isinstance(part.args, Raw)
    }


def _pending(call: OpenCall, args: dict[tuple[int, str], Raw], offers: Asked | None) -> PendingCall:
    made = args.get((call.message_id, call.tool_call_id), parts.json_raw({}))
    return PendingCall(call.tool_call_id, call.tool_name, made, offers, call.message_id)


def _rows(records: Iterable[object]) -> tuple[PromptRow, ...]:
    return tuple(messages.prompt_row(record) for record in records)  # type: ignore[arg-type]
