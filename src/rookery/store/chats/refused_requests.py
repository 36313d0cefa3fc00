"""Histories that a provider refused as too long, so that no replica sends the same request again.

Written in the transaction that learns from the refusal, which holds the chat's row. A new history voids it.
"""

from __future__ import annotations

from rookery.store.machine import Tx

RECORD = """
    UPDATE chats
       SET refused_tokens = CASE WHEN refused_history_version = history_version THEN least(refused_tokens, $2)
                                 ELSE $2 END,
           refused_history_version = history_version
     WHERE id = $1
"""


async def record_refused(tx: Tx, *, estimated_tokens: int) -> None:
    """Record that a request of about this size, made from the chat's history, was too long. The smallest one counts."""
    await tx.conn.execute(RECORD, tx.chat.id, max(estimated_tokens, 1))
