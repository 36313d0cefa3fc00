"""Chat rows that other reads build on, and generated texts about chats (titles, summaries).

`chat_views` has what users see of chats. The texts are metadata: writing them moves `meta_version` (by trigger) and
neither `snapshot_version` nor `updated_at`, so a new title never moves a chat in a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, classify
from rookery.store.chats import labels as stored_labels
from rookery.store.db.pool import Connection

# The fields of `ChatSummary`, in its order, but for `pin_order`.
COLUMNS = (
    "c.id, c.owner_id, c.parent_chat_id, c.root_chat_id, c.status, c.archived, c.archived_at, c.title, c.labels, "
    "c.workspace_id, c.last_model_config_id, c.last_reasoning_effort, c.mode, c.plan_mode, c.mcp_server_ids, "
    "c.client_type, c.summary, c.summary_generated_at, c.last_turn_summary, c.last_error, c.queue_len, "
    "c.requires_action_deadline_at, c.snapshot_version, c.history_version, c.meta_version, c.created_at, c.updated_at"
)

# How often a model is asked to name a chat: when it is created, and after its next turns.
MAX_TITLE_TRIES = 3

FIND = f"""
    SELECT {COLUMNS}, p.pin_order
      FROM chats c
      LEFT JOIN chat_pins p ON p.chat_id = c.id AND p.user_id = $2
     WHERE c.id = $1
"""

# The chat has its title, from a user or a model: no model is asked any more.
WRITE_TITLE = f"""
    UPDATE chats
       SET title = $2, title_tries = {MAX_TITLE_TRIES}
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

# One try at a time in the whole deployment; a try whose process died ends after a while.
BEGIN_TITLE_TRY = f"""
    UPDATE chats
       SET title_tries = title_tries + 1, title_asked_at = clock_timestamp()
     WHERE id = $1
       AND title = $2
       AND title_tries < {MAX_TITLE_TRIES}
       AND NOT archived
       AND (title_asked_at IS NULL OR title_asked_at < clock_timestamp() - interval '2 minutes')
    RETURNING true
"""
END_TITLE_TRY = "UPDATE chats SET title_asked_at = NULL WHERE id = $1 AND title_asked_at IS NOT NULL"
END_TITLE_TRIES = f"""
    UPDATE chats
       SET title_tries = {MAX_TITLE_TRIES}
     WHERE id = $1
       AND title_tries < {MAX_TITLE_TRIES}
"""
IS_SEEN = """
    SELECT EXISTS (SELECT
                     FROM chats c
                     JOIN users u ON u.id = c.owner_id
                    WHERE c.id = $1
                      AND c.history_version = $2
                      AND NOT c.archived
                      AND u.status = 'active')
"""

# Characters that PostgreSQL cannot store: models write them occasionally, and a summary should not fail for it.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class ChatSummary(msgspec.Struct, frozen=True):
    """The row of a chat. `pin_order` is the viewer's.

    `status` is plain text and `last_error` the stored JSON: a row of a newer version can still be listed.
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


async def find_chat(conn: Connection, chat_id: ChatId, *, viewer_id: UUID | None = None) -> ChatSummary | None:
    record = await conn.fetchrow(FIND, chat_id, viewer_id)
    return None if record is None else from_record(record)


async def write_title(
    conn: Connection,
    chat_id: ChatId,
    *,
    title: str,
    seen_title: str | None = None,
    seen_history_version: int | None = None,
) -> bool:
    """Set the title. With `seen_…`, only while the chat still has that title or history; False means superseded.

    A generated title passes what it was generated from, so that it never overwrites a title that a user wrote
    meanwhile.
    """
    written = await conn.fetchval(WRITE_TITLE, chat_id, storable(title), seen_title, seen_history_version)
    return written is not None


async def begin_title_try(conn: Connection, chat_id: ChatId, *, seen_title: str) -> bool:
    """Return whether a model may be asked now to name the chat; if so, this counts as a try."""
    return bool(await conn.fetchval(BEGIN_TITLE_TRY, chat_id, storable(seen_title)))


async def end_title_try(conn: Connection, chat_id: ChatId) -> None:
    await conn.execute(END_TITLE_TRY, chat_id)


async def end_title_tries(conn: Connection, chat_id: ChatId) -> None:
    """Record that no model has to be asked any more: the chat has a name, or nothing that could name it."""
    await conn.execute(END_TITLE_TRIES, chat_id)


async def is_seen(conn: Connection, chat_id: ChatId, *, seen_history_version: int) -> bool:
    """Return whether texts about this history can be seen: it is the chat's latest, the chat is not archived, and its
    owner is not disabled.
    """
    return bool(await conn.fetchval(IS_SEEN, chat_id, seen_history_version))


async def write_summary(conn: Connection, chat_id: ChatId, *, summary: str, seen_history_version: int) -> bool:
    """Set the chat's summary if its history is still the one summarized; False means superseded."""
    return await conn.fetchval(WRITE_SUMMARY, chat_id, seen_history_version, storable(summary)) is not None


async def write_turn_summary(
    conn: Connection, chat_id: ChatId, *, summary: str | None, seen_history_version: int
) -> bool:
    """Set or, with a blank text, clear the label of the last turn; False means superseded."""
    text = storable(summary or "").strip() or None
    return await conn.fetchval(WRITE_TURN_SUMMARY, chat_id, seen_history_version, text) is not None


def from_record(record: asyncpg.Record) -> ChatSummary:
    """Return the summary of a record of `COLUMNS`, then `pin_order`."""
    return from_values(record)


def from_values(found: Iterable[Any]) -> ChatSummary:
    values = list(found)
    values[_LABELS] = stored_labels.decode(values[_LABELS])
    values[_MCP_SERVER_IDS] = tuple(values[_MCP_SERVER_IDS])
    return ChatSummary(*values)


_LABELS, _MCP_SERVER_IDS = (ChatSummary.__struct_fields__.index(name) for name in ("labels", "mcp_server_ids"))


def storable(text: str) -> str:
    """Return the text in a form that a column can hold, with U+FFFD for other characters."""
    return _UNSTORABLE.sub("\ufffd", text)
