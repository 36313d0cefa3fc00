"""Kills replicas with real workspaces while agents work in them, and checks the invariants at the end.

See `python -m tests.chaos.tool_kills --help`. First, there is one process at a time, and its successor finds its work.
Then two replicas share the machine and its workspaces, and the survivor continues the work of the other. Some are
suspended instead, and resume when another replica has their work.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.domain.chat import parts
from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.machine import Machine
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import settings
from rookery.telemetry import log
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.workspace_paths import Layout
from tests.chaos import workspace_jobs as jobs
from tests.chaos import workspace_traces
from tests.chaos.database_watch import Watch
from tests.chaos.deployment import database_server
from tests.chaos.processes import ReplicaProcess
from tests.chaos.replica import Orders
from tests.chaos.run import Progress
from tests.chaos.run_results import Accepted
from tests.chaos.users import Person
from tests.chaos.workspace_jobs import Job
from tests.chaos.workspace_traces import Result, Trace
from tests.eventually import until
from tests.sandbox_cleanup import end_sandboxes

JOBS = 2  # of one chat
MOMENT_SECONDS = 2.0  # the time until a replica is killed after it got work
BUSY_SECONDS = 120.0
SETTLE_SECONDS = 180.0
SHOWN = 50

# With a second replica: this share of the kills, and this share of those suspends.
PAIRED = 0.5
SUSPENDED = 0.1
# A process that was suspended inside a transaction is resumed before its locks are broken.
TAKEOVER_SECONDS = 20.0

BUSY = "SELECT worker_id, array_agg(id) AS chats FROM chats WHERE worker_id = ANY ($1) GROUP BY worker_id"
# In between, the chat has no owner: the old one is known to be dead, and no replica has taken it yet.
ORPHANS = """
    SELECT id
      FROM chats
     WHERE id = ANY ($1)
       AND status IN ('running', 'interrupting')
       AND (worker_id IS NULL OR worker_id = $2)
