"""Runtime settings that set limits: the groups `chats`, `subagents`, `workspaces`, `audit` and `debug`.

Each `read_..._settings` raises `msgspec.ValidationError` if the stored value cannot be read.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from rookery.domain.access.rights import AdminAccess
from rookery.domain.chat import repetition_brake
from rookery.store.db.pool import Connection
from rookery.store.machine.capacity import Limits
from rookery.store.settings import settings
from rookery.telemetry.log import get_logger

CHATS = "chats"
# Chosen: the look-back of the brake stays short.
MAX_REPEATS = 50
_brake = repetition_brake.Limits()
WORKSPACES = "workspaces"
AUDIT = "audit"
SUBAGENTS = "subagents"
DEBUG = "debug"
MAX_SUBAGENT_MINUTES = 1440
# The largest limit of a pool. Chosen: larger than any deployment needs, and far below the range of the database's
# integers.
MAX_RUNNING = 1_000_000
MAX_FILE_MIB = 1_000_000_000
_defaults = Limits()

log = get_logger("store.settings.limit_settings")


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of chats. 0 days mean never, and 0 for a pool or for files means no limit.

    `retention_days` are counted from the archiving of a chat. After `repeat_notice_after` equal calls with equal
    results, the model gets a notice; call number `repeat_ask_after` waits for the user. 0 switches them off. Smaller
    numbers than those of `brake` count as those.
    """

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0
    auto_archive_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0
    admin_access: AdminAccess = AdminAccess.BREAK_GLASS
    running_roots: Annotated[int, msgspec.Meta(ge=0, le=MAX_RUNNING)] = _defaults.running_roots
    running_subagents: Annotated[int, msgspec.Meta(ge=0, le=MAX_RUNNING)] = _defaults.running_subagents
    dynamic_tool_timeout_seconds: Annotated[int, msgspec.Meta(ge=10, le=86_400)] = 300
    # Chosen: about a thousand files of the largest size.
    max_file_mib_per_user: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_MIB)] = 10_240
    repeat_notice_after: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATS)] = _brake.notice_after
    repeat_ask_after: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATS)] = _brake.ask_after

    @property
    def limits(self) -> Limits:
        return Limits(running_roots=self.running_roots, running_subagents=self.running_subagents)

    @property
    def brake(self) -> repetition_brake.Limits:
        notice_after, ask_after = self.repeat_notice_after, self.repeat_ask_after
        return repetition_brake.Limits(
            notice_after=notice_after and max(notice_after, repetition_brake.MIN_NOTICE_AFTER),
            ask_after=ask_after and max(ask_after, repetition_brake.MIN_ASK_AFTER),
        )


class WorkspaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of workspaces. A number of 0 means no limit, and a time of 0 means never.

    `max_idle_minutes` is the upper limit of the idle times of templates.
    """

    max_per_user: Annotated[int, msgspec.Meta(ge=0)] = 20
    max_running_per_user: Annotated[int, msgspec.Meta(ge=0)] = 5
    max_running_per_node: Annotated[int, msgspec.Meta(ge=0)] = 50
    max_idle_minutes: Annotated[int, msgspec.Meta(ge=0, le=525_600)] = 0
    delete_after_stopped_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0

    @property
    def max_idle(self) -> timedelta:
        return timedelta(minutes=self.max_idle_minutes)

    def capped_idle(self, wanted: timedelta) -> timedelta:
        """Return the smaller of the wanted idle time and `max_idle_minutes`.

        If one of them is zero, it sets no limit.
        """
        if not self.max_idle:
            return wanted
        return min(wanted, self.max_idle) if wanted else self.max_idle


class SubagentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of subagents.

    `max_minutes` is the longest turn of a subagent. After `stall_minutes` without progress, a subagent is reported as
    stalled. With `wake_parent`, a chat at rest is resumed when one of its subagents ends.
    """

    enabled: bool = True
    max_minutes: Annotated[int, msgspec.Meta(ge=1, le=MAX_SUBAGENT_MINUTES)] = 60
    stall_minutes: Annotated[int, msgspec.Meta(ge=1, le=MAX_SUBAGENT_MINUTES)] = 10
    wake_parent: bool = True

    @property
    def stall_after(self) -> timedelta:
        return timedelta(minutes=self.stall_minutes)


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The retention of the audit log. With 0 days, entries are kept forever."""

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 365


class DebugSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Debug records. With `allow_users`, owners may switch recording on, for all or single chats.

    With `record_on_error`, a turn that is not recorded is kept in memory and stored if it ends with an error. With 0
    days, records are kept until their chat is archived or deleted.
    """

    allow_users: bool = False
    retention_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 30
    record_on_error: bool = True


def parse_chat_settings(stored: object | None) -> ChatSettings:
    """Parse the value of `settings.find_setting`. Raises `msgspec.ValidationError` if it cannot be read."""
    return ChatSettings() if stored is None else msgspec.convert(stored, ChatSettings)


def read_subagent_settings(stored: object | None) -> SubagentSettings:
    """Return the group of this stored value; the defaults if it cannot be read."""
    try:
        return SubagentSettings() if stored is None else msgspec.convert(stored, SubagentSettings)
    except msgspec.ValidationError as error:
        log.warning("setting_unreadable", setting=SUBAGENTS, error=str(error))
        return SubagentSettings()


async def read_chat_settings(conn: Connection) -> ChatSettings:
    return parse_chat_settings(await settings.find_setting(conn, CHATS))


async def read_workspace_settings(conn: Connection) -> WorkspaceSettings:
    stored = await settings.find_setting(conn, WORKSPACES)
    return WorkspaceSettings() if stored is None else msgspec.convert(stored, WorkspaceSettings)


async def read_audit_settings(conn: Connection) -> AuditSettings:
    stored = await settings.find_setting(conn, AUDIT)
    return AuditSettings() if stored is None else msgspec.convert(stored, AuditSettings)


def parse_debug_settings(stored: object | None) -> DebugSettings:
    """Parse the value of `settings.find_setting`. Raises `msgspec.ValidationError` if it cannot be read."""
    return DebugSettings() if stored is None else msgspec.convert(stored, DebugSettings)


async def read_debug_settings(conn: Connection) -> DebugSettings:
    return parse_debug_settings(await settings.find_setting(conn, DEBUG))
