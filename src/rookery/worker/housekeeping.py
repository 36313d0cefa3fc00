"""What is done now and then, beside all chats: archiving, indexing, sums, removal of what is old, and gauges.

Every replica has all jobs; those that must not run twice at once take a lock in the database, the others leave each
other's rows alone. Each may fail or be cut off at any point: the next run makes up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NoReturn, Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.chat.chats import Chat
from rookery.chat.errors import ChatError, InvariantViolation
from rookery.clock import Clock
from rookery.log import get_logger
from rookery.store import auto_archive, chat_settings, search, tool_runs, usage_daily
from rookery.store.auto_archive import DueFamily
from rookery.store.errors import LockTimeout
from rookery.store.machine import Bundle, Machine, count_pools, set_family_archived
from rookery.worker.config import WorkerConfig
from rookery.worker.database import DATABASE_ERRORS
from rookery.worker.purging import AuditPurge, AuthPurge
from rookery.worker.stats import WorkerStats

log = get_logger("worker.housekeeping")

# debug-and-operations.md, "Jobs".
FIRST_RUN_SECONDS = 30.0
ROLL_UP_SECONDS = 300.0
PURGE_SECONDS = 600.0
# Chosen: so that replicas which were started together do not work at the same moments.
JITTER = 0.2
PURGE_BATCH = 1000
MAX_PURGED = 50_000
MAX_TITLES = 25


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """What was archived of one owner: the first titles, oldest chats first, and how many more."""

    owner_id: UUID
    titles: tuple[str, ...]
    more: int


class DigestSender(Protocol):
    """Takes a digest for delivery, or raises."""

    async def __call__(self, digest: Digest) -> None: ...


async def no_digest(digest: Digest) -> None:
    """For replicas without a way to write to people."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do again and again. `every_seconds` lie between the end of a run and the start of the next."""

    name: str
    every_seconds: float
    work: Callable[[], Awaitable[object]]
    first_seconds: float = FIRST_RUN_SECONDS


