"""Chats as people list them, and the texts written about them afterwards (titles, summaries).

Everything here is metadata: the writes move `meta_version` (by trigger) and neither `snapshot_version` nor
`updated_at`, so a new title never moves a chat in anybody's list.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from rookery.chat import labels as label_rules
from rookery.chat.errors import InvalidInput
from rookery.chat.messages import ChatId
from rookery.chat.states import State, classify
from rookery.store import labels as stored_labels
from rookery.store import shares
from rookery.store.pool import Connection

MAX_LIMIT = 200

# The fields of `ChatSummary`, in its order, but for `pin_order`.
COLUMNS = (
    "c.id, c.owner_id, c.parent_chat_id, c.root_chat_id, c.status, c.archived, c.archived_at, c.title, c.labels, "
    "c.workspace_id, c.last_model_config_id, c.last_reasoning_effort, c.mode, c.plan_mode, c.mcp_server_ids, "
    "c.client_type, c.summary, c.summary_generated_at, c.last_turn_summary, c.last_error, c.queue_len, "
    "c.requires_action_deadline_at, c.snapshot_version, c.history_version, c.meta_version, c.created_at, c.updated_at"
)

FIND = f"""
    SELECT {COLUMNS}, p.pin_order
      FROM chats c
      LEFT JOIN chat_pins p ON p.chat_id = c.id AND p.user_id = $2
     WHERE c.id = $1
"""

_PINNED = """
    SELECT {columns}, p.pin_order
      FROM chat_pins p
      JOIN chats c ON c.id = p.chat_id
     WHERE p.user_id = $1
       AND c.owner_id = $2
       AND c.archived = $3
       AND c.parent_chat_id IS NULL
       {label_filter}
"""

# A range of index chats_list, in its order: a page costs the same at any depth.
_UNPINNED = """
    SELECT {columns}, NULL::integer AS pin_order
      FROM chats c
     WHERE c.owner_id = $2
       AND c.archived = $3
       AND c.parent_chat_id IS NULL
       AND (c.updated_at, c.id) < ($4, $5)
       AND NOT EXISTS (SELECT FROM chat_pins p WHERE p.chat_id = c.id AND p.user_id = $1)
       {label_filter}
     ORDER BY c.updated_at DESC, c.id DESC
     LIMIT $6
"""


def _list_statement(*, with_pins: bool, with_labels: bool) -> str:
    # Without labels the filter is left out: the planner takes any containment for rare, and would collect and sort.
    label_filter = "AND c.labels @> $7" if with_labels else ""
    unpinned = _UNPINNED.format(columns=COLUMNS, label_filter=label_filter)
    if not with_pins:
        return unpinned
    # One statement, so one view of the pins: a chat unpinned between two would be listed twice.
    pinned = _PINNED.format(columns=COLUMNS, label_filter=label_filter)
    return f"{pinned} UNION ALL ({unpinned}) ORDER BY pin_order NULLS LAST, updated_at DESC, id DESC"


FIRST_PAGE = _list_statement(with_pins=True, with_labels=False)
FIRST_PAGE_LABELLED = _list_statement(with_pins=True, with_labels=True)
NEXT_PAGE = _list_statement(with_pins=False, with_labels=False)
NEXT_PAGE_LABELLED = _list_statement(with_pins=False, with_labels=True)

# Pins are the viewer's, as in a list of one's own; there are few of these chats, and they belong to anybody.
_SHARED = """
    SELECT {columns}, p.pin_order
      FROM chats c
      LEFT JOIN chat_pins p ON p.chat_id = c.id AND p.user_id = $1
     WHERE c.id IN (SELECT s.chat_id FROM chat_shares s WHERE s.user_id = $1)
       AND {shared}
       AND c.owner_id <> $1
       AND c.archived = $2
       AND ((p.pin_order IS NOT NULL AND $3) OR (p.pin_order IS NULL AND (c.updated_at, c.id) < ($4, $5)))
       AND ($6::jsonb IS NULL OR c.labels @> $6)
     ORDER BY p.pin_order NULLS LAST, c.updated_at DESC, c.id DESC
