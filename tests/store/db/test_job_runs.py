"""Stored runs of housekeeping jobs: the newest ones of each job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.store.db import job_runs
from rookery.store.db.job_runs import JobOutcome, JobRun
from tests.store.people.account_rows import open_pool

NOW = datetime(2030, 1, 31, 15, 30, tzinfo=UTC)
HERE = uuid4()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with open_pool(database_url) as opened:
        yield opened


def a_run(job: str, number: int = 0, *, replica_id: UUID = HERE, error: str | None = None) -> JobRun:
    at = NOW + timedelta(minutes=number)
    outcome = JobOutcome.DONE if error is None else JobOutcome.FAILED
    return JobRun(job, replica_id, at, at + timedelta(seconds=1), outcome, removed=number, error=error)


async def test_runs_are_listed_by_job_and_the_newest_first(pool: asyncpg.Pool) -> None:
    runs = [a_run("sweep", 1), a_run("archive", 2, error="The disk is full."), a_run("sweep", 3)]
    async with pool.acquire() as conn:
        for run in runs:
            await job_runs.record_run(conn, run)

        assert await job_runs.list_runs(conn) == [runs[1], runs[2], runs[0]]
        assert await job_runs.list_last_runs(conn) == [runs[1], runs[2]]


async def test_newest_twenty_of_each_job_are_kept(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as conn:
        await job_runs.record_run(conn, a_run("rare"))
        for number in range(23):
            await job_runs.record_run(conn, a_run("often", number))

        found = await job_runs.list_runs(conn)

    assert [run.removed for run in found if run.job == "often"] == list(range(22, 2, -1))
    assert [run.job for run in found].count("rare") == 1


async def test_replicas_that_write_at_once_lose_nothing_new(pool: asyncpg.Pool) -> None:
    async def write(replica_id: UUID) -> None:
        for number in range(15):
            async with pool.acquire() as conn:
                await job_runs.record_run(conn, a_run("sweep", number, replica_id=replica_id))

    await asyncio.gather(*(write(uuid4()) for _ in range(4)))
    async with pool.acquire() as conn:
        await job_runs.record_run(conn, a_run("sweep", 99))
        found = await job_runs.list_runs(conn)

    assert len(found) == job_runs.KEPT_RUNS
    assert found[0].removed == 99
