"""Reports on behalf of an actor: usage and spending, the audit log, replicas, and housekeeping runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource, SystemActor
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.rights import AuthorizedMethods, Grant, Via, authz
from rookery.store.db import job_runs, overview, replica_presence
from rookery.store.db.job_runs import JobRun
from rookery.store.db.replica_presence import ReplicaStatus
from rookery.store.models import spending, usage
from rookery.store.models.spending import SpendStatus
from rookery.store.models.usage import FamilyCost, Figures, GroupBy
from rookery.store.people import audit
from rookery.store.people.audit import EVERY_ENTRY, EntryFilter, EntryPage


class UsageReport(msgspec.Struct, frozen=True):
    """The sums by group, and the display names of groups whose keys are ids."""

    figures: Mapping[str, Figures]
    names: Mapping[str, str]


class Reports(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.COST, Action.READ, via=Via.CHAT)
    async def family_cost(self, at: Grant, chat_id: ChatId) -> FamilyCost:
        return await usage.family_cost(at.conn, chat_id)

    @authz(Resource.USAGE, Action.READ, via=Via.USER)
    async def usage_of(
        self, at: Grant, user_id: UUID, group_by: GroupBy, *, start: datetime, end: datetime
    ) -> UsageReport:
        return await _report(at, group_by, start=start, end=end, user_id=user_id)

    @authz(Resource.USAGE, Action.LIST_ALL)
    async def usage_of_all(self, at: Grant, group_by: GroupBy, *, start: datetime, end: datetime) -> UsageReport:
        return await _report(at, group_by, start=start, end=end)

    @authz(Resource.USAGE, Action.READ, via=Via.USER)
    async def spend(self, at: Grant, user_id: UUID) -> SpendStatus:
        return await spending.spend_status(at.conn, user_id, now=at.now)

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
        return await overview.count_owned(at.conn)

    @authz(Resource.REPLICA, Action.READ)
    async def job_runs(self, at: Grant) -> list[JobRun]:
        """Return the last housekeeping runs, by job, newest first."""
        return await job_runs.list_runs(at.conn)


async def _report(
    at: Grant, group_by: GroupBy, *, start: datetime, end: datetime, user_id: UUID | None = None
) -> UsageReport:
    figures = await usage.report(at.conn, group_by, start=start, end=end, user_id=user_id)
    viewer_id = None if isinstance(at.actor, SystemActor) else at.actor.id
    names = await usage.list_names(at.conn, group_by, keys=figures, viewer_id=viewer_id)
    return UsageReport(figures, names)