class Housekeeping:
    """The jobs of a replica, and the loop of each."""

    def __init__(self, jobs: tuple[Job, ...], *, clock: Clock, rng: Random, stats: WorkerStats) -> None:
        self.jobs = jobs
        self._clock = clock
        self._rng = rng
        self._stats = stats

    async def run(self) -> NoReturn:
        """Do all jobs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for job in self.jobs:
                group.create_task(self._repeat(job), name=f"job-{job.name}")
        raise AssertionError("unreachable")

    async def run_once(self, job: Job) -> bool:
        """Whether the job came through. One that did not is counted and logged; nothing else suffers from it."""
        started = self._clock.monotonic()
        try:
            await job.work()
        except (*DATABASE_ERRORS, msgspec.ValidationError) as error:
            # A setting that cannot be read fails only the job that needs it.
            log.warning("job_failed", job=job.name, error=str(error) or type(error).__name__)
        except Exception as error:
            log.exception("job_failed", error, job=job.name)
        else:
            self._stats.jobs[job.name] += 1
            self._stats.job_seconds.observe((job.name, True), self._clock.monotonic() - started)
            return True
        self._stats.jobs_failed[job.name] += 1
        self._stats.job_seconds.observe((job.name, False), self._clock.monotonic() - started)
        return False

    async def _repeat(self, job: Job) -> NoReturn:
        await self._clock.sleep(self._jittered(job.first_seconds), f"job-{job.name}")
        while True:
            await self.run_once(job)
            await self._clock.sleep(self._jittered(job.every_seconds), f"job-{job.name}")

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + JITTER * self._rng.random())


def make_jobs(
    machine: Machine,
    pool: asyncpg.Pool,
    connect: Callable[[], Awaitable[asyncpg.Connection]],
    *,
    clock: Clock,
    config: WorkerConfig,
    stats: WorkerStats,
    send_digest: DigestSender = no_digest,
) -> tuple[Job, ...]:
    """Every job there is. `connect` gives a connection of its own, for a lock that lives in a session."""
    archive = AutoArchive(
        machine, pool, connect, clock=clock, stats=stats, send_digest=send_digest, batch=config.archive_batch
    )
    gauges = CapacityGauges(pool, stats=stats)
    return (
        Job("auto_archive", config.archive_interval_seconds, archive),
        Job("search_backfill", config.search_interval_seconds, SearchBackfill(pool)),
        Job("usage_rollup", ROLL_UP_SECONDS, UsageRollUp(pool, clock=clock)),
        Job("purge_tool_runs", PURGE_SECONDS, ToolRunPurge(pool, stats=stats)),
        Job("purge_auth", PURGE_SECONDS, AuthPurge(pool, clock=clock, stats=stats)),
        Job("purge_audit", PURGE_SECONDS, AuditPurge(pool, clock=clock, stats=stats)),
        Job("capacity_gauges", config.capacity_interval_seconds, gauges, first_seconds=0.0),
    )


class AutoArchive:
    """Archives families that nobody has used for days, if administrators want that. On one replica at a time."""

    def __init__(
        self,
        machine: Machine,
        pool: asyncpg.Pool,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        *,
        clock: Clock,
        stats: WorkerStats,
        send_digest: DigestSender = no_digest,
        batch: int = auto_archive.MAX_FAMILIES,
    ) -> None:
        self._machine = machine
        self._pool = pool
        self._connect = connect
        self._clock = clock
        self._stats = stats
        self._send_digest = send_digest
        self._batch = batch

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            days = (await chat_settings.read_chat_settings(conn)).auto_archive_days
        if days <= 0:
            return
        async with self._locked() as conn:
            if conn is not None:
                await self._archive_due(conn, days)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[asyncpg.Connection | None]:
        """A connection that holds the lock, or None when another replica is at it. The lock ends with the session."""
        conn = await self._connect()
        try:
            yield conn if await auto_archive.try_lock(conn) else None
        finally:
            conn.terminate()

    async def _archive_due(self, conn: asyncpg.Connection, days: int) -> None:
        started_at = self._clock.now()
        due = await auto_archive.list_due(conn, auto_archive.cutoff(started_at, days), limit=self._batch)
        archived: dict[UUID, list[str]] = {}
        try:
            for family in due:
                if await self._try_archive(family, started_at):
                    archived.setdefault(family.owner_id, []).append(family.title)
        except DATABASE_ERRORS:
            # No later run knows what this one did until now.
            await self._send_digests(archived)
            raise
        await self._send_digests(archived)

    async def _try_archive(self, family: DueFamily, started_at: datetime) -> bool:
        async def archive(bundle: Bundle) -> list[Chat]:
            root = await bundle.open(family.root_id)
            # Between the list and this lock somebody may have come back to the chat, and be done already.
            if root.chat.updated_at >= started_at:
                raise bundle.refuse(_InUse())
            return await set_family_archived(bundle, family.root_id, archived=True)

        try:
            members = await self._machine.bundle(archive)
        except InvariantViolation as error:
            # A bug, and this family's alone.
            log.exception("family_not_archived", error, chat_id=family.root_id)
            return False
        except (ChatError, LockTimeout, _InUse) as error:
            log.debug("family_not_archived", chat_id=family.root_id, error=str(error))
            return False
        self._stats.auto_archived += len(members)
        return True

    async def _send_digests(self, archived: Mapping[UUID, list[str]]) -> None:
        for owner_id, titles in archived.items():
            digest = Digest(owner_id=owner_id, titles=tuple(titles[:MAX_TITLES]), more=max(len(titles) - MAX_TITLES, 0))
            try:
                await self._send_digest(digest)
            except Exception as error:
                # The others still get theirs.
                log.exception("digest_not_sent", error, owner_id=owner_id)


class _InUse(Exception):
    """Not due any more."""


class SearchBackfill:
    """Makes new messages searchable, the newest first. Replicas share the work: each takes rows that are free."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            await search.backfill(conn)


class UsageRollUp:
    """Sums of the ledger by day, computed anew for the days that may still change."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            await usage_daily.roll_up(conn, now=self._clock.now())


class ToolRunPurge:
    """Removes runs of tools that nobody will ask for again. Replicas share the work, as they do for search."""

    def __init__(self, pool: asyncpg.Pool, *, stats: WorkerStats) -> None:
        self._pool = pool
        self._stats = stats

    async def __call__(self) -> None:
        for _ in range(MAX_PURGED // PURGE_BATCH):
            async with self._pool.acquire() as conn:
                removed = await tool_runs.purge(conn, batch=PURGE_BATCH)
            self._stats.purged["tool_runs"] += removed
            if removed < PURGE_BATCH:
                return


class CapacityGauges:
    """How many chats of each pool are at work, and how many wait for a slot, in the whole deployment."""

    def __init__(self, pool: asyncpg.Pool, *, stats: WorkerStats) -> None:
        self._pool = pool
        self._stats = stats

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            limits = (await chat_settings.read_chat_settings(conn)).limits
            counts = await count_pools(conn, limits=limits)
        for pool, found in counts.items():
            self._stats.agents_active[pool] = found.active
            self._stats.agents_queued[pool] = found.queued
