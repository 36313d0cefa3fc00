"""A chat and what is new in its history, by one statement: a round trip instead of the four of a transaction.

One statement is a snapshot of its own, so the chat and the rows belong together. It is for those who follow a chat and
lack a few rows at most, which is what a step and a viewer mostly do; who lacks more goes the long way, by a snapshot.
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
    """The chat's columns, and rows for `messages.prompt_row` in the order of their ids; deleted ones are markers.

    `is_all` says whether these are all that is new.
    """

    chat: tuple[Any, ...]
    rows: Sequence[tuple[Any, ...]]
    is_all: bool


def statement(chat_columns: str, *, only: str = "true") -> str:
    """The statement that reads these columns of a chat, and of its rows those that are new and fit `only`.

    In the order of the index messages_revision and with a limit: so the planner has no reason to take another.
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
    """What is new since history version `seen`; None when there is no such chat."""
    records = await machine.fetch(statement, chat_id, seen)
    if not records:
        return None
    chat, rows = records[0][_ROW_WIDTH:], [record[:_ROW_WIDTH] for record in records if record[0] is not None]
    return Glance(chat, rows, len(rows) <= MAX_ROWS)
