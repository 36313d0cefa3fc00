"""Read cursors: the last message of a chat that a user has read.

A cursor is written only on the request of the client, and changes no version of the chat. It moves forward only, except
with `force`, which marks a chat as unread. A chat is given as a range: `messages` explains why.
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import MAX_ID, ChatId, MessageId
from rookery.store.db.pool import Connection

# The cursor is never after the newest row, because later answers would then count as read. `least` ignores NULL, so
# without a message the cursor moves to the newest row.
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

# The newest visible answer of `{chat}`. The chat has unread answers if it is after the cursor; without a cursor, all
# answers are unread. The literals match the partial index messages_role, so this is one descent of the index.
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
    """Move the cursor forward to a message, or to the newest one. `force` also moves it back. Returns its position."""
    # Clients may send any number, including one that is not a bigint.
    target = None if message_id is None else min(max(message_id, 0), MAX_ID)
    moved: MessageId | None = await conn.fetchval(MOVE, chat_id, user_id, target, force)
    if moved is None:
        raise ChatNotFound(chat_id)
    return moved
