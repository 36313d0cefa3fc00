"""The last runs of each job of housekeeping, by all replicas together: who ran it, when, and what came of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.pool import Connection

KEPT_RUNS = 20  # of each job

# The fields of `JobRun`, in its order.
COLUMNS = "job, replica_id, started_at, finished_at, outcome, removed, skipped, error"
# The removal does not see the row that is inserted beside it, hence one less. Two replicas at once may leave one run
# more, which the next of the job takes with it.
RECORD = f"""
    WITH too_old AS (
      DELETE FROM job_runs
       WHERE job = $1
         AND id <= (SELECT id FROM job_runs WHERE job = $1 ORDER BY id DESC OFFSET {KEPT_RUNS - 1} LIMIT 1))
    INSERT INTO job_runs ({COLUMNS})
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
LIST = f"SELECT {COLUMNS} FROM job_runs ORDER BY job, id DESC"
LIST_LAST = f"SELECT DISTINCT ON (job) {COLUMNS} FROM job_runs ORDER BY job, id DESC"


class JobOutcome(StrEnum):
    DONE = "done"
    FAILED = "failed"


class JobRun(msgspec.Struct, frozen=True):
    """A run that came to its end. `skipped` is what should have gone and could not; `error` says why it failed."""

    job: str
    replica_id: UUID
    started_at: datetime
    finished_at: datetime
    outcome: JobOutcome
    removed: int = 0
    skipped: int = 0
    error: str | None = None


async def record_run(conn: Connection, run: JobRun) -> None:
    """Keep the run, and of its job only the newest. The error must be fit to be shown."""
    await conn.execute(RECORD, *msgspec.structs.astuple(run))


async def list_runs(conn: Connection) -> list[JobRun]:
    """By job, the newest first."""
    return [_run(record) for record in await conn.fetch(LIST)]


async def list_last_runs(conn: Connection) -> list[JobRun]:
    """The newest of each job, by name."""
    return [_run(record) for record in await conn.fetch(LIST_LAST)]


def _run(record: asyncpg.Record) -> JobRun:
    return msgspec.structs.replace(JobRun(*record), outcome=JobOutcome(record["outcome"]))
