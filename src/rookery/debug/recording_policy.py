"""The recording policy: decides from cached settings, once for each turn or single call, whether it is recorded.

The first rule that applies decides: the operator forces recording; administrators do not allow it; the root chat has it
switched on or off; the owner's preference. A value that cannot be read counts as off.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.models.directory import Directory
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.debug import recording_state
from rookery.store.debug.record_rows import DebugMode
from rookery.store.settings import limit_settings
from rookery.store.settings.limit_settings import DebugSettings
from rookery.telemetry.log import get_logger

log = get_logger("debug.recording_policy")


class Recording(StrEnum):
    """The recording of a turn. `ON_ERROR`: the turn is kept in memory, and is stored if it ends with an error."""

    FULL = "full"
    ON_ERROR = "on_error"
    OFF = "off"


def is_recorded(*, is_forced: bool, allow_users: bool, mode: DebugMode, preference: bool) -> bool:
    """Return whether the chats of a family are recorded."""
    if is_forced or not allow_users:
        return is_forced
    return preference if mode is DebugMode.INHERIT else mode is DebugMode.ON


class Policy:
    """The policy of the deployment. Each process has one. `is_forced` is the start setting `debug_force`."""

    def __init__(self, directory: Directory, *, pool: asyncpg.Pool, is_forced: bool = False) -> None:
        self._directory = directory
        self._pool = pool
        self.is_forced = is_forced

    async def of_turn(self, *, wants_debug: bool | None) -> Recording:
        """Return the recording of a turn.

        `wants_debug` is the choice of the root chat or its owner; None if neither has chosen. A turn of a chat that
        must never be recorded is not kept in memory either.
        """
        if self.is_forced:
            return Recording.FULL
        settings = await self._settings()
        if settings is None:
            return Recording.OFF
        if settings.allow_users and wants_debug:
            return Recording.FULL
        return Recording.ON_ERROR if settings.record_on_error and wants_debug is not False else Recording.OFF

    async def records_call(self, chat_id: UUID) -> bool:
        """Return whether a single call for a chat is recorded, for example a title."""
        if self.is_forced:
            return True
        settings = await self._settings()
        if settings is None or not settings.allow_users:
            return False
        try:
            async with self._pool.acquire() as conn:
                return await recording_state.wants_debug(conn, chat_id)
        except DATABASE_ERRORS as error:
            self._warn(error)
            return False

    async def _settings(self) -> DebugSettings | None:
        try:
            return limit_settings.parse_debug_settings(await self._directory.setting(limit_settings.DEBUG))
        except (msgspec.ValidationError, *DATABASE_ERRORS) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        log.warning("debug_settings_unreadable", error=str(error) or type(error).__name__)
