"""A replica with real workspaces that is killed again and again while agents work in them; then everything is judged.

`python -m tests.chaos.tool_kills --help`. One process at a time: what it began is found by the next one, or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery import log
from rookery.chat import parts
from rookery.llm.secrets import KeyRing, new_key
from rookery.store import model_configs, providers, settings
from rookery.store.machine import Machine
from rookery.store.model_configs import ModelConfigDraft
from rookery.store.model_options import ProviderType
from rookery.store.pool import Database, DatabaseConfig
from rookery.store.providers import ProviderDraft
from rookery.store.pubsub import Bus, Notifier
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.layout import Layout
from tests.chaos import jobs, traces
from tests.chaos.jobs import Job
from tests.chaos.people import Person
from tests.chaos.processes import ReplicaProcess
from tests.chaos.records import Accepted
from tests.chaos.replica import Orders
from tests.chaos.run import Progress
from tests.chaos.town import database_server
from tests.chaos.traces import Result, Trace
from tests.chaos.watch import Watch
from tests.waiting import until

JOBS = 2  # of one chat
MOMENT_SECONDS = 2.0  # within which a replica dies after it has got something to do
BUSY_SECONDS = 120.0
SETTLE_SECONDS = 180.0
SHOWN = 50

IS_BUSY = "SELECT EXISTS (SELECT FROM chats WHERE worker_id = $1)"
CHAT = "SELECT status, queue_len, last_error::text AS error, owner_id FROM chats WHERE id = $1"
CONTENT = """
    SELECT content::text AS content
      FROM chat_messages
     WHERE chat_id = $1 AND NOT deleted AND role IN ('assistant', 'tool')
     ORDER BY id
"""
FILES = "SELECT f.id::text, f.data FROM chat_files f JOIN chat_file_links l ON l.file_id = f.id WHERE l.chat_id = $1"
WORKSPACES = "SELECT id FROM workspaces WHERE owner_id = $1"
OPERATIONS = "SELECT kind, state FROM workspace_operations WHERE workspace_id = ANY ($1)"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`struck` counts, by tool, the calls that had no result yet when their worker was killed."""

    faults: list[str]
    kills: int
    chats: int
    calls: int
    struck: Counter[str]


@dataclass
class _Worker:
    """Somebody who gives one chat its jobs."""

    person: Person
    user: UUID
    jobs: list[Job] = field(default_factory=list)
    sandboxes: list[int] = field(default_factory=list)


class Yard:
    """One replica over one database, and everybody who uses it."""

    def __init__(self, pool: asyncpg.Pool, machine: Machine, watch: Watch, *, model: UUID, data: Path) -> None:
        self._pool = pool
        self._machine = machine
        self._watch = watch
        self._model = model
        self._data = data
        self.workers: list[_Worker] = []

    async def work(self, numbers: Iterator[int], is_over: asyncio.Event) -> None:
        """One chat after the other, and at least one."""
        while True:
            await self._one_chat(next(numbers))
            if is_over.is_set():
                return

    async def _one_chat(self, number: int) -> None:
        user = await self._pool.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{number}")
        person = Person(self._pool, self._machine, self._watch, chat_id=uuid4(), user=user, model=self._model)
        worker = _Worker(person, user)
        self.workers.append(worker)
        for place in range(JOBS):
            job = Job(f"c{number}m{place}", is_first=place == 0, is_last=place == JOBS - 1)
            worker.jobs.append(job)
            await person.say(str(job))
            person.accepted.append(Accepted(str(person.chat_id), job.name))
            await self._watch.until_rest(person.chat_id)
            worker.sandboxes.append(await self._count_sandboxes(user))
        self._watch.forget(person.chat_id)

    async def _count_sandboxes(self, user: UUID) -> int:
        rows = await self._pool.fetch(WORKSPACES, user)
        return sum([len(await sandboxes.find(Layout.of(self._data, str(row["id"])).directory)) for row in rows])

    async def open_calls(self) -> Counter[str]:
        """Calls without a result, by tool, while nobody runs any."""
        found: Counter[str] = Counter()
        for worker in self.workers:
            calls, results = await self._conversation(worker.person.chat_id)
            answered = {result.call_id for result in results}
            found.update(tool for call_id, tool in calls if call_id not in answered)
        return found

    async def _conversation(self, chat_id: UUID) -> tuple[list[tuple[str, str]], list[Result]]:
        calls, results = [], []
        for row in await self._pool.fetch(CONTENT, chat_id):
            for part in parts.decode(row["content"].encode()):
                if isinstance(part, parts.ToolCall):
                    calls.append((part.tool_call_id, part.tool_name))
                elif isinstance(part, parts.ToolResult):
                    value = parts.json_value(part.result) if isinstance(part.result, msgspec.Raw) else None
                    results.append(Result(part.tool_call_id, value, part.is_error))
        return calls, results

    async def trace(self, worker: _Worker) -> Trace:
        chat_id = worker.person.chat_id
        chat = await self._pool.fetchrow(CHAT, chat_id)
        assert chat is not None
        calls, results = await self._conversation(chat_id)
        made = [row["id"] for row in await self._pool.fetch(WORKSPACES, worker.user)]
        homes = [Layout.of(self._data, str(each)).home for each in made]
        return Trace(
            chat_id=str(chat_id),
            jobs=worker.jobs,
            status=chat["status"],
            error=chat["error"],
            calls=calls,
            results=results,
            log="".join(_text(home / jobs.LOG) for home in homes),
            sheets={job.name: "".join(_text(home / job.sheet) for home in homes) for job in worker.jobs},
            files={row["id"]: row["data"] for row in await self._pool.fetch(FILES, chat_id)},
            workspaces=[str(each) for each in made],
            operations=[(row["kind"], row["state"]) for row in await self._pool.fetch(OPERATIONS, made)],
            sandboxes=worker.sandboxes,
        )


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def kill_tools(
    database_url: str, folder: Path, *, seed: int, kills: int, chats: int, say: Progress, seconds: float = inf
) -> Outcome:
    """Keep so many chats at work until the replica was killed so often, let everybody finish, and judge.

    After so many seconds no further kill begins: on a machine that is very busy a run is shorter, not later.
    """
    say(f"seed {seed}")
    rng, struck, started = Random(f"{seed} kills"), Counter[str](), time.monotonic()
    async with _open_yard(database_url, folder) as (yard, replica, pool, watch):
        is_over, numbers = asyncio.Event(), count()
        crowd = [asyncio.create_task(yard.work(numbers, is_over)) for _ in range(chats)]
        killed = 0
        try:
            while killed < kills and (not killed or time.monotonic() - started < seconds):
                await until(lambda: pool.fetchval(IS_BUSY, replica.id), timeout=BUSY_SECONDS)
                # The moment is the point of it; nothing is waited for.
                await asyncio.sleep(rng.uniform(0, MOMENT_SECONDS))
                await replica.end()
                killed += 1
                struck += await yard.open_calls()
                if killed % 10 == 0 or killed == kills:
                    say(f"{killed} of {kills} kills, {len(yard.workers)} chats, {time.monotonic() - started:.0f} s")
                await replica.start()
            is_over.set()
            _, late = await asyncio.wait(crowd, timeout=SETTLE_SECONDS)
            stuck = [f"still at work after {SETTLE_SECONDS:g} s: {chat}" for chat in watch.unrested()] if late else []
            for worker in crowd:
                if worker.done():
                    worker.result()
        finally:
            for worker in crowd:
                worker.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
        found = [await yard.trace(worker) for worker in yard.workers]
        return Outcome(
            faults=[*stuck, *(fault for trace in found for fault in traces.find_faults(trace))],
            kills=killed,
            chats=len(found),
            calls=sum(len(trace.calls) for trace in found),
            struck=struck,
        )


