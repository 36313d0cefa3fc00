"""Read cursors: up to which message a user has read a chat. No version of the chat moves.

A cursor is written only on the user's request, never by viewing. It only grows, unless it is forced (marking a chat
unread). A chat is named as a range of one, for the reason given in `messages`.
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import MAX_ID, ChatId, MessageId
from rookery.store.db.pool import Connection

# Never beyond the newest row: a cursor ahead of the chat would hide future answers. `least` skips nulls: without a
# message the cursor goes to the newest.
MOVE = """
    INSERT INTO chat_read_cursors AS cursor (chat_id, user_id, last_read_message_id)
    SELECT c.id, $2, least($3::bigint, coalesce(newest.id, 0))
      FROM chats c
      LEFT JOIN LATERAL (
           SELECT m.id
             FROM chat_messages m
            WHERE m.chat_id >= c.id AND m.chat_id <= c.id
              AND NOT m.deleted
            ORDER BY m.chat_id DESC, m.id DESC
            LIMIT 1) newest ON true
     WHERE c.id = $1
        ON CONFLICT (chat_id, user_id) DO UPDATE
       SET last_read_message_id = CASE WHEN $4 THEN excluded.last_read_message_id
                                       ELSE greatest(cursor.last_read_message_id, excluded.last_read_message_id) END
    RETURNING last_read_message_id
"""

# A chat has unread answers if its newest visible answer came after the cursor; without a cursor every answer is unread.
# `{chat}` is the chat. The literals match the partial index messages_role: one descent, however long the chat is and
# however far back the cursor.
NEWEST_ANSWER = """
             FROM chat_messages m
            WHERE (m.chat_id, m.role) >= ({chat}, 'assistant')
              AND (m.chat_id, m.role) <= ({chat}, 'assistant')
              AND NOT m.deleted
              AND coalesce(m.visibility, 'model') <> 'model'
            ORDER BY m.chat_id, m.role, m.id DESC
            LIMIT 1
"""


async def mark_read(
    conn: Connection, chat_id: ChatId, *, user_id: UUID, message_id: MessageId | None = None, force: bool = False
) -> MessageId:
    """Move the cursor forward to a message, or to the newest; `force` also moves it back. Returns its position."""
    # Clients may send any number: one that is not a bigint names no message, and is clamped like any other.
    target = None if message_id is None else min(max(message_id, 0), MAX_ID)
    moved: MessageId | None = await conn.fetchval(MOVE, chat_id, user_id, target, force)
    if moved is None:
        raise ChatNotFound(chat_id)
    return moved
