"""Chat deltas: a chat and its rows since a history version, read by one statement.

One statement is its own snapshot, so the chat and its rows are consistent. It needs one round trip instead of the four
of a transaction. Steps and viewers follow a chat and usually lack only a few rows. If there are more new rows, they
read a snapshot instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Message, StepFigures
from rookery.store.chats import messages
from rookery.store.machine.bundle_runner import Machine

MAX_ROWS = 20

_ROW_WIDTH = len(Message.__struct_fields__) + len(StepFigures.__struct_fields__)


class ChatDelta(msgspec.Struct, frozen=True):
    """The chat's columns, and its new rows in the order of their ids, for `messages.prompt_row`.

    Deleted rows have no content. `is_complete` is False if there are more new rows than `MAX_ROWS`.
    """

    chat: tuple[Any, ...]
    rows: Sequence[tuple[Any, ...]]
    is_complete: bool


def statement(chat_columns: str, *, only: str = "true") -> str:
    """Return the statement that reads these columns of a chat, and its new rows that match `only`.

    ORDER BY and LIMIT make the planner use the index messages_revision.
    """
    return f"""
    SELECT news.*, chat.*
      FROM (SELECT {chat_columns} FROM chats WHERE id = $1) chat
      LEFT JOIN LATERAL (
           SELECT {messages.MARKED_COLUMNS}, {messages.FIGURES}
             FROM chat_messages m
            WHERE m.chat_id >= $1 AND m.chat_id <= $1
              AND (m.chat_id, m.revision) > ($1, $2)
              AND {only}
            ORDER BY m.chat_id, m.revision, m.id
            LIMIT {MAX_ROWS + 1}) news ON true
     ORDER BY news.id
    """


async def read_delta(machine: Machine, statement: str, chat_id: UUID, *, seen: int) -> ChatDelta | None:
    """Return the changes since history version `seen`; None if there is no such chat."""
    records = await machine.fetch(statement, chat_id, seen)
    if not records:
        return None
    chat, rows = records[0][_ROW_WIDTH:], [record[:_ROW_WIDTH] for record in records if record[0] is not None]
    return ChatDelta(chat, rows, len(rows) <= MAX_ROWS)
