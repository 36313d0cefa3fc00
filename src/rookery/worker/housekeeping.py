"""Housekeeping: periodic jobs that archive chats, index messages, sum up usage, purge rows and set gauges.

Every replica runs all jobs. Jobs that must not run concurrently take a lock in the database; the others tolerate each
other. A job may fail at any point, and its next run does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NoReturn, Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access.rights import Resource, SystemActor, SystemName
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatError, InvariantViolation
from rookery.runtime.clock import Clock
from rookery.store.authorized.actor_store import Store
from rookery.store.chats import approval_rules, auto_archive, search
from rookery.store.chats.auto_archive import DueFamily
from rookery.store.db import job_runs
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import LockTimeout
from rookery.store.db.job_runs import JobOutcome, JobRun
from rookery.store.machine import Bundle, Machine, Publisher, count_pools, set_family_archived
from rookery.store.models import usage_ledger
from rookery.store.people import audit
from rookery.store.people.audit import Event
from rookery.store.settings.limit_settings import read_chat_settings
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import hide_secrets
from rookery.telemetry.tracing import names, spans
from rookery.worker.config import WorkerConfig
from rookery.worker.purge_jobs import (
    AuditPurge,
    AuthPurge,
    ChatPurge,
    Connect,
    DebugPurge,
    DebugSweep,
    FilePurge,
    Removed,
    ToolRunPurge,
    exclusive_connection,
)
from rookery.worker.stats import WorkerStats

log = get_logger("worker.housekeeping")

FIRST_RUN_SECONDS = 30.0
# Soon, because the start may follow a crash that has left debug runs open.
FIRST_SWEEP_SECONDS = 5.0
ROLL_UP_SECONDS = 300.0
PURGE_SECONDS = 600.0
# Jitter keeps replicas that started together from running a job at the same moment.
JITTER = 0.2
MAX_TITLES = 25
MAX_ERROR_CHARS = 500


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """The archived chats of one owner: the titles of the oldest, and the number of the others."""

    owner_id: UUID
    titles: tuple[str, ...]
    more: int


class DigestSender(Protocol):
    """Accepts a digest for delivery, or raises."""

    async def __call__(self, digest: Digest) -> None: ...


async def no_digest(digest: Digest) -> None:
    """Drop the digest. Used by replicas that cannot send mail."""


@dataclass(frozen=True, slots=True)
class Job:
    """A periodic job. `every_seconds` is the time between the end of a run and the start of the next."""

    name: str
    every_seconds: float
    work: Callable[[], Awaitable[Removed | None]]
    first_seconds: float = FIRST_RUN_SECONDS


class Housekeeping:
    """Runs the jobs of a replica. The result of each run is stored, and administrators can read it."""

    def __init__(
        self,
        jobs: tuple[Job, ...],
        *,
        replica_id: UUID,
        pool: asyncpg.Pool,
        clock: Clock,
        rng: Random,
        stats: WorkerStats,
    ) -> None:
        self.jobs = jobs
        self._replica_id = replica_id
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._stats = stats

    async def run(self) -> NoReturn:
        """Run all jobs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for job in self.jobs:
                group.create_task(self._repeat(job), name=f"job-{job.name}")
        raise AssertionError("unreachable")

    async def run_once(self, job: Job) -> bool:
        """Run a job and return whether it succeeded. A failure is counted and logged."""
        started_at, started = self._clock.now(), self._clock.monotonic()
        with spans.span(f"job {job.name}") as span:
            removed, failure = await self._attempt(job)
            span.set({names.REMOVED: removed.number})
            if failure is not None:
                span.fail("job_failed")
        is_done = failure is None
        (self._stats.jobs if is_done else self._stats.jobs_failed)[job.name] += 1
        self._stats.job_seconds.observe((job.name, is_done), self._clock.monotonic() - started)
        await self._write_down(
            JobRun(
                job=job.name,
                replica_id=self._replica_id,
                started_at=started_at,
                finished_at=self._clock.now(),
                outcome=JobOutcome.DONE if is_done else JobOutcome.FAILED,
                removed=removed.number,
                skipped=removed.skipped,
                error=failure,
            )
        )
        return is_done

    async def _attempt(self, job: Job) -> tuple[Removed, str | None]:
        """Run the job. Return the deleted items, and the error as a text without secrets."""
        try:
            return await job.work() or Removed(), None
        except (*DATABASE_ERRORS, msgspec.ValidationError) as error:
            # An invalid setting fails only the job that needs it.
            text = _shown(error)
            log.warning("job_failed", job=job.name, error=text)
        except Exception as error:
            log.exception("job_failed", error, job=job.name)
            # The text of an unexpected error may contain secrets.
            text = f"{type(error).__name__}. See the log of the replica."
        return Removed(), text

    async def _write_down(self, run: JobRun) -> None:
        try:
            async with self._pool.acquire() as conn:
                await job_runs.record_run(conn, run)
        except DATABASE_ERRORS as error:
            # The job itself is done, or has failed for the same reason.
            log.warning("job_run_not_recorded", job=run.job, error=_shown(error))

    async def _repeat(self, job: Job) -> NoReturn:
        await self._clock.sleep(self._jittered(job.first_seconds), f"job-{job.name}")
        while True:
            await self.run_once(job)
            await self._clock.sleep(self._jittered(job.every_seconds), f"job-{job.name}")

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + JITTER * self._rng.random())


