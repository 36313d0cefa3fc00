"""Jobs that remove what has had its time: of logins what is no longer good, and entries of the audit log.

Every replica runs them. Rows that another one removes at the same moment are waited for and then found gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import asyncpg

from rookery.clock import Clock
from rookery.store import audit, audit_settings, idempotency, links, logins, sessions
from rookery.store.pool import Connection
from rookery.worker.stats import WorkerStats

BATCH = 1000
# In one run; what is left has waited for months and can wait for the next.
MAX_REMOVED = 50_000


class AuthPurge:
    """Sessions and links that have ended, failed logins that count no longer, answers nobody will ask for again."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock, stats: WorkerStats) -> None:
        self._pool = pool
        self._clock = clock
        self._stats = stats

    async def __call__(self) -> None:
        now = self._clock.now()
        await self._remove("sessions", lambda conn: sessions.purge_sessions(conn, now=now))
        await self._remove("one_time_links", lambda conn: links.purge_links(conn, now=now))
        await self._remove("login_failures", lambda conn: logins.purge_failures(conn, now=now))
        await self._remove("idempotency_keys", lambda conn: idempotency.purge_answers(conn, now=now))

    async def _remove(self, kind: str, remove: Callable[[Connection], Awaitable[int]]) -> None:
        async with self._pool.acquire() as conn:
            self._stats.purged[kind] += await remove(conn)


class AuditPurge:
    """Entries of the audit log beyond the days that administrators want to keep them."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock, stats: WorkerStats, batch: int = BATCH) -> None:
        self._pool = pool
        self._clock = clock
        self._stats = stats
        self._batch = batch

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            days = (await audit_settings.read_audit_settings(conn)).retention_days
        if days > 0:
            await self._remove(self._clock.now() - timedelta(days=days))

    async def _remove(self, before: datetime) -> None:
        for _ in range(MAX_REMOVED // self._batch):
            async with self._pool.acquire() as conn:
                removed = await audit.purge_audit(conn, before=before, batch=self._batch)
            self._stats.purged["audit_log"] += removed
            if removed < self._batch:
                return
