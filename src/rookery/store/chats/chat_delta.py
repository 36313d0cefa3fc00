"""A chat and its new rows, by one statement: one round trip instead of the four of a transaction.

One statement is its own snapshot, so the chat and the rows match. It is for readers that follow a chat and lack a few
rows at most, as steps and viewers usually do; readers that lack more use a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Message, StepFigures
from rookery.store.chats import messages
from rookery.store.machine.lock import Machine

MAX_ROWS = 20

_ROW_WIDTH = len(Message.__struct_fields__) + len(StepFigures.__struct_fields__)


class Glance(msgspec.Struct, frozen=True):
    """The chat's columns, and rows for `messages.prompt_row` in the order of their ids; deleted rows are markers.

    `is_all`: these are all new rows.
    """

    chat: tuple[Any, ...]
    rows: Sequence[tuple[Any, ...]]
    is_all: bool


def statement(chat_columns: str, *, only: str = "true") -> str:
    """Return the statement that reads these columns of a chat, and its new rows that match `only`.

    Ordered by the index messages_revision and limited, so that the planner uses that index.
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


async def look(machine: Machine, statement: str, chat_id: UUID, *, seen: int) -> Glance | None:
    """Return what is new since history version `seen`; None if there is no such chat."""
    records = await machine.fetch(statement, chat_id, seen)
    if not records:
        return None
    chat, rows = records[0][_ROW_WIDTH:], [record[:_ROW_WIDTH] for record in records if record[0] is not None]
    return Glance(chat, rows, len(rows) <= MAX_ROWS)
