"""The last runs of each housekeeping job, of all replicas together: replica, time and outcome."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db.pool import Connection

KEPT_RUNS = 20  # per job

# The fields of `JobRun`, in its order.
COLUMNS = "job, replica_id, started_at, finished_at, outcome, removed, skipped, error"
# The deletion does not see the row that is inserted with it, hence one less. Two concurrent replicas may leave one run
# more, which the next run of the job deletes.
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
    """A completed run. `skipped` is what should have been deleted and could not; `error` says why it failed."""

    job: str
    replica_id: UUID
    started_at: datetime
    finished_at: datetime
    outcome: JobOutcome
    removed: int = 0
    skipped: int = 0
    error: str | None = None


async def record_run(conn: Connection, run: JobRun) -> None:
    """Store the run, and keep only the newest of its job. The error must be fit to be shown."""
    await conn.execute(RECORD, *msgspec.structs.astuple(run))


async def list_runs(conn: Connection) -> list[JobRun]:
    """List the runs by job, newest first."""
    return [_run(record) for record in await conn.fetch(LIST)]


async def list_last_runs(conn: Connection) -> list[JobRun]:
    """List the newest run of each job, by name."""
    return [_run(record) for record in await conn.fetch(LIST_LAST)]


def _run(record: asyncpg.Record) -> JobRun:
    return msgspec.structs.replace(JobRun(*record), outcome=JobOutcome(record["outcome"]))
