"""What model calls cost: the spending of the caller, and reports by chat, user, model, purpose or day."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from rookery.client.http import Http
from rookery.client.models import Spend, UsageRow

UsageGroup = Literal["chat", "day", "model", "provider", "purpose", "user"]


class _Report(msgspec.Struct, frozen=True):
    items: tuple[UsageRow, ...]


class AsyncUsageReports:
    """`client.usage`. `client.chats.cost` has the cost of one chat."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def spend(self) -> Spend:
        """Return the caller's spending in the current period, and the limit."""
        return await self._http.read(Spend, "/me/spend")

    async def report(
        self,
        group_by: UsageGroup = "day",
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        user: UUID | None = None,
    ) -> tuple[UsageRow, ...]:
        """Return sums by group, by default of the last 30 days.

        Administrators and auditors get those of all users, or of `user`. By chat, a chat counts with its subagents.
        """
        query = {
            "group_by": group_by,
            "from": None if start is None else start.isoformat(),
            "to": None if end is None else end.isoformat(),
            "user": user,
        }
        return (await self._http.read(_Report, "/usage", query)).items