"""
SHARED = _SHARED.format(columns=COLUMNS, shared=shares.SHARED_DIRECTLY.format(user="$1"))

WRITE_TITLE = """
    UPDATE chats
       SET title = $2
     WHERE id = $1
       AND title = coalesce($3, title)
       AND history_version = coalesce($4, history_version)
    RETURNING id
"""

WRITE_SUMMARY = """
    UPDATE chats
       SET summary = $3, summary_generated_at = clock_timestamp()
     WHERE id = $1
       AND history_version = $2
    RETURNING id
"""

WRITE_TURN_SUMMARY = """
    UPDATE chats
       SET last_turn_summary = $3
     WHERE id = $1
       AND history_version = $2
    RETURNING id
"""

# What PostgreSQL cannot store: models write such things now and then, and a summary is not worth failing for.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class ChatSummary(msgspec.Struct, frozen=True):
    """A chat as a list shows it. `pin_order` is the viewer's.

    `status` is plain text and `last_error` the stored JSON: a row that a newer version wrote is still listed.
    """

    id: ChatId
    owner_id: UUID
    parent_chat_id: ChatId | None
    root_chat_id: ChatId | None
    status: str
    archived: bool
    archived_at: datetime | None
    title: str
    labels: dict[str, str]
    workspace_id: UUID | None
    last_model_config_id: UUID
    last_reasoning_effort: str | None
    mode: str | None
    plan_mode: bool
    mcp_server_ids: tuple[UUID, ...]
    client_type: str
    summary: str | None
    summary_generated_at: datetime | None
    last_turn_summary: str | None
    last_error: str | None
    queue_len: int
    requires_action_deadline_at: datetime | None
    snapshot_version: int
    history_version: int
    meta_version: int
    created_at: datetime
    updated_at: datetime
    pin_order: int | None

    @property
    def state(self) -> State:
        return classify(self.status, archived=self.archived, queue_len=self.queue_len)


class ChatPage(msgspec.Struct, frozen=True):
    """A page of a list. `next_cursor` is None on the last one."""

    chats: tuple[ChatSummary, ...]
    next_cursor: str | None


async def find_chat(conn: Connection, chat_id: ChatId, *, viewer_id: UUID | None = None) -> ChatSummary | None:
    record = await conn.fetchrow(FIND, chat_id, viewer_id)
    return None if record is None else from_record(record)


async def list_chats(
    conn: Connection,
    owner_id: UUID,
    *,
    viewer_id: UUID | None = None,
    archived: bool = False,
    labels: Mapping[str, str] | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> ChatPage:
    """The owner's root chats: the viewer's pins in their order, then the rest by last activity, newest first.

    All pins are on the first page and on no other; that page is longer than `limit` only when the pins alone are.
    The viewer is the owner unless another is named. The cursor holds the sort key of the last row, not the row: it
    stays good when that chat moves or goes.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput("limit", f"The limit must be between 1 and {MAX_LIMIT}.")
    position = _NEWEST if cursor is None else _Position.from_cursor(cursor)
    arguments = (viewer_id or owner_id, owner_id, archived, position.updated_at, position.chat_id, limit + 1)
    if labels:
        statement = FIRST_PAGE_LABELLED if cursor is None else NEXT_PAGE_LABELLED
        records = await conn.fetch(statement, *arguments, stored_labels.encode(label_rules.validate(labels)))
    else:
        records = await conn.fetch(FIRST_PAGE if cursor is None else NEXT_PAGE, *arguments)
    return _page(tuple(map(from_record, records)), limit=limit, start=position)


