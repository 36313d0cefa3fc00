"""The last runs of each housekeeping job, on all replicas: replica, time and outcome."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.pool import Connection

KEPT_RUNS = 20  # per job

# The fields of `JobRun`, in their order.
COLUMNS = "job, replica_id, started_at, finished_at, outcome, removed, skipped, error"
# The DELETE does not see the inserted row, so it keeps one row less. If two replicas run this at the same time, one
# extra row may stay until the next run.
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
    """A finished run. `skipped` is the number of objects that could not be deleted. `error` is set if it failed."""

    job: str
    replica_id: UUID
    started_at: datetime
    finished_at: datetime
    outcome: JobOutcome
    removed: int = 0
    skipped: int = 0
    error: str | None = None


async def record_run(conn: Connection, run: JobRun) -> None:
    """Store the run, and delete old runs of its job. `error` is shown to administrators, so it must have no secrets."""
    await conn.execute(RECORD, *msgspec.structs.astuple(run))


async def list_runs(conn: Connection) -> list[JobRun]:
    """List the runs by job, newest first."""
    return [_run(record) for record in await conn.fetch(LIST)]


async def list_last_runs(conn: Connection) -> list[JobRun]:
    """List the newest run of each job, ordered by job."""
    return [_run(record) for record in await conn.fetch(LIST_LAST)]


def _run(record: asyncpg.Record) -> JobRun:
    return msgspec.structs.replace(JobRun(*record), outcome=JobOutcome(record["outcome"]))
