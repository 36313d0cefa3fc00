"""The replicas of this installation and their housekeeping jobs. For administrators and auditors."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.routes import Items, Routes, answer
from rookery.api.services import ApiServices
from rookery.store.db.job_runs import JobOutcome, JobRun
from rookery.store.db.replica_presence import ReplicaState


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica.

    `owned_chats` is the number of chats that run there. `streams` is known only for the replica that answers.
    """

    id: UUID
    hostname: str
    pid: int
    index: int
    version: str
    schema_version: int
    state: ReplicaState
    owned_chats: int
    streams: int | None
    started_at: datetime
    heartbeat_at: datetime
    stopping_at: datetime | None


class JobRunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job.

    `removed` rows were deleted; `skipped` rows could not be deleted. `error` is null unless the run failed.
    """

    replica_id: UUID
    started_at: datetime
    finished_at: datetime
    outcome: JobOutcome
    removed: int
    skipped: int
    error: str | None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A housekeeping job and its last runs on any replica, newest first."""

    name: str
    runs: tuple[JobRunView, ...]


def router(services: ApiServices) -> Routes:
    routes = Routes("operations")

    @routes.get("/replicas", "operations.replicas", returns=Items[ReplicaView])
    async def replicas(caller: Caller) -> Response:
        """List all replicas in the database, oldest first."""
        found = await caller.store.installation.replicas()
        owned = await caller.store.installation.owned_chats()
        shown = tuple(
            ReplicaView(
                id=each.replica.id,
                hostname=each.replica.hostname,
                pid=each.replica.pid,
                index=each.replica.index,
                version=each.replica.version,
                schema_version=each.replica.schema_version,
                state=each.state,
                owned_chats=owned.get(each.replica.id, 0),
                streams=len(services.streams.sessions)
                if each.replica.id == services.streams.services.replica_id
                else None,
                started_at=each.started_at,
                heartbeat_at=each.heartbeat_at,
                stopping_at=each.stopping_at,
            )
            for each in found
        )
        return answer(Items(shown))

    @routes.get("/jobs", "operations.jobs", returns=Items[JobView])
    async def jobs(caller: Caller) -> Response:
        """List the housekeeping jobs that have run, ordered by name, each with its last 20 runs."""
        found = await caller.store.installation.job_runs()
        by_job = groupby(found, key=lambda run: run.job)
        return answer(Items(tuple(JobView(name=name, runs=tuple(map(_run, runs))) for name, runs in by_job)))

    return routes


def _run(run: JobRun) -> JobRunView:
    return JobRunView(
        replica_id=run.replica_id,
        started_at=run.started_at,
        finished_at=run.finished_at,
        outcome=run.outcome,
        removed=run.removed,
        skipped=run.skipped,
        error=run.error,
    )
