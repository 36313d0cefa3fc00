"""Message rows in stored form: their insertion, and links to the files that they name.

All functions run inside a bundle, under the chat's lock, before the UPDATE that ends the transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import FileCapExceeded, FileUnavailable
from rookery.domain.chat.messages import (
    CONTENT_VERSION,
    ChatId,
    Effort,
    Message,
    MessageId,
    NewMessage,
    NewQueuedMessage,
    QueuedMessage,
    Role,
    StepFigures,
    Visibility,
)
from rookery.domain.chat.open_tool_calls import CallRow, CloseReason, OpenCall
from rookery.store.machine.bundle import Tx
from rookery.telemetry.tracing import spans

INSERT_MESSAGE = """
    INSERT INTO chat_messages
           (chat_id, role, visibility, compressed, content, content_version, created_by,
            model_config_id, reasoning_effort, client_id, traceparent)
    SELECT $1::uuid, $2::text, $3::text, $4::boolean, $5::jsonb, $6::smallint, $7::uuid, $8::uuid, $9::text, $10::text,
           $11::text
     WHERE {condition}
    RETURNING id AS message_id, created_at AS inserted_at
"""

# Also has the fields of `StepFigures`, in their order.
_STEP_COLUMNS = """
           (chat_id, role, visibility, compressed, content, content_version, created_by,
            model_config_id, reasoning_effort, client_id,
            input_tokens, output_tokens, total_tokens, reasoning_tokens, cache_read_tokens, cache_write_tokens,
            context_tokens, context_limit, cost_micros, runtime_ms, finish_reason, prefix_fp, request_id, response_id)
"""
_INSERT_STEP = f"""
    INSERT INTO chat_messages
    {_STEP_COLUMNS}
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
            $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
    RETURNING id AS message_id, created_at AS inserted_at
"""
# The same for a statement that has one row of the chat in `source`.
INSERT_STEP_FROM = f"""
    INSERT INTO chat_messages
    {_STEP_COLUMNS}
    SELECT $1::uuid, $2::text, $3::text, $4::boolean, $5::jsonb, $6::smallint, $7::uuid,
           $8::uuid, $9::text, $10::text, $11::bigint, $12::bigint, $13::bigint, $14::bigint, $15::bigint, $16::bigint,
           $17::bigint, $18::bigint, $19::bigint, $20::bigint, $21::text, $22::bytea, $23::text, $24::text
      FROM {{source}}
    RETURNING id AS message_id, created_at AS inserted_at
