"""Rows of the queue: insert, list and delete. Their order is `position`, then `id`."""

from __future__ import annotations

from collections.abc import Iterable

import asyncpg
import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.errors import QueuedMessageNotFound, QueueFull
from rookery.domain.chat.messages import (
    CONTENT_VERSION,
    Effort,
    NewQueuedMessage,
    QueuedMessage,
    QueuedMessageId,
    is_id,
)
from rookery.store.machine import message_rows, open_calls
from rookery.store.machine.bundle import Tx
from rookery.telemetry.tracing import spans

MAX_QUEUE = 20

QUEUE_COLUMNS = """
    id, chat_id, position, content, content_version, created_by, model_config_id, reasoning_effort, steer, client_id,
    created_at, traceparent
"""

_LIST_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = $1 ORDER BY position, id"

_INSERT = """
    INSERT INTO chat_queued_messages
           (chat_id, position, content, content_version, created_by, model_config_id, reasoning_effort, steer,
            client_id, traceparent)
    SELECT $1, {position}, $2, $3, $4, $5, $6, $7, $8, $9
      FROM chat_queued_messages q
     WHERE q.chat_id = $1
    RETURNING {columns}
"""
_APPEND = _INSERT.format(position="coalesce(max(q.position), 0) + 1", columns=QUEUE_COLUMNS)
# A position below the lowest one. It may be negative.
_PREPEND = _INSERT.format(position="coalesce(min(q.position), 2) - 1", columns=QUEUE_COLUMNS)

_POP_HEAD = f"""
    DELETE FROM chat_queued_messages
     WHERE id = (SELECT q.id FROM chat_queued_messages q WHERE q.chat_id = $1 ORDER BY q.position, q.id LIMIT 1)
    RETURNING {QUEUE_COLUMNS}
"""

_DELETE_QUEUED = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 AND id = $2 RETURNING {QUEUE_COLUMNS}"
_DELETE_QUEUE = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 RETURNING {QUEUE_COLUMNS}"
_DELETE_STEERING = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 AND steer RETURNING {QUEUE_COLUMNS}"
_HAS_STEERING = "SELECT EXISTS (SELECT FROM chat_queued_messages WHERE chat_id = $1 AND steer)"


def queued_of(record: asyncpg.Record) -> QueuedMessage:
    queued = QueuedMessage(*record)
    if queued.reasoning_effort is None:
        return queued
    return msgspec.structs.replace(queued, reasoning_effort=Effort(queued.reasoning_effort))


async def list_queue(tx: Tx) -> list[QueuedMessage]:
    return [queued_of(record) for record in await tx.conn.fetch(_LIST_QUEUE, tx.chat.id)]


def require_room(tx: Tx) -> None:
    if tx.chat.queue_len >= MAX_QUEUE:
        raise QueueFull(MAX_QUEUE)


async def append(tx: Tx, message: NewQueuedMessage, *, steer: bool = False) -> QueuedMessage:
    """Append a message to the queue. The caller has called `require_room`."""
    return await _insert(tx, _APPEND, message, steer=steer)


async def prepend(tx: Tx, message: NewQueuedMessage) -> QueuedMessage:
    """Insert a message at the head of the queue. The caller has called `require_room`."""
    return await _insert(tx, _PREPEND, message, steer=False)


async def _insert(tx: Tx, statement: str, message: NewQueuedMessage, *, steer: bool) -> QueuedMessage:
    if named := parts.file_ids(message.content):
        await message_rows.link_files(tx, named)
    record = await tx.conn.fetchrow(
        statement,
        tx.chat.id,
        parts.encode(message.content),
        CONTENT_VERSION,
        message.created_by,
        message.model_config_id,
        message.reasoning_effort,
        steer,
        message.client_id,
        spans.exported_traceparent(),
    )
    assert record is not None
    return queued_of(record)


async def pop_head(tx: Tx) -> QueuedMessage:
    record = await tx.conn.fetchrow(_POP_HEAD, tx.chat.id)
    assert record is not None, "queue_len is above 0"
    return queued_of(record)


async def pop_steering(tx: Tx) -> list[QueuedMessage]:
    """Remove and return the steering messages, in the order of the queue. Return none while a call is open."""
    if not await tx.conn.fetchval(_HAS_STEERING, tx.chat.id) or await open_calls.turn_calls(tx):
        return []
    return in_queue_order(queued_of(record) for record in await tx.conn.fetch(_DELETE_STEERING, tx.chat.id))


def require_id(queued_id: QueuedMessageId) -> None:
    """Raise `QueuedMessageNotFound` if the id is not a bigint, because the database driver would refuse such an id."""
    if not is_id(queued_id):
        raise QueuedMessageNotFound(queued_id)


async def delete_queued(tx: Tx, queued_id: QueuedMessageId) -> QueuedMessage:
    require_id(queued_id)
    record = await tx.conn.fetchrow(_DELETE_QUEUED, tx.chat.id, queued_id)
    if record is None:
        raise QueuedMessageNotFound(queued_id)
    return queued_of(record)


async def delete_queue(tx: Tx) -> list[QueuedMessage]:
    return in_queue_order(queued_of(record) for record in await tx.conn.fetch(_DELETE_QUEUE, tx.chat.id))


def in_queue_order(rows: Iterable[QueuedMessage]) -> list[QueuedMessage]:
    return sorted(rows, key=lambda row: (row.position, row.id))
