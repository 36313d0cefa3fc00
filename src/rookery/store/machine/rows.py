"""The writes that transitions are made of: message rows, queue rows, closures and file links.

Everything here runs inside a bundle, under the chat's lock. History and queue rows are written first, then the
transition's one closing UPDATE (`Tx.settle`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from rookery import log
from rookery.chat import parts, toolcalls
from rookery.chat.errors import FileCapExceeded, FileUnavailable, QueuedMessageNotFound, QueueFull
from rookery.chat.messages import (
    CONTENT_VERSION,
    Effort,
    Message,
    MessageId,
    NewMessage,
    NewQueuedMessage,
    QueuedMessage,
    QueuedMessageId,
    Role,
    StepFigures,
    Visibility,
)
from rookery.chat.toolcalls import CallRow, CloseReason, OpenCall
from rookery.chat.transitions import Transition
from rookery.store.machine.lock import CHAT_COLUMNS, Tx

MAX_QUEUE = 20
MAX_FILES_PER_CHAT = 50

_log = log.get_logger("store.machine")

_INSERT_MESSAGE = """
    INSERT INTO chat_messages
           (chat_id, role, visibility, compressed, content, content_version, created_by,
            model_config_id, reasoning_effort, client_id)
    SELECT $1::uuid, $2::text, $3::text, $4::boolean, $5::jsonb, $6::smallint, $7::uuid, $8::uuid, $9::text, $10::text
     WHERE {condition}
    RETURNING id AS message_id, created_at AS inserted_at
