"""The wait for a connection of a pool, and a process with an exhausted pool, which takes no more chats."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rookery.app.health import ReplicaHealth
from rookery.store.db.pool import Database, DatabaseConfig, PoolWaits
from rookery.worker.config import WorkerConfig
from tests.eventually import until


def test_wait_that_goes_on_and_one_that_just_ended_tell_of_the_next() -> None:
    now = 100.0
    waits = PoolWaits(lambda: now)
    first = waits.begin()
    now += 2
    waits.begin()
    now += 1
    longest = waits.current_seconds
    waits.end(first)
    ended = waits.current_seconds
    now += 1.5

    assert (longest, ended, waits.current_seconds) == (3, 3, 2.5)
    assert (waits.seconds.count, waits.seconds.total) == (1, 3)


async def test_process_whose_pool_is_waited_for_is_not_fit_for_more_chats(database_url: str) -> None:
    limits = WorkerConfig(max_pool_wait_seconds=0.01)
    calm: Any = SimpleNamespace(held=True, usual_seconds=0.0)
    async with await Database.connect(DatabaseConfig(database_url, pool_worker=1)) as database:
        health = ReplicaHealth(database, calm, calm, calm)
        async with database.worker.acquire():
            waiting = asyncio.ensure_future(database.worker.fetchval("SELECT 1"))
            await until(lambda: not health.is_fit(limits))
        assert await waiting == 1

    assert database.waits()["worker"].seconds.count >= 3
