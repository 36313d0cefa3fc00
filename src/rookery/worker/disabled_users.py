"""The disabled-users loop: stops the chats, streams and workspaces of disabled accounts within seconds.

The transaction that disables an account already marks its chats and workspaces to stop. Two cases remain: a replica
that is killed after the transaction publishes no hints, and a request in progress may start a chat after the
transaction. Every replica runs this loop, which handles both cases.
"""

from __future__ import annotations

from typing import NoReturn
from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import ChatError
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import LockTimeout
from rookery.store.db.hints import AccessHint
from rookery.store.machine import Bundle, Machine, Publisher
from rookery.store.people import disabled_users
from rookery.store.people.disabled_users import DisabledUser
from rookery.telemetry.log import get_logger

log = get_logger("worker.disabled_users")

# An account counts as recently disabled for this long. No request takes longer.
RECENT_SECONDS = 120.0


class DisabledUsers:
    def __init__(
        self, machine: Machine, pool: asyncpg.Pool, *, publisher: Publisher, clock: Clock, every_seconds: float
    ) -> None:
        self._machine = machine
        self._pool = pool
        self._publisher = publisher
        self._clock = clock
        self._every_seconds = every_seconds
        self._announced: set[DisabledUser] = set()

    async def run(self) -> NoReturn:
        async for _ in self._clock.ticker(self._every_seconds, "disabled-users"):
            try:
                await self.run_once()
            except DATABASE_ERRORS as error:
                log.warning("disabled_users_not_looked_at", error=str(error) or type(error).__name__)
        raise AssertionError("unreachable")

    async def run_once(self) -> int:
        """Check all recently disabled accounts once. Return the number of chats that were stopped."""
        async with self._pool.acquire() as conn:
            recent = await disabled_users.list_recent(conn, seconds=RECENT_SECONDS)
        self._announced &= set(recent)
        stopped = 0
        for user in recent:
            if user not in self._announced:
                # The hint ends the user's streams on this replica and drops the cached rights.
                self._publisher.publish([AccessHint(kind="user", id=str(user.id))])
                self._announced.add(user)
            stopped += await self._stop(user.id)
        return stopped

    async def _stop(self, user_id: UUID) -> int:
        async def stop(bundle: Bundle) -> int:
            return await disabled_users.stop_chats(bundle, user_id)

        stopped = 0
        async with self._pool.acquire() as conn:
            is_busy = await disabled_users.has_busy_chats(conn, user_id)
            async with conn.transaction():
                hints = await disabled_users.stop_workspaces(conn, user_id)
        if hints:
            self._publisher.publish(hints)
        if is_busy:
            try:
                stopped = await self._machine.bundle(stop)
            except (ChatError, LockTimeout) as error:
                # Another replica is stopping the chats, or a chat is in an invalid state. The next round checks again.
                log.info("chats_not_stopped", user_id=user_id, error=str(error))
        if stopped:
            log.info("chats_stopped", user_id=user_id, chats=stopped)
        return stopped