def _shown(error: Exception) -> str:
    """Return the error as a text without secrets and without the row that the database may quote."""
    said = str(error.args[0]) if isinstance(error, asyncpg.PostgresError) and error.args else str(error)
    return hide_secrets(said)[:MAX_ERROR_CHARS] or type(error).__name__


def make_jobs(
    machine: Machine,
    pool: asyncpg.Pool,
    connect: Connect,
    *,
    publisher: Publisher,
    clock: Clock,
    config: WorkerConfig,
    stats: WorkerStats,
    send_digest: DigestSender = no_digest,
) -> tuple[Job, ...]:
    """Return all jobs. `connect` opens a separate connection, because a job's lock belongs to its session."""
    archive = AutoArchive(
        machine, pool, connect, clock=clock, stats=stats, send_digest=send_digest, batch=config.archive_batch
    )
    store = Store(pool, machine=machine, publisher=publisher, clock=clock)
    gauges = CapacityGauges(pool, stats=stats)
    return (
        Job("auto_archive", config.archive_interval_seconds, archive),
        Job("search_backfill", config.search_interval_seconds, SearchBackfill(pool)),
        Job("usage_rollup", ROLL_UP_SECONDS, UsageRollUp(pool, clock=clock)),
        Job("purge_chats", PURGE_SECONDS, ChatPurge(store, pool, connect, clock=clock, stats=stats)),
        Job("purge_files", PURGE_SECONDS, FilePurge(pool, clock=clock, stats=stats)),
        Job("purge_tool_runs", PURGE_SECONDS, ToolRunPurge(pool, stats=stats)),
        Job("purge_auth", PURGE_SECONDS, AuthPurge(pool, clock=clock, stats=stats)),
        Job("purge_audit", PURGE_SECONDS, AuditPurge(pool, clock=clock, stats=stats)),
        Job(
            "debug_sweep",
            config.debug_sweep_interval_seconds,
            DebugSweep(pool, publisher),
            first_seconds=FIRST_SWEEP_SECONDS,
        ),
        Job("purge_debug", PURGE_SECONDS, DebugPurge(pool, stats=stats)),
        Job("capacity_gauges", config.capacity_interval_seconds, gauges, first_seconds=0.0),
    )


class AutoArchive:
    """Archives families of chats that were not used for the configured number of days. One replica at a time."""

    def __init__(
        self,
        machine: Machine,
        pool: asyncpg.Pool,
        connect: Connect,
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
            days = (await read_chat_settings(conn)).auto_archive_days
        if days <= 0:
            return
        async with exclusive_connection(self._connect, auto_archive.try_lock) as conn:
            if conn is not None:
                await self._archive_due(conn, days)

    async def _archive_due(self, conn: asyncpg.Connection, days: int) -> None:
        started_at = self._clock.now()
        due = await auto_archive.list_due(conn, auto_archive.cutoff(started_at, days), limit=self._batch)
        archived: dict[UUID, list[str]] = {}
        try:
            for family in due:
                if await self._try_archive(family, started_at):
                    archived.setdefault(family.owner_id, []).append(family.title)
        except DATABASE_ERRORS:
            # Only this run knows what it has archived.
            await self._send_digests(archived)
            raise
        await self._send_digests(archived)

    async def _try_archive(self, family: DueFamily, started_at: datetime) -> bool:
        async def archive(bundle: Bundle) -> list[Chat]:
            root = await bundle.open(family.root_id)
            # The chat may have been used after it was listed, and be at rest again.
            if root.chat.updated_at >= started_at:
                raise bundle.refuse(_InUse())
            members = await set_family_archived(bundle, family.root_id, archived=True)
            event = Event(
                action="chat.archive",
                resource_type=Resource.CHAT,
                resource_id=str(family.root_id),
                extra={"chats": len(members)},
            )
            await audit.record(bundle.conn, event, actor=SystemActor(SystemName.JOBS), now=self._clock.now())
            return members

        try:
            members = await self._machine.bundle(archive)
        except InvariantViolation as error:
            # This is a bug. It affects only this family.
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
                # The other digests are still sent.
                log.exception("digest_not_sent", error, owner_id=owner_id)


class _InUse(Exception):
    """Raised when a family is no longer due for archiving."""


class SearchBackfill:
    """Adds new messages to the search index, the newest first. Replicas share the work by skipping locked rows."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            await search.backfill(conn)


class UsageRollUp:
    """Sums the usage ledger by day, and repeats this for days that may still change."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            await usage_ledger.roll_up(conn, now=self._clock.now())


class CapacityGauges:
    """Counts, for the whole deployment, the chats that run or wait for a slot, and the open approval questions."""

    def __init__(self, pool: asyncpg.Pool, *, stats: WorkerStats) -> None:
        self._pool = pool
        self._stats = stats

    async def __call__(self) -> None:
        async with self._pool.acquire() as conn:
            limits = (await read_chat_settings(conn)).limits
            counts = await count_pools(conn, limits=limits)
            questions = await approval_rules.count_open(conn)
        for pool, found in counts.items():
            self._stats.agents_active[pool] = found.active
            self._stats.agents_queued[pool] = found.queued
        self._stats.approvals_open = questions.count
        self._stats.approval_oldest_seconds = questions.oldest_seconds