"""

# The columns of `StepFigures`, in its order.
_INSERT_STEP = """
    INSERT INTO chat_messages
           (chat_id, role, visibility, compressed, content, content_version, created_by,
            model_config_id, reasoning_effort, client_id,
            input_tokens, output_tokens, total_tokens, reasoning_tokens, cache_read_tokens, cache_write_tokens,
            context_tokens, context_limit, cost_micros, runtime_ms, finish_reason, prefix_fp, request_id, response_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
            $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
    RETURNING id AS message_id, created_at AS inserted_at
"""

# A message and the end of its transition in one round trip. History and attempt are set here, so that the row that
# comes back is the final one; the trigger, which runs after this statement, finds them right already.
_INSERT_AND_SETTLE = f"""
      WITH inserted AS ({{insert}})
    UPDATE chats
       SET history_version = snapshot_version,
           generation_attempt = 0,
           last_model_config_id = coalesce($8, last_model_config_id),
           last_reasoning_effort = coalesce($9, last_reasoning_effort),
           {{assignments}}
      FROM inserted
     WHERE chats.id = $1
    RETURNING {CHAT_COLUMNS}, message_id, inserted_at
"""

# The turn: live rows after the last live user row that people can see. The range of one chat, ordered by it, keeps the
# planner from walking the primary key backward through everybody's rows (store/messages.py says when it would); roles
# are excluded, not listed, and the order is asked for, so that messages_live serves the range and not messages_role.
_IN_TURN = """
           m.chat_id >= $1 AND m.chat_id <= $1
       AND NOT m.deleted
       AND NOT m.compressed
       AND m.role <> 'user' AND m.role <> 'system'
       AND (m.chat_id, m.id) > ($1, coalesce((
           SELECT u.id
             FROM chat_messages u
            WHERE u.chat_id >= $1 AND u.chat_id <= $1
              AND u.role = 'user'
              AND NOT u.deleted
              AND NOT u.compressed
              AND u.visibility <> 'model'
            ORDER BY u.chat_id, u.role, u.id DESC
            LIMIT 1), 0))
"""

# Only what calls and results need leaves the server: a turn of a thousand steps with large results stays cheap.
_TURN_CALLS = f"""
    SELECT m.id, m.role, coalesce(c.parts, '[]'), m.content_version
      FROM chat_messages m
     CROSS JOIN LATERAL (
           SELECT jsonb_agg(jsonb_build_object(
                    'type', p.part -> 'type', 'tool_call_id', p.part -> 'tool_call_id',
                    'tool_name', p.part -> 'tool_name',
                    'provider_executed', coalesce(p.part -> 'provider_executed', 'false'))) AS parts
             FROM jsonb_array_elements(m.content) AS p (part)
            WHERE p.part ->> 'type' IN ('tool-call', 'tool-result')) c
     WHERE {_IN_TURN}
     ORDER BY m.chat_id, m.id
"""

# True only when `toolcalls.open_calls` would find nothing. It may be false for nothing (calls the provider executes,
# rows that cannot be read: one damaged part takes the results beside it away); then the calls are looked at one by one.
# It saves the common case a round trip.
_NOTHING_OPEN = f"""
    NOT EXISTS (
      WITH turn AS (
           SELECT m.id, m.role, p.part ->> 'type' AS type, p.part -> 'tool_call_id' AS tool_call_id,
                  m.content_version = {CONTENT_VERSION}
                  AND jsonb_typeof(p.part -> 'tool_call_id') IS NOT DISTINCT FROM 'string'
                  AND jsonb_typeof(p.part -> 'tool_name') IS NOT DISTINCT FROM 'string'
                  AND coalesce(jsonb_typeof(p.part -> 'provider_executed'), 'boolean') = 'boolean' AS is_readable
             FROM chat_messages m
            CROSS JOIN LATERAL jsonb_array_elements(m.content) AS p (part)
            WHERE {_IN_TURN}
              AND p.part ->> 'type' IN ('tool-call', 'tool-result')
            ORDER BY m.chat_id, m.id)
      SELECT FROM turn c
       WHERE NOT c.is_readable
          OR (c.type = 'tool-call'
              AND NOT EXISTS (
                  SELECT FROM turn r
                   WHERE r.type = 'tool-result'
                     AND r.tool_call_id = c.tool_call_id
                     AND (r.id = c.id OR (r.id > c.id AND r.role = 'tool')))))
"""

_DYNAMIC_TOOLS = """
    SELECT t.tool ->> 'name'
      FROM chats c
     CROSS JOIN LATERAL jsonb_array_elements(c.dynamic_tools) AS t (tool)
     WHERE c.id = $1 AND jsonb_typeof(c.dynamic_tools) = 'array'
"""

QUEUE_COLUMNS = """
    id, chat_id, position, content, content_version, created_by, model_config_id, reasoning_effort, steer, client_id,
    created_at
"""

_LIST_QUEUE = f"SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = $1 ORDER BY position, id"

_APPEND = f"""
    INSERT INTO chat_queued_messages
           (chat_id, position, content, content_version, created_by, model_config_id, reasoning_effort, steer,
            client_id)
    SELECT $1, coalesce(max(q.position), 0) + 1, $2, $3, $4, $5, $6, $7, $8
      FROM chat_queued_messages q
     WHERE q.chat_id = $1
    RETURNING {QUEUE_COLUMNS}
"""

_POP_HEAD = f"""
    DELETE FROM chat_queued_messages
     WHERE id = (SELECT q.id FROM chat_queued_messages q WHERE q.chat_id = $1 ORDER BY q.position, q.id LIMIT 1)
    RETURNING {QUEUE_COLUMNS}
"""

_DELETE_QUEUED = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 AND id = $2 RETURNING {QUEUE_COLUMNS}"
_DELETE_QUEUE = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 RETURNING {QUEUE_COLUMNS}"
_DELETE_STEERING = f"DELETE FROM chat_queued_messages WHERE chat_id = $1 AND steer RETURNING {QUEUE_COLUMNS}"
_HAS_STEERING = "SELECT EXISTS (SELECT FROM chat_queued_messages WHERE chat_id = $1 AND steer)"

# Files that exist are linked, the others reported; already linked ones are free. The outer SELECT still sees the
# links from before the INSERT, hence the sum.
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


# Fragments of closing UPDATEs.
TOUCH = "updated_at = clock_timestamp()"
DROP_COMPACTION = "compaction_requested_at = NULL, compaction_resume = false"
CHOOSE_MODEL = "last_model_config_id = $2, last_reasoning_effort = $3"
_RUN = f"status = 'running', last_error = NULL, requires_action_deadline_at = NULL, {DROP_COMPACTION}, {TOUCH}"

_INSERT_ALWAYS = _INSERT_MESSAGE.format(condition="true")
_START_TURN = _INSERT_AND_SETTLE.format(insert=_INSERT_MESSAGE.format(condition=_NOTHING_OPEN), assignments=_RUN)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the form it is stored in: content encoded, files named."""

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
    )


