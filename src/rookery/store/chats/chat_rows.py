"""Rows of chats, and writes of their titles, turn labels and summaries.

These texts are metadata: a write changes `meta_version` (by a trigger), but not `snapshot_version` or `updated_at`. A
new title does not move a chat in the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State, classify
from rookery.store.db.pool import Connection

# The mode of a root applies to its family.
PERMISSION_MODE = "coalesce((SELECT r.permission_mode FROM chats r WHERE r.id = c.root_chat_id), c.permission_mode)"
# The fields of `ChatSummary`, in their order, without `pin_order`.
COLUMNS = (
    "c.id, c.owner_id, c.parent_chat_id, c.root_chat_id, c.status, c.archived, c.archived_at, c.title, c.labels, "
    "c.workspace_id, c.last_model_config_id, c.last_reasoning_effort, c.mode, c.plan_mode, "
    f"{PERMISSION_MODE}, "
    "c.mcp_server_ids, c.client_type, c.summary, c.summary_generated_at, c.last_turn_summary, c.last_error, "
    "c.queue_len, "
    "c.requires_action_deadline_at, c.snapshot_version, c.history_version, c.meta_version, c.created_at, c.updated_at"
)

# The number of times that a model is asked for a title: when the chat is created, and after its next turns.
MAX_TITLE_TRIES = 3

FIND = f"""
    SELECT {COLUMNS}, p.pin_order
      FROM chats c
      LEFT JOIN chat_pins p ON p.chat_id = c.id AND p.user_id = $2
     WHERE c.id = $1
"""

# A written title is final: title_tries is set so that no model is asked again.
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

# One try at a time in the deployment. A try whose process has died ends after two minutes.
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
IS_VISIBLE = """
    SELECT EXISTS (SELECT
                     FROM chats c
                     JOIN users u ON u.id = c.owner_id
                    WHERE c.id = $1
                      AND c.history_version = $2
                      AND NOT c.archived
                      AND u.status = 'active')
"""

# Characters that PostgreSQL cannot store. Models write them occasionally.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class ChatSummary(msgspec.Struct, frozen=True):
    """The row of a chat, with the viewer's `pin_order`.

    `status` is a plain string and `last_error` is the stored JSON, so that rows of a newer version can be listed.
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
    permission_mode: str
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
    """Set the title. Return False if the chat no longer has `seen_title` or `seen_history_version`.

    A generated title passes both, so that it does not overwrite a title that a user has written meanwhile.
    """
    written = await conn.fetchval(WRITE_TITLE, chat_id, storable(title), seen_title, seen_history_version)
    return written is not None


async def begin_title_try(conn: Connection, chat_id: ChatId, *, seen_title: str) -> bool:
    """Count a try to get a title from a model. Return False if no try is allowed now."""
    return bool(await conn.fetchval(BEGIN_TITLE_TRY, chat_id, storable(seen_title)))


async def end_title_try(conn: Connection, chat_id: ChatId) -> None:
    await conn.execute(END_TITLE_TRY, chat_id)


async def end_title_tries(conn: Connection, chat_id: ChatId) -> None:
    """Record that no model is to be asked for a title any more."""
    await conn.execute(END_TITLE_TRIES, chat_id)


async def is_visible(conn: Connection, chat_id: ChatId, *, seen_history_version: int) -> bool:
    """Return whether a text about this history would be shown.

    It is shown if the history is the current one, the chat is not archived, and its owner is not disabled.
    """
    return bool(await conn.fetchval(IS_VISIBLE, chat_id, seen_history_version))


async def write_summary(conn: Connection, chat_id: ChatId, *, summary: str, seen_history_version: int) -> bool:
    """Set the summary. Return False if the history has changed since `seen_history_version`."""
    return await conn.fetchval(WRITE_SUMMARY, chat_id, seen_history_version, storable(summary)) is not None


async def write_turn_summary(
    conn: Connection, chat_id: ChatId, *, summary: str | None, seen_history_version: int
) -> bool:
    """Set the label of the last turn; a blank text clears it. Return False if the history has changed meanwhile."""
    text = storable(summary or "").strip() or None
    return await conn.fetchval(WRITE_TURN_SUMMARY, chat_id, seen_history_version, text) is not None


def encode_labels(labels: Mapping[str, str]) -> str:
    return msgspec.json.encode(labels).decode()


def decode_labels(stored: str) -> dict[str, str]:
    return _labels_decoder.decode(stored)


def from_record(record: asyncpg.Record) -> ChatSummary:
    """Return the summary of a record with `COLUMNS` and then `pin_order`."""
    return from_values(record)


def from_values(found: Iterable[Any]) -> ChatSummary:
    values = list(found)
    values[_LABELS] = decode_labels(values[_LABELS])
    values[_MCP_SERVER_IDS] = tuple(values[_MCP_SERVER_IDS])
    return ChatSummary(*values)


_labels_decoder = msgspec.json.Decoder(dict[str, str])
_LABELS, _MCP_SERVER_IDS = (ChatSummary.__struct_fields__.index(name) for name in ("labels", "mcp_server_ids"))


def storable(text: str) -> str:
    """Return the text with U+FFFD for characters that PostgreSQL cannot store."""
    return _UNSTORABLE.sub("\ufffd", text)
