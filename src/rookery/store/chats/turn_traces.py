"""The traces of turns, so that a replica that runs or continues a turn can link its trace to the earlier ones."""

from __future__ import annotations

import msgspec

from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.db.pool import Connection

# All parts of the statement see the rows from before the statement, so `before` is the previous trace of the turn.
_REPLACE = """
      WITH before AS (
           SELECT t.traceparent
             FROM chat_turn_traces t
            WHERE t.chat_id = $1
              AND t.message_id = $2),
           written AS (
           INSERT INTO chat_turn_traces (chat_id, message_id, traceparent)
           VALUES ($1, $2, $3)
               ON CONFLICT (chat_id) DO UPDATE
              SET message_id = excluded.message_id, traceparent = excluded.traceparent)
    SELECT m.traceparent, (SELECT b.traceparent FROM before b)
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND m.id = $2
"""


class EarlierTraces(msgspec.Struct, frozen=True):
    """The `traceparent` of the request that sent the message of a turn, and of the turn itself if it has begun before.

    Each is None if it was not exported.
    """

    request: str | None = None
    turn: str | None = None


async def replace_turn_trace(
    conn: Connection, chat_id: ChatId, message_id: MessageId, *, traceparent: str
) -> EarlierTraces:
    """Store the trace of the turn that this message began, and return the earlier ones."""
    record = await conn.fetchrow(_REPLACE, chat_id, message_id, traceparent)
    return EarlierTraces() if record is None else EarlierTraces(*record)
