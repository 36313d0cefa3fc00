"""The lease keeper: renews the leases of all runners in one statement, and stops all work in time when that fails.

A lease keeps two replicas from working on one chat. When renewals fail for `self_fence_seconds`, which is less than a
lease lasts, this process stops all its work: side effects end before another replica may start them. With peers it
stops sooner, because they may take over sooner. If a later renewal finds that the leases are still held, the work goes
on.
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
from rookery.worker.manager import RunnerManager
from rookery.worker.stats import WorkerStats

log = get_logger("worker.leases")


class LeaseKeeper:
    """Keeps the leases. `connect` opens a connection that is not shared: an exhausted pool must not cost leases."""

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
        """Whether this process has stopped its work because its leases may be lost."""
        return self._manager.is_fenced

    async def run(self) -> NoReturn:
        """Renew leases until cancelled. The interval is so much shorter than a lease that two renewals may fail."""
        try:
            async for _ in self._clock.ticker(self._config.heartbeat_interval_seconds, "heartbeat"):
                while not await self.beat():
                    # The next regular renewal may come after work was stopped, or long after it could have gone on.
                    await self._clock.sleep(self._config.beat_again_seconds, "beat-again")
                if self._clock.monotonic() - self._swept_at >= self._config.sweep_interval_seconds:
                    await self.sweep()
        finally:
            self._disconnect()
        raise AssertionError("unreachable")

    async def run_watch(self) -> NoReturn:
        """Fence the process off in time, even while a renewal hangs."""
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
        """Renew all leases in one statement. Leases that are not returned are lost. Return False when it failed."""
        keys = self._manager.keys()
        started = self._clock.monotonic()
        try:
            async with self._clock.deadline(self._config.database_seconds, "renew-leases"):
                connection = await self._connected()
                held = await renew_leases(connection, keys) if keys else set()
                # Set before anything else is read: renewed leases must not be fenced off, whatever happens to the other
                # queries.
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
            # A runner that let go of its chat during the renewal has lost nothing.
            if key not in held and self._manager.runner(key) is not None:
                self._stats.leases_lost["taken"] += 1
                log.info("lease_lost", chat_id=key[0], runner_id=key[1])
                self._manager.request_cleanup(key, CancelReason.LEASE_LOST)
        if self._manager.is_fenced:
            log.info("leases_renewed_again", leases=len(held))
        self._manager.resume(held)
        return True

    async def sweep(self) -> None:
        """Remove the leases of dead runners. Every replica does this: it is cheap and idempotent."""
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