async def list_shared(
    conn: Connection,
    viewer_id: UUID,
    *,
    archived: bool = False,
    labels: Mapping[str, str] | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> ChatPage:
    """The root chats that others share with this viewer directly, ordered and paged as `list_chats`."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput("limit", f"The limit must be between 1 and {MAX_LIMIT}.")
    position = _NEWEST if cursor is None else _Position.from_cursor(cursor)
    wanted = stored_labels.encode(label_rules.validate(labels)) if labels else None
    records = await conn.fetch(
        f"{SHARED} LIMIT $7", viewer_id, archived, cursor is None, *position.key, wanted, MAX_LIMIT + limit + 1
    )
    return _page(tuple(map(from_record, records)), limit=limit, start=position)


async def write_title(
    conn: Connection,
    chat_id: ChatId,
    *,
    title: str,
    seen_title: str | None = None,
    seen_history_version: int | None = None,
) -> bool:
    """Set the title. With `seen_…`, only while the chat still has that title or history; False means superseded.

    A generated title passes what it was generated from, so that it never overwrites what a person wrote meanwhile.
    """
    written = await conn.fetchval(WRITE_TITLE, chat_id, storable(title), seen_title, seen_history_version)
    return written is not None


async def write_summary(conn: Connection, chat_id: ChatId, *, summary: str, seen_history_version: int) -> bool:
    """Set the chat's summary if its history is still the one summarized; False means superseded."""
    return await conn.fetchval(WRITE_SUMMARY, chat_id, seen_history_version, storable(summary)) is not None


async def write_turn_summary(
    conn: Connection, chat_id: ChatId, *, summary: str | None, seen_history_version: int
) -> bool:
    """Set or, with a blank text, clear the label of the last turn; False means superseded."""
    text = storable(summary or "").strip() or None
    return await conn.fetchval(WRITE_TURN_SUMMARY, chat_id, seen_history_version, text) is not None


def _page(rows: tuple[ChatSummary, ...], *, limit: int, start: _Position) -> ChatPage:
    """Cut the rows to a page: every pin, and as many others as the limit leaves room for."""
    pins = sum(chat.pin_order is not None for chat in rows)
    size = max(limit, pins)
    if len(rows) <= size:
        return ChatPage(rows, None)
    last = rows[size - 1]
    end = _Position(last.updated_at, last.id) if size > pins else start
    return ChatPage(rows[:size], end.to_cursor())


class _Position(msgspec.Struct, frozen=True):
    """A place between two rows of the unpinned list, by their sort key."""

    updated_at: datetime
    chat_id: UUID

    @property
    def key(self) -> tuple[datetime, UUID]:
        return self.updated_at, self.chat_id

    def to_cursor(self) -> str:
        microseconds = (self.updated_at - _EPOCH) // timedelta(microseconds=1)
        packed = _CURSOR.pack(_CURSOR_VERSION, microseconds, self.chat_id.bytes)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_cursor(cls, cursor: str) -> _Position:
        try:
            packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            version, microseconds, chat_id = _CURSOR.unpack(packed)
            updated_at = _EPOCH + timedelta(microseconds=microseconds)
        except (ValueError, binascii.Error, struct.error, OverflowError):
            raise _bad_cursor() from None
        if version != _CURSOR_VERSION:
            raise _bad_cursor()
        return cls(updated_at, UUID(bytes=chat_id))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Version, microseconds, chat. The version changes with the sort key, so that a cursor never means something else.
_CURSOR = struct.Struct(">Bq16s")
_CURSOR_VERSION = 1
# Before every row: where the first page starts, and the second when pins filled the first.
_NEWEST = _Position(datetime(9999, 1, 1, tzinfo=UTC), UUID(int=2**128 - 1))


def _bad_cursor() -> InvalidInput:
    return InvalidInput("cursor", "This cursor is not one this list gave out. Start again without it.")


def from_record(record: asyncpg.Record) -> ChatSummary:
    """A record of `COLUMNS`, then `pin_order`."""
    values = list(record)
    values[_LABELS] = stored_labels.decode(values[_LABELS])
    values[_MCP_SERVER_IDS] = tuple(values[_MCP_SERVER_IDS])
    return ChatSummary(*values)


_LABELS, _MCP_SERVER_IDS = (ChatSummary.__struct_fields__.index(name) for name in ("labels", "mcp_server_ids"))


def storable(text: str) -> str:
    """The text as a column takes it: U+FFFD stands for what none can hold."""
    return _UNSTORABLE.sub("\ufffd", text)