def user_row(message: NewQueuedMessage) -> Row:
    """A sent message that goes straight into the history."""
    return Row(
        role=Role.USER,
        content=parts.encode(message.content),
        created_by=message.created_by,
        model_config_id=message.model_config_id,
        reasoning_effort=message.reasoning_effort,
        client_id=message.client_id,
        files=parts.file_ids(message.content),
    )


def promoted_row(queued: QueuedMessage) -> Row:
    """A queue row on its way into the history: everything but the id is kept. Its files are linked already."""
    return Row(
        role=Role.USER,
        content=queued.content,
        content_version=queued.content_version,
        created_by=queued.created_by,
        model_config_id=queued.model_config_id,
        reasoning_effort=queued.reasoning_effort,
        client_id=queued.client_id,
    )


async def insert(tx: Tx, rows: Sequence[Row]) -> list[Message]:
    """Insert rows in order; ids ascend in that order. Links the files they name."""
    if files := frozenset().union(*(row.files for row in rows)):
        await link_files(tx, files)
    if len(rows) == 1:
        record = await tx.conn.fetchrow(_statement(rows[0]), *_arguments(tx, rows[0]))
        assert record is not None
        return [_message(tx, rows[0], *record)]
    messages: list[Message] = []
    # Runs of rows with the same statement go in one pipelined round trip; results come back in input order.
    for statement, run in _runs(rows):
        records = await tx.conn.fetchmany(statement, [_arguments(tx, row) for row in run])
        messages.extend(_message(tx, row, *record) for row, record in zip(run, records, strict=True))
    return messages


def _runs(rows: Sequence[Row]) -> Iterable[tuple[str, list[Row]]]:
    run: list[Row] = []
    for row in rows:
        if run and _statement(run[0]) != _statement(row):
            yield _statement(run[0]), run
            run = []
        run.append(row)
    if run:
        yield _statement(run[0]), run


def _statement(row: Row) -> str:
    return _INSERT_ALWAYS if row.figures is None else _INSERT_STEP


