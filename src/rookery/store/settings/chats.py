"""The group `chats` of the runtime settings: retention periods, and limits of working chats."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rookery.domain.access.rights import AdminAccess
from rookery.store.db.pool import Connection
from rookery.store.machine.capacity import Limits
from rookery.store.settings import settings

SETTING = "chats"
# Of a pool. Chosen: more than any deployment runs, and far below the limits of the database's integers.
MAX_RUNNING = 1_000_000
_defaults = Limits()


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """0 means never for the days, and no limit for the pools. `retention_days` begin when a chat is archived."""

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 30
    auto_archive_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0
    admin_access: AdminAccess = AdminAccess.BREAK_GLASS
    running_roots: Annotated[int, msgspec.Meta(ge=0, le=MAX_RUNNING)] = _defaults.running_roots
    running_subagents: Annotated[int, msgspec.Meta(ge=0, le=MAX_RUNNING)] = _defaults.running_subagents
    dynamic_tool_timeout_seconds: Annotated[int, msgspec.Meta(ge=10, le=86_400)] = 300

    @property
    def limits(self) -> Limits:
        return Limits(running_roots=self.running_roots, running_subagents=self.running_subagents)


def parse(stored: object | None) -> ChatSettings:
    """Parse the value of `settings.find_setting`. Raises `msgspec.ValidationError` if it cannot be read."""
    return ChatSettings() if stored is None else msgspec.convert(stored, ChatSettings)


async def read_chat_settings(conn: Connection) -> ChatSettings:
    return parse(await settings.find_setting(conn, SETTING))
