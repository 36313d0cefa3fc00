"""The installation on behalf of an actor: the audit log, the replicas, and the runs of housekeeping jobs."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.store.authorized.rights import AuthorizedMethods, Grant, authz
from rookery.store.db import installation_overview, job_runs, replica_presence
from rookery.store.db.job_runs import JobRun
from rookery.store.db.replica_presence import ReplicaStatus
from rookery.store.people import audit
from rookery.store.people.audit import EVERY_ENTRY, EntryFilter, EntryPage


class Installation(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.AUDIT, Action.READ)
    async def audit(
        self, at: Grant, wanted: EntryFilter = EVERY_ENTRY, *, limit: int = 50, cursor: str | None = None
    ) -> EntryPage:
        return await audit.list_entries(at.conn, wanted, limit=limit, cursor=cursor)

    @authz(Resource.REPLICA, Action.READ)
    async def replicas(self, at: Grant) -> list[ReplicaStatus]:
        return await replica_presence.list_replicas(at.conn)

    @authz(Resource.REPLICA, Action.READ)
    async def owned_chats(self, at: Grant) -> dict[UUID, int]:
        """Return the number of chats that each replica owns."""
        return await installation_overview.count_owned(at.conn)

    @authz(Resource.REPLICA, Action.READ)
    async def job_runs(self, at: Grant) -> list[JobRun]:
        """Return the last housekeeping runs, by job, newest first."""
        return await job_runs.list_runs(at.conn)
