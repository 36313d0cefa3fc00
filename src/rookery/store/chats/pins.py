"""Pinned chats: those that a user keeps at the top of the list, numbered 1..n per user.

An advisory transaction lock per user serializes changes, so the numbers are always 1..n. The lock order is the chat's
row, then the user. Pinning a chat takes a share lock on its row, so that no pin can be added while the chat is being
archived. A pin changes no version of the chat.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.chat.errors import ChatNotFound, ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection, atomic

# Chosen. All pins of a user are on the first page of the list.
MAX_PINS = 100

# The first key of the two-integer space of advisory locks: "pins".
_LOCK_SPACE = 0x70696E73

READ_CHAT_SHARED = """
    SELECT parent_chat_id IS NULL AS is_root, archived
      FROM chats
     WHERE id = $1
       FOR SHARE
"""

# Two users with the same hash wait for each other.
LOCK_USER = f"SELECT pg_advisory_xact_lock({_LOCK_SPACE}, hashtext($1::uuid::text))"

# Locks in the order of the keys, so that two callers cannot deadlock.
LOCK_USERS_OF_CHAT = f"""
    SELECT pg_advisory_xact_lock({_LOCK_SPACE}, u.key)
      FROM (SELECT DISTINCT hashtext(user_id::text) AS key
              FROM chat_pins
             WHERE chat_id = $1
             ORDER BY key) u
"""

LIST = """
    SELECT chat_id, pin_order
      FROM chat_pins
     WHERE user_id = $1
     ORDER BY pin_order
"""

# The numbers are unique per user. The constraint is deferred to the commit, so numbers may repeat in between.
WRITE_ORDER = """
    INSERT INTO chat_pins (chat_id, user_id, pin_order)
    SELECT o.chat_id, $1, o.pin_order
      FROM unnest($2::uuid[]) WITH ORDINALITY AS o (chat_id, pin_order)
        ON CONFLICT (chat_id, user_id) DO UPDATE
       SET pin_order = excluded.pin_order
     WHERE chat_pins.pin_order <> excluded.pin_order
"""

DELETE = """
    DELETE FROM chat_pins
     WHERE user_id = $1
       AND chat_id = $2
"""

DELETE_ALL_OF_CHAT = """
    DELETE FROM chat_pins
     WHERE chat_id = $1
    RETURNING user_id
"""

# Shares count even while sharing is disabled, so that a shared chat still has its pin when sharing is enabled again.
DELETE_OF_FORMER_READERS = """
    DELETE FROM chat_pins p
     USING chats c
     WHERE c.id = $1
       AND p.chat_id = c.id
       AND p.user_id <> c.owner_id
       AND NOT EXISTS (
           SELECT FROM chat_shares s WHERE s.chat_id = c.id AND (s.user_id = p.user_id OR s.user_id IS NULL))
    RETURNING p.user_id
"""

CLOSE_GAPS = """
    UPDATE chat_pins p
       SET pin_order = o.pin_order
      FROM (SELECT user_id, chat_id, row_number() OVER (PARTITION BY user_id ORDER BY pin_order) AS pin_order
              FROM chat_pins
             WHERE user_id = ANY($1::uuid[])) o
     WHERE p.user_id = o.user_id
       AND p.chat_id = o.chat_id
       AND p.pin_order <> o.pin_order
"""


class Pin(msgspec.Struct, frozen=True):
    """A pinned chat and its position, counted from 1."""

    chat_id: ChatId
    pin_order: int


async def list_pins(conn: Connection, user_id: UUID) -> list[Pin]:
    return [Pin(*record) for record in await conn.fetch(LIST, user_id)]


async def pin(conn: Connection, chat_id: ChatId, *, user_id: UUID, position: int | None = None) -> Pin:
    """Pin a chat, or move a pinned one.

    A new pin is always added at the end; the requested position is ignored. A pinned chat moves to the position,
    clamped to 1..n. Without a position, it stays where it is.
    """
    async with atomic(conn):
        await _require_pinnable(conn, chat_id)
        await conn.execute(LOCK_USER, user_id)
        order = [pinned.chat_id for pinned in await list_pins(conn, user_id)]
        if chat_id not in order and len(order) >= MAX_PINS:
            raise InvalidInput("pin_order", f"You can pin at most {MAX_PINS} chats. Unpin one first.")
        target = _target_index(order, chat_id, position=position)
        if chat_id in order:
            order.remove(chat_id)
        order.insert(target, chat_id)
        await conn.execute(WRITE_ORDER, user_id, order)
        return Pin(chat_id, target + 1)


async def unpin(conn: Connection, chat_id: ChatId, *, user_id: UUID) -> bool:
    """Remove a pin and renumber the others. Returns False if there was none."""
    async with atomic(conn):
        await conn.execute(LOCK_USER, user_id)
        removed = await conn.execute(DELETE, user_id, chat_id) == "DELETE 1"
        if removed:
            await conn.execute(CLOSE_GAPS, [user_id])
        return removed


async def drop_pins(conn: Connection, chat_id: ChatId) -> None:
    """Remove the pins of all users from a chat that is archived or deleted.

    The caller's transaction holds the lock of the chat's row, so the chat cannot be pinned meanwhile.
    """
    await _drop(conn, chat_id, DELETE_ALL_OF_CHAT)


async def drop_pins_of_former_readers(conn: Connection, chat_id: ChatId) -> None:
    """Remove the pins of users who may no longer read the chat. The caller has begun a transaction."""
    await _drop(conn, chat_id, DELETE_OF_FORMER_READERS)


async def _drop(conn: Connection, chat_id: ChatId, delete: str) -> None:
    await conn.execute(LOCK_USERS_OF_CHAT, chat_id)
    if users := await conn.fetch(delete, chat_id):
        await conn.execute(CLOSE_GAPS, [record["user_id"] for record in users])


async def _require_pinnable(conn: Connection, chat_id: ChatId) -> None:
    chat = await conn.fetchrow(READ_CHAT_SHARED, chat_id)
    if chat is None:
        raise ChatNotFound(chat_id)
    if not chat["is_root"]:
        raise ChatNotRoot(chat_id)
    if chat["archived"]:
        raise InvalidInput("pin_order", "This chat is archived. Unarchive it to pin it.")


def _target_index(order: list[ChatId], chat_id: ChatId, *, position: int | None) -> int:
    if chat_id not in order:
        return len(order)
    if position is None:
        return order.index(chat_id)
    return min(max(position, 1), len(order)) - 1
