"""The cost of hints: sent inside each transaction, after each commit, or by one publisher.

A transaction with a NOTIFY holds a lock of the whole cluster during its commit, so such commits run one after the
other. Sixteen writers commit one UPDATE each as often as they can, while four connections listen. The same is done
without hints, in alternation, and each way is compared with that.

    python benchmarks/hints.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
import uvloop

from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.hints import ChatHint
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Notifier

WRITERS, LISTENERS = 16, 4
CHANNEL = "rookery_update"
# Estimates with room for noise: hints may cost less than the commits, and less than hints inside transactions.
PUBLISHER_BUDGET, INSIDE_BUDGET = 2.0, 1.0

CHANGE = "UPDATE bench_rows SET n = n + 1 WHERE id = $1 RETURNING n"
NOTIFY = "SELECT pg_notify($1, $2)"

Commit = Callable[[UUID], Awaitable[None]]


def hint(chat_id: UUID, version: int) -> ChatHint:
    return ChatHint(
        chat_id=chat_id,
        snapshot_version=version,
        history_version=version,
        queue_version=0,
        retry_state_version=0,
        generation_attempt=1,
        status="running",
        archived=False,
        worker_id=chat_id,
        runner_id=chat_id,
    )


def payload(chat_id: UUID, version: int) -> str:
    return msgspec.json.encode([hint(chat_id, version)]).decode()


class Ways:
    """The ways to publish a commit."""

    def __init__(self, pool: asyncpg.Pool, notifier: Notifier) -> None:
        self._pool = pool
        self._notifier = notifier

    def all(self) -> dict[str, Commit]:
        return {
            "without hints": self.silent,
            "inside the transaction": self.inside,
            "after each commit": self.after,
            "by one publisher": self.published,
        }

    async def silent(self, row: UUID) -> None:
        async with self._pool.acquire() as conn, conn.transaction():
            await conn.fetchval(CHANGE, row)

    async def inside(self, row: UUID) -> None:
        async with self._pool.acquire() as conn, conn.transaction():
            version = await conn.fetchval(CHANGE, row)
            await conn.execute(NOTIFY, CHANNEL, payload(row, version))

    async def after(self, row: UUID) -> None:
        async with self._pool.acquire() as conn:
            async with conn.transaction():
                version = await conn.fetchval(CHANGE, row)
            await conn.execute(NOTIFY, CHANNEL, payload(row, version))

    async def published(self, row: UUID) -> None:
        async with self._pool.acquire() as conn, conn.transaction():
            version = await conn.fetchval(CHANGE, row)
        self._notifier.publish([hint(row, version)])


async def per_second(commit: Commit, rows: list[UUID], seconds: float) -> float:
    end = time.perf_counter() + seconds
    started = time.perf_counter()

    async def write(row: UUID) -> int:
        done = 0
        while time.perf_counter() < end:
            await commit(row)
            done += 1
        return done

    done = sum(await asyncio.gather(*map(write, rows)))
    return done / (time.perf_counter() - started)


async def measure(ways: Ways, rows: list[UUID], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the commits per second of each way, by round, because a slow machine affects all ways of a round."""
    found: dict[str, list[float]] = {name: [] for name in ways.all()}
    for _ in range(rounds):
        for name, commit in ways.all().items():
            found[name].append(await per_second(commit, rows, seconds))
    return found


async def run(*, quick: bool) -> int:
    rounds, seconds = (4, 1.0) if quick else (10, 2.0)
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            config = DatabaseConfig(server.url, pool_api=2, pool_worker=WRITERS)
            await migrate.migrate(config)
            async with await Database.connect(config) as database:
                found = await measure_all(database, server.url, rounds=rounds, seconds=seconds)
        finally:
            await server.stop()
    slower = {
        name: statistics.median(silent / told for silent, told in zip(found["without hints"], each, strict=True))
        for name, each in found.items()
    }
    print(f"{WRITERS} writers, {LISTENERS} listeners\n  {'':24} {'per s':>8} {'x silent':>9}")
    for name, each in found.items():
        print(f"  {name:24} {statistics.median(each):8.0f} {slower[name]:9.2f}")
    publisher = slower["by one publisher"]
    claims = {
        "commits with a publisher, time over none": claim(publisher, PUBLISHER_BUDGET),
        "commits with a publisher, time over telling inside": claim(
            publisher / slower["inside the transaction"], INSIDE_BUDGET
        ),
    }
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def measure_all(database: Database, url: str, *, rounds: int, seconds: float) -> dict[str, list[float]]:
    rows = [uuid4() for _ in range(WRITERS)]
    async with database.worker.acquire() as conn:
        await conn.execute("CREATE TABLE bench_rows (id uuid PRIMARY KEY, n bigint NOT NULL)")
        await conn.executemany("INSERT INTO bench_rows VALUES ($1, 0)", [(row,) for row in rows])
    listeners = [await asyncpg.connect(url) for _ in range(LISTENERS)]
    notifier = Notifier(database.api, Bus())
    publishing = asyncio.create_task(notifier.run())
    try:
        for listener in listeners:
            await listener.add_listener(CHANNEL, lambda *_: None)
        return await measure(Ways(database.worker, notifier), rows, rounds=rounds, seconds=seconds)
    finally:
        await notifier.close()
        await publishing
        for listener in listeners:
            await listener.close()


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="What hints cost the commits that they tell of.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
