"""Usage and spending on behalf of an actor: of a family of chats, of one user, and of all users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource, SystemActor
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.rights import AuthorizedMethods, Grant, Via, authz
from rookery.store.models import spending, usage_ledger
from rookery.store.models.spending import SpendStatus
from rookery.store.models.usage_ledger import FamilyCost, Figures, GroupBy


class UsageReport(msgspec.Struct, frozen=True):
    """The sums by group, and the display names of groups whose keys are ids."""

    figures: Mapping[str, Figures]
    names: Mapping[str, str]


class Usage(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.COST, Action.READ, via=Via.CHAT)
    async def family_cost(self, at: Grant, chat_id: ChatId) -> FamilyCost:
        return await usage_ledger.family_cost(at.conn, chat_id)

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


async def _report(
    at: Grant, group_by: GroupBy, *, start: datetime, end: datetime, user_id: UUID | None = None
) -> UsageReport:
    figures = await usage_ledger.report(at.conn, group_by, start=start, end=end, user_id=user_id)
    viewer_id = None if isinstance(at.actor, SystemActor) else at.actor.id
    names = await usage_ledger.list_names(at.conn, group_by, keys=figures, viewer_id=viewer_id)
    return UsageReport(figures, names)
