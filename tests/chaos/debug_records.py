"""The debug records that a chaos run has left, and their invariants. Records may be incomplete, but not wrong.

Each function returns a list of violations, which is empty if the invariant holds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

# A run of a dead replica ends with the next sweep. A run whose end was lost in a restart of the database is silent for
# 120 s first.
MAX_OPEN_SECONDS = 150.0

_RUNS = """
    SELECT r.id, r.chat_id, r.kind, r.status, r.summary, r.trigger_message_id, r.snapshot_version, r.started_at,
           r.finished_at, t.role AS trigger_role
      FROM chat_debug_runs r
      LEFT JOIN chat_messages t ON t.chat_id = r.chat_id AND t.id = r.trigger_message_id AND NOT t.deleted
"""
_STEPS = """
    SELECT s.id, s.run_id, s.step_number, s.status, s.error, s.normalized_response, s.assistant_message_id,
           s.started_at, s.finished_at, m.role AS answer_role,
           (SELECT string_agg(p ->> 'text', '') FROM jsonb_array_elements(m.content) p WHERE p ->> 'type' = 'text')
             AS answer_text
      FROM chat_debug_steps s
      LEFT JOIN chat_messages m ON m.chat_id = s.chat_id AND m.id = s.assistant_message_id AND NOT m.deleted
     ORDER BY s.step_number
"""
_OPEN = "SELECT count(*) FROM chat_debug_runs WHERE finished_at IS NULL"


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A step. `answer_text` and `answer_role` are of the message that it says it wrote."""

    number: int
    status: str
    error: Any = None
    said: str | None = None
    message_id: int | None = None
    answer_role: str | None = None
    answer_text: str | None = None
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    id: UUID
    chat_id: UUID
    kind: str
    status: str
    summary: dict[str, Any]
    trigger_message_id: int | None
    trigger_role: str | None
    snapshot_version: int
    started_at: datetime
    finished_at: datetime | None
    steps: list[StepRecord] = field(default_factory=list)


async def settle(pool: asyncpg.Pool, *, seconds: float = MAX_OPEN_SECONDS) -> float:
    """Wait until no run is open. Return the time, which is `seconds` if some are left."""
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        if not await pool.fetchval(_OPEN):
            return passed
        await asyncio.sleep(0.2)
    return seconds


async def read(pool: asyncpg.Pool) -> list[RunRecord]:
    runs = {
        record["id"]: RunRecord(
            id=record["id"],
            chat_id=record["chat_id"],
            kind=record["kind"],
            status=record["status"],
            summary=msgspec.json.decode(record["summary"]),
            trigger_message_id=record["trigger_message_id"],
            trigger_role=record["trigger_role"],
            snapshot_version=record["snapshot_version"],
            started_at=record["started_at"],
            finished_at=record["finished_at"],
        )
        for record in await pool.fetch(_RUNS)
    }
    for record in await pool.fetch(_STEPS):
        runs[record["run_id"]].steps.append(
            StepRecord(
                number=record["step_number"],
                status=record["status"],
                error=record["error"],
                said=_said(record["normalized_response"]),
                message_id=record["assistant_message_id"],
                answer_role=record["answer_role"],
                answer_text=record["answer_text"],
                started_at=record["started_at"],
                finished_at=record["finished_at"],
            )
        )
    return list(runs.values())


def _said(response: str | None) -> str | None:
    if response is None:
        return None
    content = msgspec.json.decode(response).get("content", [])
    return "".join(part.get("text", "") for part in content if part["type"] == "text")


def nothing_stays_open(runs: list[RunRecord]) -> Iterator[str]:
    for run in runs:
        if run.finished_at is None:
            yield f"{run.id}: the run is {run.status}"
        for step in run.steps:
            if step.finished_at is None:
                yield f"{run.id}: step {step.number} is {step.status}"


def times_go_forward(runs: list[RunRecord]) -> Iterator[str]:
    for run in runs:
        times = [(run.started_at, run.finished_at), *((step.started_at, step.finished_at) for step in run.steps)]
        for started_at, finished_at in times:
            if finished_at is not None and finished_at < started_at:
                yield f"{run.id}: it ended {started_at - finished_at} before it began"


def turns_belong_to_a_users_message(runs: list[RunRecord]) -> Iterator[str]:
    for run in runs:
        if run.kind == "chat_turn" and run.trigger_role != "user":
            yield f"{run.id}: message {run.trigger_message_id} has the role {run.trigger_role}"


def answers_are_the_stored_ones(runs: list[RunRecord]) -> Iterator[str]:
    """A step that names its message is complete, and has the text of that message."""
    for run in runs:
        for step in run.steps:
            if step.message_id is None:
                continue
            if (step.status, step.answer_role) != ("completed", "assistant"):
                yield f"{run.id}: step {step.number} is {step.status} and wrote a message of role {step.answer_role}"
            elif step.said is not None and step.said != (step.answer_text or ""):
                yield f"{run.id}: step {step.number} said {step.said!r}, but stored {step.answer_text!r}"


def no_answer_has_two_steps(runs: list[RunRecord]) -> Iterator[str]:
    named = Counter(step.message_id for run in runs for step in run.steps if step.message_id is not None)
    for message_id, count in named.items():
        if count > 1:
            yield f"message {message_id} has {count} steps"


def successes_have_no_error(runs: list[RunRecord]) -> Iterator[str]:
    for run in runs:
        for step in run.steps:
            if step.status == "completed" and step.error is not None:
                yield f"{run.id}: step {step.number} is completed and has an error"
        if run.status == "completed" and run.steps and run.steps[-1].status == "error":
            yield f"{run.id}: the run is completed, and its last step failed"


def summaries_count_their_steps(runs: list[RunRecord]) -> Iterator[str]:
    for run in runs:
        if run.finished_at is not None and run.summary.get("step_count") != len(run.steps):
            yield f"{run.id}: {run.summary.get('step_count')} steps are counted, and there are {len(run.steps)}"


def continued_runs_are_of_the_same_turn(runs: list[RunRecord]) -> Iterator[str]:
    by_id = {str(run.id): run for run in runs}
    for run in runs:
        if (named := run.summary.get("continues")) is None:
            continue
        before = by_id.get(named)
        if before is None or (before.chat_id, before.trigger_message_id) != (run.chat_id, run.trigger_message_id):
            yield f"{run.id}: it continues {named}, which is not a run of its turn"
        elif before.snapshot_version >= run.snapshot_version:
            yield f"{run.id}: it continues a run of a later version of the chat"


INVARIANTS: tuple[Callable[[list[RunRecord]], Iterator[str]], ...] = (
    nothing_stays_open,
    times_go_forward,
    turns_belong_to_a_users_message,
    answers_are_the_stored_ones,
    no_answer_has_two_steps,
    successes_have_no_error,
    summaries_count_their_steps,
    continued_runs_are_of_the_same_turn,
)


def find_faults(runs: list[RunRecord]) -> list[str]:
    return [f"{check.__name__}: {fault}" for check in INVARIANTS for fault in check(runs)]