def _arguments(tx: Tx, row: Row) -> tuple[object, ...]:
    plain = (
        tx.chat.id,
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
        return plain
    # Unknown and zero are NULL: a provider that reports nothing must not look like one that used nothing. Not so the
    # cost: nothing to pay is a price, NULL is none.
    figures = msgspec.structs.asdict(row.figures)
    return plain + tuple(value if name == "cost_micros" else value or None for name, value in figures.items())


def _message(tx: Tx, row: Row, message_id: MessageId, created_at: datetime) -> Message:
    return Message(
        message_id,
        tx.chat.id,
        tx.chat.snapshot_version,  # what the trigger gave it
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


def model_choice(tx: Tx, messages: Sequence[Message]) -> tuple[UUID, str | None]:
    """The chat's model and effort after these rows: the last one given, else what it was."""
    model, effort = tx.chat.last_model_config_id, tx.chat.last_reasoning_effort
    for message in messages:
        model = message.model_config_id or model
        effort = message.reasoning_effort or effort
    return model, effort


async def insert_settling(tx: Tx, by: Transition, row: Row, assignments: str) -> Message:
    """Insert one row and close the transition that it is all of."""
    if row.files:
        await link_files(tx, row.files)
    record = await tx.settle_by(by, _settling(_statement(row), assignments), *_arguments(tx, row))
    assert record is not None
    return _message(tx, row, *record[-2:])


@functools.cache
def _settling(insert_statement: str, assignments: str) -> str:
    return _INSERT_AND_SETTLE.format(insert=insert_statement, assignments=assignments)


async def start_turn(tx: Tx, by: Transition, row: Row, reason: CloseReason) -> list[Message]:
    """Close a transition that starts a turn: answer all open calls, insert the user row, run.

    A model must never see a call without its result. Returns the closures and then the row.
    """
    assert row.role is Role.USER
    if row.files:
        await link_files(tx, row.files)
    record = await tx.settle_by(by, _START_TURN, *_arguments(tx, row))
    if record is not None:
        return [_message(tx, row, *record[-2:])]
    inserted = await insert(tx, [*closures(tx, await turn_calls(tx), reason), row])
    await settle_running(tx, by, inserted)
    return inserted


async def settle_running(tx: Tx, by: Transition, inserted: Sequence[Message]) -> None:
    """Close a transition after which the chat runs: whatever held it up is gone, and the model choice follows."""
    model, effort = model_choice(tx, inserted)
    await tx.settle(by, f"{_RUN}, {CHOOSE_MODEL}", model, effort)


async def turn_calls(tx: Tx) -> tuple[OpenCall, ...]:
    """All open calls of the current turn."""
    records = await tx.conn.fetch(_TURN_CALLS, tx.chat.id)
    return toolcalls.open_calls(
        (CallRow(*record) for record in records),
        on_unreadable=lambda message_id: _log.warning("message_unreadable", chat_id=tx.chat.id, message_id=message_id),
    )


async def dynamic_calls(tx: Tx) -> tuple[OpenCall, ...]:
    """The open calls that a client executes."""
    calls = await turn_calls(tx)
    if not calls:
        return ()
    names = {record[0] for record in await tx.conn.fetch(_DYNAMIC_TOOLS, tx.chat.id)}
    return toolcalls.select_dynamic(calls, names)


def closures(
    tx: Tx,
    calls: Iterable[OpenCall],
    reason: CloseReason,
    *,
    model_config_id: UUID | None = None,
    note: str | None = None,
) -> list[Row]:
    """A synthetic result for each call. The model is the chat's, unless rows of this transition name a later one."""
    model, at = model_config_id or tx.chat.last_model_config_id, tx.clock.now()
    return [row_of(toolcalls.closure(call, reason, model_config_id=model, at=at, note=note)) for call in calls]


def queued_of(record: asyncpg.Record) -> QueuedMessage:
    queued = QueuedMessage(*record)
    if queued.reasoning_effort is None:
        return queued
    return msgspec.structs.replace(queued, reasoning_effort=Effort(queued.reasoning_effort))


async def list_queue(tx: Tx) -> list[QueuedMessage]:
    return [queued_of(record) for record in await tx.conn.fetch(_LIST_QUEUE, tx.chat.id)]


def require_room(tx: Tx) -> None:
    if tx.chat.queue_len >= MAX_QUEUE:
        raise QueueFull(MAX_QUEUE)


async def append(tx: Tx, message: NewQueuedMessage, *, steer: bool = False) -> QueuedMessage:
    """Put a message at the end of the queue. The caller has made sure that there is room."""
    if files := parts.file_ids(message.content):
        await link_files(tx, files)
    record = await tx.conn.fetchrow(
        _APPEND,
        tx.chat.id,
        parts.encode(message.content),
        CONTENT_VERSION,
        message.created_by,
        message.model_config_id,
        message.reasoning_effort,
        steer,
        message.client_id,
    )
    assert record is not None
    return queued_of(record)


async def pop_head(tx: Tx) -> QueuedMessage:
    record = await tx.conn.fetchrow(_POP_HEAD, tx.chat.id)
    assert record is not None, "queue_len says there is a head"
    return queued_of(record)


async def pop_steering(tx: Tx) -> list[QueuedMessage]:
    """Take every steering row out of the queue, in queue order, unless a call is still open."""
    if not await tx.conn.fetchval(_HAS_STEERING, tx.chat.id) or await turn_calls(tx):
        return []
    return in_queue_order(queued_of(record) for record in await tx.conn.fetch(_DELETE_STEERING, tx.chat.id))


async def delete_queued(tx: Tx, queued_id: QueuedMessageId) -> QueuedMessage:
    record = await tx.conn.fetchrow(_DELETE_QUEUED, tx.chat.id, queued_id)
    if record is None:
        raise QueuedMessageNotFound(queued_id)
    return queued_of(record)


async def delete_queue(tx: Tx) -> list[QueuedMessage]:
    return in_queue_order(queued_of(record) for record in await tx.conn.fetch(_DELETE_QUEUE, tx.chat.id))


def in_queue_order(rows: Iterable[QueuedMessage]) -> list[QueuedMessage]:
    return sorted(rows, key=lambda row: (row.position, row.id))


async def link_files(tx: Tx, file_ids: frozenset[UUID]) -> None:
    """Link files to the chat, all or nothing: what follows a refusal here is the rollback of the message."""
    try:
        record = await tx.conn.fetchrow(_LINK_FILES, tx.chat.id, list(file_ids))
    except asyncpg.ForeignKeyViolationError as error:
        # Purged between the look and the link.
        raise FileUnavailable(sorted(file_ids)) from error
    assert record is not None
    missing, total = record
    if missing:
        raise FileUnavailable(sorted(missing))
    if total > MAX_FILES_PER_CHAT:
        raise FileCapExceeded(MAX_FILES_PER_CHAT)
