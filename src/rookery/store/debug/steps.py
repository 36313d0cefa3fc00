"""Writes of steps. A write is accepted if `(epoch, priority of the status)` is not below the stored pair.

A late write of an old call therefore cannot change a newer call, and an interrupt cannot hide the answer of its own
call.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import StepStatus, json_text, plain_text

MAX_NUMBER_TRIES = 10

_PRIORITY = "CASE s.status " + " ".join(f"WHEN '{status}' THEN {status.priority}" for status in StepStatus) + " END"
# The run is changed first, as in the beat and the sweep, and must be open.
_OPEN_RUN = """
    run AS (
         UPDATE chat_debug_runs
            SET updated_at = clock_timestamp()
          WHERE id = $2
            AND chat_id = $3
            AND finished_at IS NULL
        RETURNING id, chat_id)"""
INSERT = f"""
    WITH {_OPEN_RUN}
    INSERT INTO chat_debug_steps (
           id, run_id, chat_id, step_number, step_key, finish_epoch, operation, status, history_tip_message_id,
           model_config_id, provider, model, message_count, shared_messages, tool_count, normalized_request, metadata,
           replay_form, started_at)
    SELECT $1, run.id, run.chat_id, $4, $5, $6, $7, 'in_progress', $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18
      FROM run
    RETURNING id
"""
# A further call of the step replaces the previous call. Earlier errors are in the metadata.
BEGIN_AGAIN = f"""
    WITH {_OPEN_RUN}
    UPDATE chat_debug_steps s
       SET finish_epoch = $4, status = 'in_progress', finished_at = NULL, model_config_id = $5, provider = $6,
           model = $7, message_count = $8, shared_messages = $9, tool_count = $10, normalized_request = $11,
           metadata = $12, replay_form = $13, normalized_response = NULL, usage = NULL, cost_micros = NULL,
           finish_reason = NULL, error = NULL, cache = NULL, updated_at = clock_timestamp()
      FROM run
     WHERE s.id = $1
       AND s.run_id = run.id
       AND ($4, 0) >= (s.finish_epoch, {_PRIORITY})
    RETURNING s.id
"""
FINISH = f"""
    UPDATE chat_debug_steps s
       SET status = $3, finish_epoch = $2, normalized_response = $5, usage = $6, cost_micros = $7, finish_reason = $8,
           error = $9, metadata = $10, cache = $11, ttft_ms = coalesce($12, s.ttft_ms), finished_at = $13,
           assistant_message_id = coalesce($14, s.assistant_message_id), updated_at = clock_timestamp()
     WHERE s.id = $1
       AND ($2, $4) >= (s.finish_epoch, {_PRIORITY})
    RETURNING s.id
"""
SET_MESSAGE = """
    UPDATE chat_debug_steps
       SET assistant_message_id = $2, updated_at = clock_timestamp()
     WHERE id = $1
    RETURNING id
"""
# The retry belongs to the call that failed. If the next call has begun, the retry is no longer recorded.
PLAN_RETRY = """
    WITH step AS (
         UPDATE chat_debug_steps
            SET metadata = metadata || jsonb_build_object('retrying', $5::jsonb), updated_at = clock_timestamp()
          WHERE id = $1
            AND finish_epoch = $2
         RETURNING id)
    UPDATE chat_debug_attempts a
       SET retry_kind = $3, retry_delay_ms = $4
      FROM step
     WHERE a.step_id = step.id
       AND a.number = (SELECT max(l.number) FROM chat_debug_attempts l WHERE l.step_id = $1)
"""
MAX_NUMBER = "SELECT coalesce(max(step_number), 0) FROM chat_debug_steps WHERE run_id = $1"


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a call, as it is stored. `request` and `metadata` are JSON."""

    model_config_id: UUID | None = None
    provider: str | None = None
    model: str | None = None
    message_count: int = 0
    shared_messages: int = 0
    tool_count: int = 0
    request: str = "{}"
    metadata: str = "{}"
    replay_form: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.request) + len(self.metadata) + len(self.replay_form or b"")


class NewStep(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    run_id: UUID
    chat_id: ChatId
    step_number: int
    step_key: str | None
    epoch: int
    operation: str
    history_tip_message_id: int | None
    started_at: datetime
    request: StepRequest


class StepEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call. All fields are written, so a success after a failure clears the error. JSON is text."""

    status: StepStatus
    finished_at: datetime
    response: str | None = None
    usage: str | None = None
    cost_micros: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    metadata: str = "{}"
    cache: str | None = None
    ttft_ms: int | None = None
    assistant_message_id: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.response or "") + len(self.error or "") + len(self.metadata)


class StepWrite(StrEnum):
    WRITTEN = "written"
    NO_RUN = "no_run"  # the run is finished, does not exist, or belongs to another chat
    STALE = "stale"  # a newer call, or a stronger status of the same call, is stored


async def insert_step(conn: Connection, step: NewStep) -> int | None:
    """Insert a step and return its number; None if there is no open run.

    If the number is taken, the next free one is used.
    """
    number = step.step_number
    for _ in range(MAX_NUMBER_TRIES):
        try:
            found = await conn.fetchval(
                INSERT,
                step.id,
                step.run_id,
                step.chat_id,
                number,
                step.step_key,
                step.epoch,
                step.operation,
                step.history_tip_message_id,
                *_request_values(step.request),
                step.started_at,
            )
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name != "chat_debug_steps_run_id_step_number_key":
                raise
            number = await conn.fetchval(MAX_NUMBER, step.run_id) + 1
            continue
        return None if found is None else number
    raise asyncpg.UniqueViolationError("Every number that was tried for the step is taken.")


async def begin_again(
    conn: Connection, step_id: UUID, run_id: UUID, chat_id: ChatId, *, epoch: int, request: StepRequest
) -> bool:
    """Begin a further call of a step. Return False if the run is not open, or a newer call is stored."""
    values = _request_values(request)
    return await conn.fetchval(BEGIN_AGAIN, step_id, run_id, chat_id, epoch, *values) is not None


async def finish_step(conn: Connection, step_id: UUID, *, epoch: int, end: StepEnd) -> bool:
    """Write the end of a call. Return False if the step no longer exists, or a stronger write is stored."""
    found = await conn.fetchval(
        FINISH,
        step_id,
        epoch,
        end.status,
        end.status.priority,
        end.response,
        end.usage,
        end.cost_micros,
        end.finish_reason,
        end.error,
        end.metadata,
        end.cache,
        end.ttft_ms,
        end.finished_at,
        end.assistant_message_id,
    )
    return found is not None


async def set_message(conn: Connection, step_id: UUID, message_id: int) -> bool:
    """Set the assistant message that contains the answer of the step."""
    return await conn.fetchval(SET_MESSAGE, step_id, message_id) is not None


async def plan_retry(conn: Connection, step_id: UUID, *, epoch: int, kind: str, delay_ms: int) -> None:
    """Record in the step, and in its last attempt, that the call will be retried."""
    retrying = json_text({"kind": kind, "delay_ms": delay_ms})
    await conn.execute(PLAN_RETRY, step_id, epoch, plain_text(kind), delay_ms, retrying)


def _request_values(request: StepRequest) -> tuple[object, ...]:
    return (
        request.model_config_id,
        request.provider,
        request.model,
        request.message_count,
        request.shared_messages,
        request.tool_count,
        request.request,
        request.metadata,
        request.replay_form,
    )
