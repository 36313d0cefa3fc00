"""Writes of runs: insert a run above the floor, end it once, and compute its summary from the steps.

A run is written by one process. Each statement is its own transaction, so no lock is held between two round trips.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import RunKind, RunStatus, json_text


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to insert. `snapshot_version` is the version of the chat that its work began from."""

    id: UUID
    chat_id: ChatId
    root_chat_id: UUID
    parent_chat_id: UUID | None
    replica_id: UUID
    snapshot_version: int
    kind: RunKind
    started_at: datetime
    parent_run_id: UUID | None = None
    model_config_id: UUID | None = None
    provider: str | None = None
    model: str | None = None
    trigger_message_id: int | None = None
    history_tip_message_id: int | None = None
    summary: dict[str, object] = {}


class RunState(StrEnum):
    """The state of a run that a statement could not write to."""

    OPEN = "open"
    FINALIZED = "run_finalized"
    GONE = "run_gone"  # deleted with its chat, by an edit, an archive, the owner or the retention
    NOT_FOUND = "run_not_found"  # the run belongs to another chat, which is a bug


# The chat is locked before its state, as by a deletion of the chat. The SHARE lock waits for an edit or archive that is
# not committed yet, and reads its floor. A chat that was never recorded gets its state here. A run continues one of the
# same turn from an earlier version: a displaced replica may insert its run after the replica that took over.
_INSERT = """
    WITH chat AS MATERIALIZED (SELECT id FROM chats WHERE id = $2 FOR KEY SHARE),
         made AS (
         INSERT INTO chat_debug_state (chat_id) SELECT id FROM chat
         ON CONFLICT (chat_id) DO NOTHING
         RETURNING floor),
         held AS MATERIALIZED (
         SELECT d.floor FROM chat_debug_state d WHERE d.chat_id = (SELECT id FROM chat) FOR SHARE),
         state AS (SELECT floor FROM made UNION ALL SELECT floor FROM held)
    INSERT INTO chat_debug_runs (
           id, chat_id, root_chat_id, parent_chat_id, replica_id, snapshot_version, kind, status, started_at,
           parent_run_id, model_config_id, provider, model, trigger_message_id, history_tip_message_id, summary)
    SELECT $1, $2, $3, $4, $5, $6, $7, 'in_progress', $8, $9, $10, $11, $12, $13, $14,
           $15::jsonb || jsonb_strip_nulls(jsonb_build_object('continues', (
             SELECT o.id
               FROM chat_debug_runs o
              WHERE o.chat_id = $2
                AND $7 = 'chat_turn'
                AND o.kind = 'chat_turn'
                AND o.trigger_message_id = $13
                AND o.snapshot_version < $6
              ORDER BY o.snapshot_version DESC, o.started_at DESC, o.id DESC
              LIMIT 1)))
      FROM state
     WHERE $6 >= state.floor
    RETURNING id
"""


def _total(name: str) -> str:
    """Return the sum of a number in the usage of steps. A value that is no number is left out."""
    value = f"s.usage -> '{name}'"
    return f"sum(CASE WHEN jsonb_typeof({value}) = 'number' THEN ({value})::numeric::bigint END)"


