"""Statements that read messages, for clients and for the model.

Messages are ordered by `id`. Predicates are literals (`NOT deleted`, visibilities, roles), because only literals match
the partial indexes. With a bind parameter, a page of a long chat would be a scan of the whole chat.

Two forms of conditions keep the planner on the right index:

- A chat is given as a range (`chat_id >= $1 AND chat_id <= $1`), and rows are compared and ordered by (chat_id, id).
  With `chat_id = $1 ORDER BY id`, for a chat that has a large share of all rows, the planner scans the primary key
  backward and expects rows of the chat soon. For an old chat, it reads all rows that were written since. The row
  comparison limits the index scan; the range gives the planner its estimate.
- Visibilities are compared through `coalesce`, which has no statistics. From outdated statistics, the planner may
  conclude that almost no row is visible; then it reads and sorts a whole chat to return its last rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from rookery.domain.chat.messages import (
    MAX_ID,
    ChatId,
    Effort,
    Message,
    MessageId,
    Role,
    StepFigures,
    Visibility,
    is_id,
)
from rookery.domain.chat.prompt import PromptRow
from rookery.store.db.pool import Connection

WINDOW_MAX_BYTES = 8 * 1024 * 1024

# The fields of `Message`, in their order.
COLUMNS = (
    "m.id, m.chat_id, m.revision, m.role, m.visibility, m.compressed, m.deleted, m.content, m.content_version, "
    "m.created_by, m.model_config_id, m.reasoning_effort, m.client_id, m.created_at"
)
# The same without the content of deleted rows. After an edit of a long chat, the deleted contents are not loaded.
MARKED_COLUMNS = COLUMNS.replace("m.content,", "CASE WHEN m.deleted THEN '[]' ELSE m.content END AS content,")
# The fields of `StepFigures`, in their order.
_FIGURE_NAMES = StepFigures.__struct_fields__
FIGURES = ", ".join(f"m.{name}" for name in _FIGURE_NAMES)
_NO_FIGURES = StepFigures()
_WIDTH = len(Message.__struct_fields__)
_ROLE, _VISIBILITY, _EFFORT = (
    Message.__struct_fields__.index(name) for name in ("role", "visibility", "reasoning_effort")
)

# A lookup in a dict takes a tenth of the time of a call of the enum, and is done for every row.
_ROLES = {role.value: role for role in Role}
_VISIBILITIES = {visibility.value: visibility for visibility in Visibility}
_EFFORTS: dict[str | None, Effort | None] = {None: None} | {effort.value: effort for effort in Effort}

FIND_VISIBLE = f"""
    SELECT {COLUMNS}
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND m.id = $2
       AND NOT m.deleted
       AND coalesce(m.visibility, 'model') <> 'model'
"""

# Index messages_live, read backward.
NEWEST = f"""
    SELECT {COLUMNS}
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.id) > ($1, $2)
       AND (m.chat_id, m.id) < ($1, $3)
       AND NOT m.deleted
       AND coalesce(m.visibility, 'model') <> 'model'
     ORDER BY m.chat_id DESC, m.id DESC
     LIMIT $4
"""

# Index messages_live, read forward.
OLDEST = f"""
    SELECT {COLUMNS}
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.id) > ($1, $2)
       AND NOT m.deleted
       AND coalesce(m.visibility, 'model') <> 'model'
     ORDER BY m.chat_id, m.id
     LIMIT $3
"""

# Returns the newest rows that fit into a size. The newest row is always returned.
WINDOW = f"""
    SELECT {COLUMNS}
      FROM (SELECT w.id,
                   sum(octet_length(w.content::text)) OVER newer AS bytes,
                   row_number() OVER newer AS place
              FROM (SELECT id, content
                      FROM chat_messages
                     WHERE chat_id >= $1 AND chat_id <= $1
                       AND NOT deleted
                       AND coalesce(visibility, 'model') <> 'model'
                     ORDER BY chat_id DESC, id DESC
                     LIMIT $2) w
            WINDOW newer AS (ORDER BY w.id DESC)) fits
      JOIN chat_messages m ON m.id = fits.id
     WHERE fits.bytes <= $3 OR fits.place = 1
     ORDER BY m.id DESC
