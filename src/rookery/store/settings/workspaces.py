"""The group `workspaces` of the runtime settings: limits of workspaces, and when they are stopped and deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from rookery.store.db.pool import Connection
from rookery.store.settings import settings

SETTING = "workspaces"


class WorkspaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """0 means no limit for the numbers, and never for the times. `max_idle_minutes` caps the value of templates."""

    max_per_user: Annotated[int, msgspec.Meta(ge=0)] = 20
    max_running_per_user: Annotated[int, msgspec.Meta(ge=0)] = 5
    max_running_per_node: Annotated[int, msgspec.Meta(ge=0)] = 50
    max_idle_minutes: Annotated[int, msgspec.Meta(ge=0, le=525_600)] = 0
    delete_after_stopped_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0

    @property
    def max_idle(self) -> timedelta:
        return timedelta(minutes=self.max_idle_minutes)

    def capped_idle(self, wanted: timedelta) -> timedelta:
        """Return the idle time of a workspace, capped; never stopping counts as longer than any time."""
        if not self.max_idle:
            return wanted
        return min(wanted, self.max_idle) if wanted else self.max_idle


async def read_workspace_settings(conn: Connection) -> WorkspaceSettings:
    stored = await settings.find_setting(conn, SETTING)
    return WorkspaceSettings() if stored is None else msgspec.convert(stored, WorkspaceSettings)