@asynccontextmanager
async def _open_yard(
    database_url: str, folder: Path
) -> AsyncIterator[tuple[Yard, ReplicaProcess, asyncpg.Pool, Watch]]:
    """Whatever happens inside, no process of it is left, and no sandbox."""
    data, ring = folder / "d", new_key("chaos")
    data.mkdir(mode=0o700)
    async with AsyncExitStack() as stack:
        config = DatabaseConfig(database_url, pool_api=8, pool_worker=2, application_name="people")
        pool = (await stack.enter_async_context(await Database.connect(config))).api
        notifier, watch = Notifier(pool, Bus()), Watch(pool, ages_leases=True)
        for loop in (notifier.run(), watch.run()):
            stack.push_async_callback(_cancelled, asyncio.create_task(loop))
        async with pool.acquire() as conn:
            await settings.write_setting(conn, "chats", value={"running_roots": 0})
            offline = ProviderDraft(type=ProviderType.SCRIPTED, name="offline")
            provider = await providers.create_provider(conn, offline, ring=KeyRing.parse(ring))
            draft = ModelConfigDraft(provider_id=provider.id, model=jobs.MODEL, context_limit=1_000_000)
            model = (await model_configs.create_model_config(conn, draft, by=None)).id
        orders = Orders(
            number=0, database_url=database_url, effects_port=None, ring=ring, data_dir=str(data), is_fast=True
        )
        replica = ReplicaProcess(orders, folder / "replica.log")
        stack.push_async_callback(_end_sandboxes, data)
        stack.push_async_callback(replica.end)
        await replica.start()
        await until(lambda: pool.fetchval("SELECT count(*) > 0 FROM templates"), timeout=BUSY_SECONDS)
        yield Yard(pool, Machine(pool, notifier), watch, model=model, data=data), replica, pool, watch


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _end_sandboxes(data: Path) -> None:
    """They outlive their server; those of a run must not."""
    own = data / "workspaces"
    for directory in own.iterdir() if own.is_dir() else ():
        for running in await sandboxes.find(directory):
            await sandboxes.kill(running)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos-tools", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the decisions of an earlier run")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--chats", type=int, default=4, help="how many are going at any time")
    parser.add_argument("--keep", type=Path, default=None, help="an empty folder for the log of the replica")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    # A short path: the sockets of workspaces are below it.
    with tempfile.TemporaryDirectory(prefix="rkc", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with (folder / "people.log").open("w") as stream:
            log.configure("info", "text", replica="people", stream=stream)
            outcome = asyncio.run(_with_database(folder, seed=seed, kills=options.kills, chats=options.chats))
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "replica.log", options.keep)
    _say(f"{outcome.kills} kills, {outcome.chats} chats, {outcome.calls} calls; without a result at a kill:")
    _say(", ".join(f"{tool} {times}" for tool, times in sorted(outcome.struck.items())) or "none")
    for fault in outcome.faults[:SHOWN]:
        _say(f"WRONG {fault}")
    _say(f"seed {seed}: {'nothing is wrong' if not outcome.faults else f'{len(outcome.faults)} things are wrong'}")
    sys.exit(bool(outcome.faults))


async def _with_database(folder: Path, *, seed: int, kills: int, chats: int) -> Outcome:
    async with database_server(folder / "p") as server:
        return await kill_tools(server.url, folder, seed=seed, kills=kills, chats=chats, say=_say)


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
