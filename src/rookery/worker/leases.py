"""The lease keeper: renews the leases of all runners in one statement, and stops all work if renewals fail.

A lease prevents two replicas from working on one chat. If renewals fail for `self_fence_seconds`, which is shorter than
a lease, this process stops all its work, so that its side effects end before another replica may take the chats. With
peers it stops earlier, because they may take over earlier. If a later renewal finds that the leases are still held, the
work continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import asyncpg

from rookery.loop.tool import CancelReason
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.machine import renew_leases, sweep_leases
from rookery.store.machine.ownership import has_peers
from rookery.telemetry.log import get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.runner_manager import RunnerManager
from rookery.worker.stats import WorkerStats

log = get_logger("worker.leases")


class LeaseKeeper:
    """Renews leases. `connect` opens a separate connection, so that an exhausted pool causes no loss of leases."""

    def __init__(
        self,
        manager: RunnerManager,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        *,
        clock: Clock,
        config: WorkerConfig,
        stats: WorkerStats,
    ) -> None:
        self._manager = manager
        self._connect = connect
        self._clock = clock
        self._config = config
        self._stats = stats
        self._connection: asyncpg.Connection | None = None
        self._renewed_at = clock.monotonic()
        self._swept_at = clock.monotonic()
        self._has_peers = False
        self._limit_changed = asyncio.Event()

    @property
    def is_fenced(self) -> bool:
        """Whether this process has stopped all its work because its leases may be lost."""
        return self._manager.is_fenced

    async def run(self) -> NoReturn:
        """Renew leases until cancelled. A lease outlasts two failed renewals."""
        try:
            async for _ in self._clock.ticker(self._config.heartbeat_interval_seconds, "heartbeat"):
                while not await self.beat():
                    # The next regular renewal would be late. Work might be stopped without need, or stay stopped.
                    await self._clock.sleep(self._config.beat_again_seconds, "beat-again")
                if self._clock.monotonic() - self._swept_at >= self._config.sweep_interval_seconds:
                    await self.sweep()
        finally:
            self._disconnect()
        raise AssertionError("unreachable")

    async def run_watch(self) -> NoReturn:
        """Stop all work when the leases may be lost, even while a renewal hangs."""
        while True:
            remaining = self._renewed_at + self._limit_seconds - self._clock.monotonic()
            if remaining <= 0:
                self._fence_off()
                remaining = self._config.heartbeat_interval_seconds / 4
            self._limit_changed.clear()
            try:
                async with self._clock.deadline(remaining, "self-fence"):
                    await self._limit_changed.wait()
            except DeadlineExceeded:
                continue

    @property
    def _limit_seconds(self) -> float:
        config = self._config
        if not self._has_peers:
            return config.self_fence_seconds
        return min(config.self_fence_seconds, config.self_fence_with_peers_seconds)

    async def beat(self) -> bool:
        """Renew all leases in one statement. Return False if it failed. Leases that the statement does not return are
        lost.
        """
        keys = self._manager.keys()
        started = self._clock.monotonic()
        try:
            async with self._clock.deadline(self._config.database_seconds, "renew-leases"):
                connection = await self._connected()
                held = await renew_leases(connection, keys, self._manager.activities()) if keys else set()
                # Set before the next query, whose failure must not make the renewed leases look lost.
                self._renewed_at = started
                peers = await has_peers(connection, self._manager.worker_id)
        except DATABASE_ERRORS as error:
            log.warning("leases_not_renewed", leases=len(keys), error=str(error) or type(error).__name__)
            self._disconnect()
            return False
        if peers != self._has_peers:
            self._has_peers = peers
            self._limit_changed.set()
        self._stats.lease_renew_seconds.observe(self._clock.monotonic() - started)
        for key in keys:
            # A runner that released its chat during the renewal has lost nothing.
            if key not in held and self._manager.runner(key) is not None:
                self._stats.leases_lost["taken"] += 1
                log.info("lease_lost", chat_id=key[0], runner_id=key[1])
                self._manager.request_cleanup(key, CancelReason.LEASE_LOST)
        if self._manager.is_fenced:
            log.info("leases_renewed_again", leases=len(held))
        self._manager.resume(held)
        return True

    async def sweep(self) -> None:
        """Delete the leases of dead runners. Every replica does this; it is cheap and idempotent."""
        self._swept_at = self._clock.monotonic()
        try:
            async with self._clock.deadline(self._config.database_seconds, "sweep-leases"):
                await sweep_leases(await self._connected())
        except DATABASE_ERRORS as error:
            log.warning("leases_not_swept", error=str(error) or type(error).__name__)
            self._disconnect()

    def _fence_off(self) -> None:
        if self._manager.is_fenced or not self._manager.keys():
            return
        self._stats.leases_lost["fenced"] += len(self._manager.keys())
        log.warning("self_fenced", leases=len(self._manager.keys()), after_seconds=self._limit_seconds)
        self._manager.fence_off()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