"""

OLDER = """
    SELECT m.id
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.id) < ($1, $2)
       AND NOT m.deleted
       AND coalesce(m.visibility, 'model') <> 'model'
     ORDER BY m.chat_id DESC, m.id DESC
     LIMIT 1
"""

# Index messages_revision.
DELTA = f"""
    SELECT {MARKED_COLUMNS}
      FROM chat_messages m
     WHERE m.chat_id >= $1 AND m.chat_id <= $1
       AND (m.chat_id, m.revision) > ($1, $2)
       AND coalesce(m.visibility, 'model') <> 'model'
     ORDER BY m.chat_id, m.id
     LIMIT $3
"""

# Three disjoint ranges, one index each (messages_role, messages_boundary, messages_live). With OR, a long compacted
# chat would be read from its first row.
PROMPT = f"""
    WITH boundary AS (
         SELECT coalesce(max(id), 0) AS id
           FROM chat_messages
          WHERE chat_id = $1
            AND compressed
            AND visibility = 'model'
            AND NOT deleted)
    SELECT {COLUMNS}, {FIGURES}
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND m.role = 'system'
       AND NOT m.compressed
       AND NOT m.deleted
       AND coalesce(m.visibility, 'user') <> 'user'
     UNION ALL
    SELECT {COLUMNS}, {FIGURES}
      FROM chat_messages m
     WHERE m.id = (SELECT id FROM boundary)
     UNION ALL
    SELECT {COLUMNS}, {FIGURES}
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND m.id > (SELECT id FROM boundary)
       AND m.role <> 'system'
       AND NOT m.compressed
       AND NOT m.deleted
       AND coalesce(m.visibility, 'user') <> 'user'
     ORDER BY id
"""


class MessagePage(msgspec.Struct, frozen=True):
    """Messages in ascending order. `has_more`: there are newer ones."""

    messages: tuple[Message, ...]
    has_more: bool


async def find_visible(conn: Connection, chat_id: ChatId, *, message_id: MessageId) -> Message | None:
    """Return a message of this chat that is visible to users and not deleted."""
    if not is_id(message_id):
        return None
    record = await conn.fetchrow(FIND_VISIBLE, chat_id, message_id)
    return None if record is None else _message(record)


async def list_oldest(conn: Connection, chat_id: ChatId, *, limit: int, after_id: int = 0) -> MessagePage:
    """Return the visible messages after an id, oldest first."""
    records = await conn.fetch(OLDEST, chat_id, _in_range(after_id), limit + 1)
    return MessagePage(tuple(map(_message, records[:limit])), len(records) > limit)


async def list_prompt(conn: Connection, chat_id: ChatId) -> tuple[PromptRow, ...]:
    """Return the rows of the prompt: system rows, the newest summary, and all rows after it.

    The summary is the newest compressed row that is visible to the model only. An edit before it deletes it, and the
    older rows are in the prompt again.
    """
    return tuple(map(prompt_row, await conn.fetch(PROMPT, chat_id)))


def prompt_row(record: asyncpg.Record | tuple[Any, ...]) -> PromptRow:
    """Return the row of a record with `COLUMNS` and then `FIGURES`."""
    return PromptRow(_message(record[:_WIDTH]), _figures(record[_WIDTH:]))


def _in_range(number: int) -> int:
    """Clamp a message id from a client to the range of the column."""
    return min(max(number, 0), MAX_ID)


def _figures(values: Sequence[Any]) -> StepFigures:
    # Most rows have no figures.
    if values.count(None) == len(values):
        return _NO_FIGURES
    return StepFigures(**dict(zip(_FIGURE_NAMES, values, strict=True)))


def _message(record: Iterable[Any]) -> Message:
    values = list(record)
    values[_ROLE] = _ROLES[values[_ROLE]]
    values[_VISIBILITY] = _VISIBILITIES[values[_VISIBILITY]]
    values[_EFFORT] = _EFFORTS[values[_EFFORT]]
    return Message(*values)