"""
STEP_WIDTH = 24

_COST = StepFigures.__struct_fields__.index("cost_micros")

_INSERT_ALWAYS = INSERT_MESSAGE.format(condition="true")
MAX_FILES_PER_CHAT = 50
# Links the files that exist and returns the others as missing. The outer SELECT does not see the rows that the INSERT
# adds, so the total is a sum of both.
_LINK_FILES = """
    WITH wanted AS (SELECT DISTINCT unnest($2::uuid[]) AS file_id),
         linked AS (
           INSERT INTO chat_file_links (chat_id, file_id)
           SELECT $1, f.id FROM chat_files f JOIN wanted w ON w.file_id = f.id
               ON CONFLICT DO NOTHING
           RETURNING file_id)
    SELECT array(SELECT file_id FROM wanted EXCEPT SELECT id FROM chat_files) AS missing,
           (SELECT count(*) FROM chat_file_links WHERE chat_id = $1) + (SELECT count(*) FROM linked) AS total
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A message in stored form. `content` is encoded; `files` are the ids of files that the content names.

    `traceparent` is the trace of the request that sent the message, if traces are exported.
    """

    role: Role
    content: str
    visibility: Visibility = Visibility.BOTH
    compressed: bool = False
    content_version: int = CONTENT_VERSION
    created_by: UUID | None = None
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    client_id: str | None = None
    figures: StepFigures | None = None
    files: frozenset[UUID] = frozenset()
    traceparent: str | None = None


def row_of(message: NewMessage) -> Row:
    return Row(
        role=message.role,
        content=parts.encode(message.content),
        visibility=message.visibility,
        compressed=message.compressed,
        created_by=message.created_by,
        model_config_id=message.model_config_id,
        reasoning_effort=message.reasoning_effort,
        client_id=message.client_id,
        figures=message.figures,
        files=parts.file_ids(message.content),
        traceparent=spans.exported_traceparent() if message.role is Role.USER else None,
    )


def user_row(message: NewQueuedMessage) -> Row:
    """Return the row of a sent message that is inserted into the history, not into the queue."""
    return Row(
        role=Role.USER,
        content=parts.encode(message.content),
        created_by=message.created_by,
        model_config_id=message.model_config_id,
        reasoning_effort=message.reasoning_effort,
        client_id=message.client_id,
        files=parts.file_ids(message.content),
        traceparent=spans.exported_traceparent(),
    )


def promoted_row(queued: QueuedMessage) -> Row:
    """Return the history row of a queued message. Only the id changes. Its files are linked already."""
    return Row(
        role=Role.USER,
        content=queued.content,
        content_version=queued.content_version,
        created_by=queued.created_by,
        model_config_id=queued.model_config_id,
        reasoning_effort=queued.reasoning_effort,
        client_id=queued.client_id,
        traceparent=queued.traceparent,
    )


async def insert(tx: Tx, rows: Sequence[Row]) -> list[Message]:
    """Insert rows, with ascending ids, and link the files that they name."""
    if named := frozenset().union(*(row.files for row in rows)):
        await link_files(tx, named)
    if len(rows) == 1:
        record = await tx.conn.fetchrow(statement_of(rows[0]), *arguments(tx.chat.id, rows[0]))
        assert record is not None
        return [message_of(tx.chat, rows[0], *record)]
    messages: list[Message] = []
    # Consecutive rows with the same statement are sent in one round trip. Results are in the order of the rows.
    for statement, run in _runs(rows):
        records = await tx.conn.fetchmany(statement, [arguments(tx.chat.id, row) for row in run])
        messages.extend(message_of(tx.chat, row, *record) for row, record in zip(run, records, strict=True))
    return messages


def _runs(rows: Sequence[Row]) -> Iterable[tuple[str, list[Row]]]:
    run: list[Row] = []
    for row in rows:
        if run and statement_of(run[0]) != statement_of(row):
            yield statement_of(run[0]), run
            run = []
        run.append(row)
    if run:
        yield statement_of(run[0]), run


def statement_of(row: Row) -> str:
    return _INSERT_ALWAYS if row.figures is None else _INSERT_STEP


def arguments(chat_id: ChatId, row: Row) -> tuple[object, ...]:
    plain = (
        chat_id,
        row.role,
        row.visibility,
        row.compressed,
        row.content,
        row.content_version,
        row.created_by,
        row.model_config_id,
        row.reasoning_effort,
        row.client_id,
    )
    if row.figures is None:
        return (*plain, row.traceparent)
    # Zero is stored as NULL, like an unknown value. The cost is an exception: zero means free of charge, and NULL means
    # unknown.
    figures = [value or None for value in msgspec.structs.astuple(row.figures)]
    figures[_COST] = row.figures.cost_micros
    return (*plain, *figures)


def message_of(chat: Chat, row: Row, message_id: MessageId, created_at: datetime) -> Message:
    return Message(
        message_id,
        chat.id,
        chat.snapshot_version,  # set by the trigger
        row.role,
        row.visibility,
        row.compressed,
        False,
        row.content,
        row.content_version,
        row.created_by,
        row.model_config_id,
        row.reasoning_effort,
        row.client_id,
        created_at,
    )


def closures(
    tx: Tx,
    calls: Iterable[OpenCall],
    reason: CloseReason,
    *,
    model_config_id: UUID | None = None,
    note: str | None = None,
    comment: str = "",
    created_by: UUID | None = None,
) -> list[Row]:
    """Return a closure for each call. Pass `model_config_id` if rows of this transition change the chat's model."""
    model, at = model_config_id or tx.chat.last_model_config_id, tx.clock.now()
    return [
        row_of(
            open_tool_calls.closure(
                call, reason, model_config_id=model, at=at, note=note, comment=comment, created_by=created_by
            )
        )
        for call in calls
    ]


def starts_turn(row: Row) -> bool:
    """Return whether the row is a visible user message. Every call before it must have a result."""
    return row.role is Role.USER and not row.compressed and row.visibility is not Visibility.MODEL


def with_closures(
    tx: Tx, rows: Iterable[Row], reason: CloseReason, *, open_before: Sequence[OpenCall] = ()
) -> list[Row]:
    """Return the rows with closures: before each user message, one for every call that is open at this point.

    `open_before` are the open calls of the history. The rows may contain results of these calls.
    """
    answered: list[Row] = []
    turn = [_as_row(open_before)]
    for row in rows:
        if starts_turn(row):
            answered.extend(closures(tx, open_tool_calls.open_calls(turn), reason))
            turn = []
        elif row.role in (Role.ASSISTANT, Role.TOOL) and not row.compressed:
            turn.append(CallRow(0, row.role, row.content, row.content_version))
        answered.append(row)
    return answered


def _as_row(calls: Iterable[OpenCall]) -> CallRow:
    content = parts.encode([parts.ToolCall(call.tool_call_id, call.tool_name) for call in calls])
    return CallRow(0, Role.ASSISTANT, content, CONTENT_VERSION)


async def link_files(tx: Tx, file_ids: frozenset[UUID]) -> None:
    """Link files to the chat. If one is missing or the chat has too many, the transition is rolled back."""
    try:
        record = await tx.conn.fetchrow(_LINK_FILES, tx.chat.id, list(file_ids))
    except asyncpg.ForeignKeyViolationError as error:
        # The file was purged between the check and the insertion of its link.
        raise FileUnavailable(sorted(file_ids)) from error
    assert record is not None
    missing, total = record
    if missing:
        raise FileUnavailable(sorted(missing))
    if total > MAX_FILES_PER_CHAT:
        raise FileCapExceeded(MAX_FILES_PER_CHAT)
