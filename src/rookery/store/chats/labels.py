"""Labels of a chat: metadata, so a write moves only `meta_version` (by trigger).

Filtering by labels is containment and is done by the list (`chat_list`).
"""

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

# Held to the end of the transaction, so that concurrent patches of one chat build on each other.
READ_LOCKED = """
    SELECT labels
      FROM chats
     WHERE id = $1
       FOR NO KEY UPDATE
"""


async def set_labels(conn: Connection, chat_id: ChatId, *, labels: Mapping[str, object]) -> dict[str, str]:
    """Replace all labels. If one of them is invalid, all are refused."""
    checked = rules.validate(labels)
    await _write(conn, chat_id, labels=checked)
    return checked


async def patch_labels(conn: Connection, chat_id: ChatId, *, changes: Mapping[str, object]) -> dict[str, str]:
    """Set the labels that have a value, remove those that are None, keep the rest. Returns all labels."""
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
