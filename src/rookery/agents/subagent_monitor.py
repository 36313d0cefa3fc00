"""The monitor of subagents: stops overdue subagents, and resumes parents whose subagents have ended.

Normally, the end of a subagent's turn resumes the parent immediately (`wake`, called after the commit). The monitor's
loop handles ends whose replica died before `wake`. Every replica runs the loop, and each change is checked again under
the lock of the chat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn
from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import ChatError
from rookery.models.directory import Directory
from rookery.runtime.clock import Clock
from rookery.store.chats import subagents
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import LockTimeout
from rookery.store.machine import Machine, Tx, interrupt, keep_at_rest, try_wake
from rookery.store.settings import limit_settings
from rookery.store.settings.limit_settings import SubagentSettings
from rookery.telemetry.log import get_logger

log = get_logger("agents.subagent_monitor")

# The number of chats in one round. The next round handles the others.
BATCH = 100
DEADLINE_NOTE = "The subagent reached its time limit."


class MonitorStats:
    """The monitor's counters in this process, for the metrics."""

    __slots__ = ("overdue", "woken")

    def __init__(self) -> None:
        self.overdue = 0
        self.woken = 0


class SubagentMonitor:
    """The monitor of a replica."""

    def __init__(
        self, machine: Machine, directory: Directory, *, pool: asyncpg.Pool, clock: Clock, every_seconds: float = 5.0
    ) -> None:
        self._machine = machine
        self._directory = directory
        self._pool = pool
        self._clock = clock
        self._every_seconds = every_seconds
        self.stats = MonitorStats()

    async def run(self) -> NoReturn:
        """Run rounds until cancelled."""
        async for _ in self._clock.ticker(self._every_seconds, "subagent-monitor"):
            try:
                await self.look()
            except DATABASE_ERRORS as error:
                log.warning("subagents_not_monitored", error=str(error) or type(error).__name__)
        raise AssertionError("unreachable")

    async def look(self) -> None:
        """Run one round: stop overdue children and resume parents.

        Locked chats come last, because a change waits up to 15 seconds for the lock of its chat.
        """
        async with self._pool.acquire() as conn:
            overdue = await subagents.list_overdue(conn, limit=BATCH)
            waiting = await subagents.list_to_wake(conn, limit=BATCH)
            unlocked = await subagents.find_unlocked(conn, [*overdue, *waiting])
        changes = [*((self._stop, chat_id) for chat_id in overdue), *((self._wake, chat_id) for chat_id in waiting)]
        for change, chat_id in sorted(changes, key=lambda each: each[1] not in unlocked):
            with _tolerated_lock(chat_id):
                await change(chat_id)

    async def wake(self, parent_id: UUID) -> None:
        """Resume a parent at rest if one of its children has ended."""
        async with self._pool.acquire() as conn:
            # Most parents are running. They learn of the end with their next step, so they need not be locked.
            may_wake = await subagents.may_wake(conn, parent_id)
        if may_wake:
            await self._wake(parent_id)

    async def settings(self) -> SubagentSettings:
        return await read_settings(self._directory)

    async def _wake(self, parent_id: UUID) -> None:
        if not (await self.settings()).wake_parent:
            # Otherwise a change of the setting would resume all chats whose subagents have ended in the meantime.
            await keep_at_rest(self._machine, parent_id)
        elif await try_wake(self._machine, parent_id) is not None:
            self.stats.woken += 1

    async def _stop(self, chat_id: UUID) -> None:
        async def stop(tx: Tx) -> bool:
            if not await subagents.stop_at_deadline(tx.conn, chat_id):
                return False
            await interrupt(tx, note=DEADLINE_NOTE)
            return True

        try:
            if await self._machine.chat(chat_id).update(stop):
                self.stats.overdue += 1
                log.info("subagent_overdue", chat_id=chat_id)
        except ChatError as error:
            # The child has ended, or is already being stopped.
            log.debug("subagent_not_stopped", chat_id=chat_id, error=str(error))


@contextlib.contextmanager
def _tolerated_lock(chat_id: UUID) -> Iterator[None]:
    """Skip a chat that stays locked. The next round handles it."""
    try:
        yield
    except LockTimeout as error:
        log.warning("subagent_locked", chat_id=chat_id, error=str(error))


async def read_settings(directory: Directory) -> SubagentSettings:
    """Return the settings of subagents; the defaults if they cannot be read."""
    return limit_settings.read_subagent_settings(await directory.setting(limit_settings.SUBAGENTS))