"""
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
    """The outcome of a run.

    `struck` counts, by tool, the calls without a result at the kill of their worker. `taken` counts those that another
    replica continued before their own one restarted. `kills` includes replicas that were `suspended` first.
    """

    faults: list[str]
    kills: int
    suspended: int
    chats: int
    calls: int
    struck: Counter[str]
    taken: Counter[str]


@dataclass
class _Worker:
    """A user who gives one chat its jobs."""

    person: Person
    user: UUID
    jobs: list[Job] = field(default_factory=list)
    sandboxes: list[int] = field(default_factory=list)


class Workload:
    """All users who give the replicas work."""

    def __init__(self, pool: asyncpg.Pool, machine: Machine, watch: Watch, *, model: UUID, data: Path) -> None:
        self._pool = pool
        self._machine = machine
        self._watch = watch
        self._model = model
        self._data = data
        self.workers: list[_Worker] = []

    async def work(self, numbers: Iterator[int], is_over: asyncio.Event) -> None:
        """Run one chat after the other, at least one."""
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

    async def open_calls(self, chats: Collection[UUID]) -> Counter[str]:
        """Return the calls of these chats without a result, by tool."""
        found: Counter[str] = Counter()
        for chat_id in chats:
            calls, results = await self._conversation(chat_id)
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


class ReplicaKiller:
    """Kills replicas at random moments and restarts them."""

    def __init__(
        self, workload: Workload, pool: asyncpg.Pool, replicas: Sequence[ReplicaProcess], *, seed: int
    ) -> None:
        self._workload = workload
        self._pool = pool
        self._replicas = replicas
        self._rng = Random(f"{seed} kills")
        self.kills = 0
        self.suspended = 0
        self.struck: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    async def strike_alone(self) -> None:
        """Kill the only replica. Its successor finds its work."""
        first, *others = self._replicas
        await asyncio.gather(*(each.end() for each in others))
        await self._until_busy()
        await self._moment()
        _, chats = await self._until_busy()
        await first.end()
        self.kills += 1
        self.struck += await self._workload.open_calls(chats)
        await first.start()

    async def strike_one_of_two(self) -> None:
        """Kill a replica with work, and restart it when the other one has taken over."""
        await asyncio.gather(*(each.start() for each in self._replicas))
        await self._until_busy()
        await self._moment()
        victim, chats = await self._until_busy()
        old_id, is_suspended = victim.id, self._rng.random() < SUSPENDED
        if is_suspended:
            victim.send(signal.SIGSTOP)
        else:
            await victim.end()
        struck = {chat_id: await self._workload.open_calls([chat_id]) for chat_id in chats}
        orphans = await self._until_taken(chats, old_id, is_suspended=is_suspended)
        if is_suspended:
            # It continues where it was, and finds that it no longer owns its work.
            victim.send(signal.SIGCONT)
            self.suspended += 1
            await self._moment()
            await victim.end()
        await victim.start()
        self.kills += 1
        for chat_id, calls in struck.items():
            self.struck += calls
            # Only the other replica can continue or end it.
            if chat_id not in orphans:
                self.taken += calls

    async def _until_busy(self) -> tuple[ReplicaProcess, list[UUID]]:
        """Wait for a replica with chats. Return it and its chats."""
        up = {each.id: each for each in self._replicas if each.is_up}
        found: list[asyncpg.Record] = []

        async def look() -> bool:
            found[:] = await self._pool.fetch(BUSY, list(up))
            return bool(found)

        await until(look, timeout=BUSY_SECONDS)
        chosen = self._rng.choice(found)
        return up[chosen["worker_id"]], chosen["chats"]

    async def _until_taken(self, chats: Sequence[UUID], replica_id: UUID | None, *, is_suspended: bool) -> set[UUID]:
        """Wait until the other replica has all of them. Return those that it has not."""
        orphans: set[UUID] = set()

        async def look() -> bool:
            orphans.clear()
            orphans.update(row["id"] for row in await self._pool.fetch(ORPHANS, chats, replica_id))
            return not orphans

        try:
            await until(look, timeout=TAKEOVER_SECONDS if is_suspended else BUSY_SECONDS)
        except AssertionError:
            if not is_suspended:
                raise
        return orphans

    async def _moment(self) -> None:
        # The moment is random, so there is nothing to wait for.
        await asyncio.sleep(self._rng.uniform(0, MOMENT_SECONDS))


async def kill_tools(
    database_url: str, folder: Path, *, seed: int, kills: int, chats: int, say: Progress, seconds: float = inf
) -> Outcome:
    """Keep this many chats active until this many replicas were killed, let all users finish, and check the invariants.

    After this many seconds, no further kill begins, so that a run on a busy machine is shorter and not later.
    """
    say(f"seed {seed}")
    started = time.monotonic()
    alone = kills - int(kills * PAIRED)
    async with _open_workload(database_url, folder) as (workload, replicas, pool, watch):
        is_over, numbers = asyncio.Event(), count()
        crowd = [asyncio.create_task(workload.work(numbers, is_over)) for _ in range(chats)]
        killer = ReplicaKiller(workload, pool, replicas, seed=seed)
        try:
            for number in range(1, kills + 1):
                # At least one of each kind.
                if number not in (1, alone + 1) and time.monotonic() - started >= seconds:
                    continue
                await (killer.strike_alone() if number <= alone else killer.strike_one_of_two())
                if number % 10 == 0 or number == kills:
                    say(f"{number} of {kills} kills, {len(workload.workers)} chats, {time.monotonic() - started:.0f} s")
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
        found = [await workload.trace(worker) for worker in workload.workers]
        return Outcome(
            faults=[*stuck, *(fault for trace in found for fault in workspace_traces.find_faults(trace))],
            kills=killer.kills,
            suspended=killer.suspended,
            chats=len(found),
            calls=sum(len(trace.calls) for trace in found),
            struck=killer.struck,
            taken=killer.taken,
        )


@asynccontextmanager
async def _open_workload(
    database_url: str, folder: Path
) -> AsyncIterator[tuple[Workload, list[ReplicaProcess], asyncpg.Pool, Watch]]:
    """Open two replicas, of which the first is started. No process and no sandbox is left at the end."""
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
        stack.push_async_callback(end_sandboxes, data)
        replicas = []
        for number in range(2):
            orders = Orders(
                number=number, database_url=database_url, effects_port=None, ring=ring, data_dir=str(data), is_fast=True
            )
            replicas.append(ReplicaProcess(orders, folder / f"replica-{number}.log"))
            stack.push_async_callback(replicas[-1].end)
        await replicas[0].start()
        await until(lambda: pool.fetchval("SELECT count(*) > 0 FROM templates"), timeout=BUSY_SECONDS)
        yield Workload(pool, Machine(pool, notifier), watch, model=model, data=data), replicas, pool, watch


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos-tools", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the decisions of an earlier run")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--chats", type=int, default=4, help="how many are going at any time")
    parser.add_argument("--keep", type=Path, default=None, help="an empty folder for the logs of the replicas")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    # A short path, because the sockets of workspaces are below it.
    with tempfile.TemporaryDirectory(prefix="rkc", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with (folder / "people.log").open("w") as stream:
            log.configure("info", "text", replica="people", stream=stream)
            outcome = asyncio.run(_with_database(folder, seed=seed, kills=options.kills, chats=options.chats))
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for each in folder.glob("replica-*.log"):
                shutil.copy(each, options.keep)
    _say(f"{outcome.kills} kills ({outcome.suspended} after a pause), {outcome.chats} chats, {outcome.calls} calls")
    _say(f"without a result at a kill: {_counted(outcome.struck)}")
    _say(f"of those, taken over by the other replica: {_counted(outcome.taken)}")
    for fault in outcome.faults[:SHOWN]:
        _say(f"WRONG {fault}")
    _say(f"seed {seed}: {'nothing is wrong' if not outcome.faults else f'{len(outcome.faults)} things are wrong'}")
    sys.exit(bool(outcome.faults))


async def _with_database(folder: Path, *, seed: int, kills: int, chats: int) -> Outcome:
    async with database_server(folder / "p") as server:
        return await kill_tools(server.url, folder, seed=seed, kills=kills, chats=chats, say=_say)


def _counted(calls: Counter[str]) -> str:
    return ", ".join(f"{tool} {times}" for tool, times in sorted(calls.items())) or "none"


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
