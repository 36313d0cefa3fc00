"""Labels of chats. They are metadata: a write changes only `meta_version` (by a trigger)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rookery.domain.chat import labels as rules
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection

_decoder = msgspec.json.Decoder(dict[str, str])

WRITE = """
    UPDATE chats
       SET labels = $2
     WHERE id = $1
    RETURNING id
"""

# Locks the row until the end of the transaction, so that concurrent patches of one chat are all applied.
READ_LOCKED = """
    SELECT labels
      FROM chats
     WHERE id = $1
       FOR NO KEY UPDATE
"""


async def set_labels(conn: Connection, chat_id: ChatId, *, labels: Mapping[str, object]) -> dict[str, str]:
    """Replace all labels. Raises `InvalidInput` if one of them is invalid."""
    checked = rules.validate(labels)
    await _write(conn, chat_id, labels=checked)
    return checked


async def patch_labels(conn: Connection, chat_id: ChatId, *, changes: Mapping[str, object]) -> dict[str, str]:
    """Set the labels that have a value, and remove those that are None. Returns all labels of the chat."""
    async with conn.transaction():
        stored = await conn.fetchval(READ_LOCKED, chat_id)
        if stored is None:
            raise ChatNotFound(chat_id)
        current = decode(stored)
        patched = rules.patch(current, changes)
        if patched != current:
            await _write(conn, chat_id, labels=patched)
        return patched


def encode(labels: Mapping[str, str]) -> str:
    return msgspec.json.encode(labels).decode()


def decode(stored: str) -> dict[str, str]:
    return _decoder.decode(stored)


async def _write(conn: Connection, chat_id: ChatId, *, labels: Mapping[str, str]) -> None:
    if await conn.fetchval(WRITE, chat_id, encode(labels)) is None:
        raise ChatNotFound(chat_id)
