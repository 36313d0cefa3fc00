"""Purge jobs: delete archived chats, unused files, ended sessions and logins, old audit entries, tool runs, and debug
records.

Every replica runs them. Chats are deleted by one replica at a time. The other jobs tolerate that another replica
deletes the same rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import TypeAlias

import asyncpg
import msgspec

from rookery.domain.access.rights import SystemActor, SystemName
from rookery.domain.chat.errors import ChatBusy, ChatNotFound, InvalidState, InvariantViolation
from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock
from rookery.store.authorized.actor_store import Store
from rookery.store.chats import retention, tool_runs
from rookery.store.chats.retention import DueFamily
from rookery.store.db import idempotency
from rookery.store.db.errors import DatabaseUnavailable, LockTimeout
from rookery.store.db.pool import Connection
from rookery.store.debug import recording_state as debug_state
from rookery.store.debug import run_cleanup
from rookery.store.machine import Publisher
from rookery.store.people import audit, logins, one_time_links, sessions, tokens
from rookery.store.people.errors import ArchiveFirst
from rookery.store.settings import limit_settings
from rookery.telemetry.log import get_logger
from rookery.worker.stats import WorkerStats

log = get_logger("worker.purge_jobs")

CLOSE_SECONDS = 5.0
BATCH = 1000
# Limit of one run. The rest waits for the next run.
MAX_REMOVED = 50_000
MAX_FAMILIES = 1000
LISTED_FAMILIES = 100
# Files have up to 10 MiB, and a request that links a file waits until the batch that contains the file is done.
FILE_BATCH = 100
MAX_FILES = 10_000
# A run may have a thousand steps with their attempts, which are deleted with it.
DEBUG_BATCH = 100

Connect: TypeAlias = Callable[[], Awaitable[asyncpg.Connection]]


class Removed(msgspec.Struct, frozen=True):
    """The number of items that a run deleted, and of items that were due but could not be deleted."""

    number: int = 0
    skipped: int = 0


@asynccontextmanager
async def exclusive_connection(
    connect: Connect, try_lock: Callable[[asyncpg.Connection], Awaitable[bool]]
) -> AsyncIterator[asyncpg.Connection | None]:
    """Yield a connection that holds the lock; None if another replica holds it. The lock ends with the connection."""
    conn = await connect()
    try:
        yield conn if await try_lock(conn) else None
        # A graceful close ensures that the lock is free for the next caller.
        with suppress(TimeoutError):
            await conn.close(timeout=CLOSE_SECONDS)
    finally:
        conn.terminate()


class ChatPurge:
    """Deletes families of chats that were archived longer ago than the retention setting. One replica at a time.

    Each family is deleted in its own transaction, so one that cannot be deleted does not block the others. Usage and
    spending stay counted.
    """

    def __init__(
        self,
        store: Store,
        pool: asyncpg.Pool,
        connect: Connect,
        *,
        clock: Clock,
        stats: WorkerStats,
        max_families: int = MAX_FAMILIES,
        listed: int = LISTED_FAMILIES,
    ) -> None:
        self._chats = store.as_actor(SystemActor(SystemName.JOBS)).chats
        self._pool = pool
        self._connect = connect
        self._clock = clock
        self._stats = stats
        self._max_families = max_families
        self._listed = listed
        # Families that could not be deleted in the last run. Each is logged once and not in every run.
        self._stuck: set[ChatId] = set()

    async def __call__(self) -> Removed:
        async with self._pool.acquire() as conn:
            days = (await limit_settings.read_chat_settings(conn)).retention_days
        if days <= 0:
            return Removed()
        async with exclusive_connection(self._connect, retention.try_lock) as locked:
            if locked is None:
                return Removed()
            return await self._remove_due(locked, self._clock.now() - timedelta(days=days))

    async def _remove_due(self, conn: asyncpg.Connection, before: datetime) -> Removed:
        chats = families = 0
        stuck: set[ChatId] = set()
        last: DueFamily | None = None
        while families < self._max_families and len(stuck) < self._max_families:
            limit = min(self._listed, self._max_families - families)
            due = await retention.list_due(conn, before, limit=limit, after=last)
            if not due:
                break
            for last in due:
                removed = await self._try_remove(last.root_id, before)
                if removed is None:
                    stuck.add(last.root_id)
                elif removed:
                    chats, families = chats + removed, families + 1
        self._stuck = stuck
        return Removed(chats, len(stuck))

    async def _try_remove(self, root_id: ChatId, before: datetime) -> int | None:
        """Delete a family and return the number of its chats.

        Return 0 if the family is no longer due, and None if it cannot be deleted.
        """
        try:
            removed = await self._chats.delete(root_id, archived_before=before)
        except (ChatNotFound, ArchiveFirst):
            return 0  # deleted by another replica, or no longer archived
        except (ChatBusy, InvalidState, LockTimeout, InvariantViolation) as error:
            self._tell(root_id, error)
            return None
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, asyncpg.QueryCanceledError):
                raise
            # The family is too large for the statement timeout, and must not block the others forever.
            self._tell(root_id, error)
            return None
        self._stats.purged["chats"] += removed
        return removed

    def _tell(self, root_id: ChatId, error: Exception) -> None:
        if root_id in self._stuck:
            return
        if isinstance(error, InvariantViolation):
            log.exception("family_not_purged", error, chat_id=root_id)  # a bug, which affects only this family
        else:
            log.warning("family_not_purged", chat_id=root_id, error=str(error))


class FilePurge:
    """Deletes files of deleted chats, and files that no chat has linked within a day of their upload."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock, stats: WorkerStats, batch: int = FILE_BATCH) -> None:
        self._pool = pool
        self._clock = clock
        self._stats = stats
        self._batch = batch

    async def __call__(self) -> Removed:
        before = self._clock.now() - retention.UNLINKED_FOR
        total = 0
        for _ in range(MAX_FILES // self._batch):
            async with self._pool.acquire() as conn:
                found, removed = await retention.purge_files(conn, before=before, batch=self._batch)
            self._stats.purged["files"] += removed
            total += removed
            if found < self._batch:
                break
        return Removed(total)


class AuthPurge:
    """Deletes ended sessions and one-time links, expired tokens, old login failures, and old idempotency keys."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock, stats: WorkerStats) -> None:
        self._pool = pool
        self._clock = clock
        self._stats = stats

    async def __call__(self) -> Removed:
        now = self._clock.now()
        removed = [
            await self._remove("sessions", lambda conn: sessions.purge_sessions(conn, now=now)),
            await self._remove("api_tokens", lambda conn: tokens.purge_tokens(conn, now=now)),
            await self._remove("one_time_links", lambda conn: one_time_links.purge_links(conn, now=now)),
            await self._remove("login_failures", lambda conn: logins.purge_failures(conn, now=now)),
            await self._remove("idempotency_keys", lambda conn: idempotency.purge_answers(conn, now=now)),
        ]
        return Removed(sum(removed))

    async def _remove(self, kind: str, remove: Callable[[Connection], Awaitable[int]]) -> int:
        async with self._pool.acquire() as conn:
            removed = await remove(conn)
        self._stats.purged[kind] += removed
        return removed


class AuditPurge:
    """Deletes audit entries that are older than the retention setting."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock, stats: WorkerStats, batch: int = BATCH) -> None:
        self._pool = pool
        self._clock = clock
        self._stats = stats
        self._batch = batch

    async def __call__(self) -> Removed:
        async with self._pool.acquire() as conn:
            days = (await limit_settings.read_audit_settings(conn)).retention_days
        if days <= 0:
            return Removed()
        before = self._clock.now() - timedelta(days=days)
        return await _in_batches(
            self._pool,
            lambda conn: audit.purge_audit(conn, before=before, batch=self._batch),
            kind="audit_log",
            batch=self._batch,
            stats=self._stats,
        )


class ToolRunPurge:
    """Deletes tool runs that are no longer needed."""

    def __init__(self, pool: asyncpg.Pool, *, stats: WorkerStats, batch: int = BATCH) -> None:
        self._pool = pool
        self._stats = stats
        self._batch = batch

    async def __call__(self) -> Removed:
        return await _in_batches(
            self._pool,
            lambda conn: tool_runs.purge(conn, batch=self._batch),
            kind="tool_runs",
            batch=self._batch,
            stats=self._stats,
        )


class DebugSweep:
    """Ends debug runs that are silent or whose replica is gone, and deletes records of removed history."""

    def __init__(self, pool: asyncpg.Pool, publisher: Publisher) -> None:
        self._pool = pool
        self._publisher = publisher

    async def __call__(self) -> Removed:
        async with self._pool.acquire() as conn:
            ended = await run_cleanup.end_stale(conn)
        self._publisher.publish([debug_state.update_hint(run.chat_id, "finalize", run.id) for run in ended])
        async with self._pool.acquire() as conn:
            removed = 0
            for chat_id in await debug_state.list_marked(conn):
                removed += await debug_state.delete_removed(conn, chat_id)
        return Removed(removed)


class DebugPurge:
    """Deletes debug records that are older than the retention setting."""

    def __init__(self, pool: asyncpg.Pool, *, stats: WorkerStats, batch: int = DEBUG_BATCH) -> None:
        self._pool = pool
        self._stats = stats
        self._batch = batch

    async def __call__(self) -> Removed:
        async with self._pool.acquire() as conn:
            days = (await limit_settings.read_debug_settings(conn)).retention_days
        if days <= 0:
            return Removed()
        return await _in_batches(
            self._pool,
            lambda conn: run_cleanup.purge(conn, older_than=timedelta(days=days), batch=self._batch),
            kind="debug_runs",
            batch=self._batch,
            stats=self._stats,
        )


async def _in_batches(
    pool: asyncpg.Pool,
    remove: Callable[[Connection], Awaitable[int]],
    *,
    kind: str,
    batch: int,
    stats: WorkerStats,
) -> Removed:
    """Delete batches until one is not full or the limit of this run is reached."""
    total = 0
    for _ in range(MAX_REMOVED // batch):
        async with pool.acquire() as conn:
            removed = await remove(conn)
        stats.purged[kind] += removed
        total += removed
        if removed < batch:
            break
    return Removed(total)