DERIVED_KEYS = (
    "step_count",
    "attempt_count",
    "total_input_tokens",
    "total_output_tokens",
    "total_reasoning_tokens",
    "total_cache_creation_tokens",
    "total_cache_read_tokens",
    "retry_count",
    "cost_micros",
    "has_error",
    "truncated",
    "endpoint_label",
    "ttft_ms",
)
_DERIVED = "ARRAY[" + ", ".join(f"'{key}'" for key in DERIVED_KEYS) + "]"
# The computed keys of the run `r`. A step has one more call than retries.
_SUMMARY = f"""
      (SELECT jsonb_strip_nulls(jsonb_build_object(
                'step_count', count(*),
                'total_input_tokens', coalesce({_total("input_tokens")}, 0),
                'total_output_tokens', coalesce({_total("output_tokens")}, 0),
                'total_reasoning_tokens', nullif({_total("reasoning_tokens")}, 0),
                'total_cache_creation_tokens', nullif({_total("cache_creation_tokens")}, 0),
                'total_cache_read_tokens', nullif({_total("cache_read_tokens")}, 0),
                'retry_count', nullif(sum(greatest(s.finish_epoch - 1, 0)), 0),
                'cost_micros', nullif(sum(s.cost_micros), 0),
                'has_error', nullif(bool_or(s.status = 'error' OR s.error IS NOT NULL AND s.status <> 'interrupted'),
                                    false),
                'truncated', nullif(bool_or(s.metadata ? 'truncated'), false),
                'ttft_ms', (array_agg(s.ttft_ms ORDER BY s.step_number))[1]))
         FROM chat_debug_steps s
        WHERE s.run_id = r.id)
   || (SELECT jsonb_build_object('attempt_count', count(*))
         FROM chat_debug_steps s
         JOIN chat_debug_attempts a ON a.step_id = s.id
        WHERE s.run_id = r.id)
   || coalesce((SELECT jsonb_build_object('endpoint_label', a.method || ' ' || a.path)
         FROM chat_debug_steps s
         JOIN chat_debug_attempts a ON a.step_id = s.id
        WHERE s.run_id = r.id AND a.status = 'completed'
        ORDER BY s.step_number, a.number
        LIMIT 1), '{{}}')"""
SUMMARIZED = f"(r.summary - {_DERIVED}) || {_SUMMARY}"

# The end of a run is written once.
_FINISH = """
    UPDATE chat_debug_runs r
       SET status = $3, finished_at = $4, updated_at = clock_timestamp(), summary = {summary}
     WHERE r.id = $1
       AND r.chat_id = $2
       AND r.finished_at IS NULL
    RETURNING r.id
"""
FINISH = _FINISH.format(summary=SUMMARIZED)
FINISH_PLAINLY = _FINISH.format(summary=f"r.summary - {_DERIVED}")
STATE = "SELECT chat_id, finished_at FROM chat_debug_runs WHERE id = $1"


async def insert_run(conn: Connection, run: NewRun) -> bool:
    """Insert a run. Return False if the chat is deleted, or an edit or archive has removed the run's history."""
    # If another transaction has just inserted the state, the first statement has waited for it but does not see it.
    return await _try_insert(conn, run) or await _try_insert(conn, run)


async def _try_insert(conn: Connection, run: NewRun) -> bool:
    inserted = await conn.fetchval(
        _INSERT,
        run.id,
        run.chat_id,
        run.root_chat_id,
        run.parent_chat_id,
        run.replica_id,
        run.snapshot_version,
        run.kind,
        run.started_at,
        run.parent_run_id,
        run.model_config_id,
        run.provider,
        run.model,
        run.trigger_message_id,
        run.history_tip_message_id,
        json_text(run.summary),
    )
    return inserted is not None


async def finish_run(
    conn: Connection, run_id: UUID, chat_id: ChatId, *, status: RunStatus, finished_at: datetime, sums_up: bool = True
) -> bool:
    """End a run and compute its summary. Return False if it has already ended or no longer exists.

    Without `sums_up`, only the initial summary is kept, for a run whose steps cannot be summed up.
    """
    statement = FINISH if sums_up else FINISH_PLAINLY
    return await conn.fetchval(statement, run_id, chat_id, status, finished_at) is not None


async def find_state(conn: Connection, run_id: UUID, chat_id: ChatId) -> RunState:
    """Return why a statement found no open run."""
    record = await conn.fetchrow(STATE, run_id)
    if record is None:
        return RunState.GONE
    if record["chat_id"] != chat_id:
        return RunState.NOT_FOUND
    return RunState.OPEN if record["finished_at"] is None else RunState.FINALIZED
