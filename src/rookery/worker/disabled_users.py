"""Makes sure that everything of a disabled account stops, whatever happened to the replica that disabled it.

The change itself is one transaction, so chats and workspaces are told to stop or the account is not disabled. What may
get lost with a killed replica are the hints after it, by which others hear of it at once; and a request that was under
way may start a chat just behind it. Both are made up for here, on every replica, within seconds.
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

# For so long an account counts as disabled recently. Longer than any request may take.
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
        self._told: set[DisabledUser] = set()

    async def run(self) -> NoReturn:
        async for _ in self._clock.ticker(self._every_seconds, "disabled-users"):
            try:
                await self.look()
            except DATABASE_ERRORS as error:
                log.warning("disabled_users_not_looked_at", error=str(error) or type(error).__name__)
        raise AssertionError("unreachable")

    async def look(self) -> int:
        """One round. Returns how many chats had to be told to stop."""
        async with self._pool.acquire() as conn:
            recent = await disabled_users.list_recent(conn, seconds=RECENT_SECONDS)
        self._told &= set(recent)
        stopped = 0
        for user in recent:
            if user not in self._told:
                # Streams of this user end here, and caches of rights are dropped.
                self._publisher.publish([AccessHint(kind="user", id=str(user.id))])
                self._told.add(user)
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
                # Another replica is at it, or a chat is in a state that should not exist. The next round looks again.
                log.info("chats_not_stopped", user_id=user_id, error=str(error))
        if stopped:
            log.info("chats_stopped", user_id=user_id, chats=stopped)
        return stopped
