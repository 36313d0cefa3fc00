"""Kills the only replica while its chats call an MCP server, and checks that no call was made twice that must not be.

See `python -m tests.chaos.mcp_kills --help`. In each round, four chats make one call each: a task, a call that may be
repeated, one that may not, and one that asks the user first. The replica is killed at a random moment and restarted,
until the kills have struck enough calls of each kind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import asyncpg

from rookery.domain.chat import parts
from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import ChatId
from rookery.loop.tool_batch import OUTCOME_UNKNOWN
from rookery.store import machine
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.settings import settings
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from tests.chaos import mcp_jobs
from tests.chaos.deployment import Deployment, open_deployment
from tests.chaos.mcp_jobs import Kind
from tests.chaos.run import Progress
from tests.chaos.users import Person
from tests.eventually import until

WORK_SECONDS = 0.8
# From the first call of a round to the kill: most calls are open, and the question is being asked or answered.
MOMENT_SECONDS = 0.9
# Kills per call that a run has to strike, before it gives up.
MAX_KILLS_PER_STRIKE = 10
BEGIN_SECONDS = 60.0
ROUND_SECONDS = 120.0
LOOK_SECONDS = 0.05
SHOWN = 50
FORM = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}

ADD_SERVER = "INSERT INTO mcp_servers (slug, url, availability) VALUES ($1, $2, 'force_on')"
IS_ASKED = "SELECT status = 'requires_action' AND awaits_approval FROM chats WHERE id = $1"
STATUS = "SELECT status FROM chats WHERE id = $1"
QUESTIONS = "SELECT count(*) FROM chat_approvals WHERE chat_id = $1"
CONTENT = """
    SELECT content::text AS content
      FROM chat_messages
     WHERE chat_id = $1 AND NOT deleted AND role IN ('assistant', 'tool')
     ORDER BY id
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    `struck` counts calls that had reached the server and had no result at a kill. `unknown` counts those that stay
    unknown.
    """

    faults: list[str]
    kills: int
    calls: int
    struck: Counter[Kind]
    unknown: Counter[Kind]
    seconds: float


@dataclass
class _Server:
    """The MCP server. `begun` counts the executions of a job, and `done` those that had their effect."""

    rng: Random
    fake: FakeMcp = field(default_factory=lambda: FakeMcp(poll_ms=50))
    begun: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        properties = {"job": {"type": "string"}}
        self.fake.tool(Kind.TASK, self._work, properties=properties, is_task=True)
        self.fake.tool(Kind.IDEMPOTENT, self._work, properties=properties, annotations={"idempotentHint": True})
        self.fake.tool(Kind.NEITHER, self._work, properties=properties)
        self.fake.tool(Kind.QUESTION, self._book, properties=properties)

    async def _work(self, call: FakeCall) -> Json:
        job = call.arguments["job"]
        self.begun[job] += 1
        await asyncio.sleep(self.rng.uniform(0.1, WORK_SECONDS))
        self.done[job] += 1
        return text(f"did {job}")

    async def _book(self, call: FakeCall) -> Json:
        job = call.arguments["job"]
        self.begun[job] += 1
        await asyncio.sleep(self.rng.uniform(0, WORK_SECONDS / 2))
        answer = await call.ask("Which seat?", FORM)
        self.answers[job] += 1
        await asyncio.sleep(self.rng.uniform(0, WORK_SECONDS / 2))
        self.done[job] += 1
        return text(f"did {job} at {answer['content']['seat']}")


@dataclass(frozen=True)
class _Job:
    name: str
    kind: Kind
    person: Person

    @property
    def chat_id(self) -> ChatId:
        return self.person.chat_id


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The end of a run: after `kills` kills, or after kills during `per_kind` calls of each kind."""

    kills: int | None = None
    per_kind: int = 0

    @property
    def max_kills(self) -> int:
        return self.per_kind * MAX_KILLS_PER_STRIKE if self.kills is None else self.kills

    def is_reached(self, kills: int, struck: Counter[Kind]) -> bool:
        return kills >= self.max_kills or (self.kills is None and all(struck[kind] >= self.per_kind for kind in Kind))


async def kill_mcp(database_url: str, folder: Path, *, seed: int, goal: Goal, say: Progress) -> Outcome:
    """Kill the replica once in each round, let the chats of the round end, and check their calls."""
    say(f"seed {seed}")
    started, rng = time.monotonic(), Random(seed)
    server, jobs = _Server(rng), list[_Job]()
    struck: Counter[Kind] = Counter()
    faults: list[str] = []
    async with (
        server.fake.listening() as url,
        open_deployment(
            lambda: database_url,
            folder,
            seed=seed,
            replicas=1,
            is_fast=True,
            has_doors=False,
            scripted_model=mcp_jobs.MODEL,
        ) as deployment,
    ):
        async with deployment.pool.acquire() as conn:
            await settings.write_setting(conn, "mcp", value={"allow_private_addresses": True})
            await conn.execute(ADD_SERVER, mcp_jobs.SLUG, url)
        (replica,) = deployment.replicas
        # The replica has cached that there are no servers.
        await replica.end()
        await replica.start()
        kills = 0
        while not goal.is_reached(kills, struck):
            kills += 1
            made = [_Job(f"j{kills}{kind}", kind, deployment.person(kills)) for kind in Kind]
            for job in made:
                await job.person.say(mcp_jobs.message(job.name, job.kind))
            await until(partial(_have_begun, server, made), timeout=BEGIN_SECONDS)
            answering = asyncio.create_task(_answer_all(deployment, server, made, rng))
            try:
                await asyncio.sleep(rng.uniform(0, MOMENT_SECONDS))
                await replica.end()
                for job in made:
                    if server.begun[job.name] and await deployment.pool.fetchval(STATUS, job.chat_id) != "waiting":
                        struck[job.kind] += 1
                await replica.start()
                try:
                    async with asyncio.timeout(ROUND_SECONDS):
                        for job in made:
                            await deployment.watch.until_rest(job.chat_id)
                except TimeoutError:
                    faults.append(f"round {kills} has not ended after {ROUND_SECONDS:g} s")
                    break
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            jobs += made
            if kills % 10 == 0:
                say(f"{kills} kills, {_words(struck)}, {time.monotonic() - started:.0f} s")
        if not faults and any(struck[kind] < goal.per_kind for kind in Kind):
            faults.append(f"{kills} kills have struck too few calls: {_words(struck)}")
        unknown: Counter[Kind] = Counter()
        for job in jobs:
            result, wrong = await _judge(deployment.pool, server, job)
            faults += [f"{job.name}: {each}" for each in wrong]
            unknown[job.kind] += OUTCOME_UNKNOWN in result
    return Outcome(
        faults=faults, kills=kills, calls=len(jobs), struck=struck, unknown=unknown, seconds=time.monotonic() - started
    )


def _words(counts: Counter[Kind]) -> str:
    return ", ".join(f"{kind} {counts[kind]}" for kind in Kind)


def _have_begun(server: _Server, jobs: list[_Job]) -> bool:
    return any(server.begun[job.name] for job in jobs)


async def _answer_all(deployment: Deployment, server: _Server, jobs: list[_Job], rng: Random) -> None:
    """Answer each question once, after a while."""
    while True:
        for job in jobs:
            with contextlib.suppress(*DATABASE_ERRORS, ChatError):
                if await deployment.pool.fetchval(IS_ASKED, job.chat_id):
                    await asyncio.sleep(rng.uniform(0, WORK_SECONDS))
                    await deployment.machine.chat(job.chat_id).update(lambda tx: _answer(tx, deployment.user))
                    deployment.watch.expect(job.chat_id)
        await asyncio.sleep(LOOK_SECONDS)


async def _answer(tx: machine.Tx, user: UUID) -> None:
    (call,) = await machine.open_calls.asked_calls(tx)
    made = Answer(tool_call_id=call.tool_call_id, decision=Decision.APPROVE, responses={"question": {"seat": "12A"}})
    await machine.answer_approvals(tx, [made], answered_by=user)


async def _judge(pool: asyncpg.Pool, server: _Server, job: _Job) -> tuple[str, list[str]]:
    """Return the result of the job's call, and what is wrong about it."""
    wrong: list[str] = []
    calls, results = 0, list[str]()
    for row in await pool.fetch(CONTENT, job.chat_id):
        for part in parts.decode(row["content"].encode()):
            if isinstance(part, parts.ToolCall):
                calls += 1
            elif isinstance(part, parts.ToolResult):
                results.append(bytes(part.result).decode() if part.result else "")
    if (status := await pool.fetchval(STATUS, job.chat_id)) != "waiting":
        wrong.append(f"the chat is {status}")
    if calls != 1 or len(results) != 1:
        return "", [*wrong, f"{calls} calls with {len(results)} results"]
    result, begun, done = results[0], server.begun[job.name], server.done[job.name]
    is_known = f"did {job.name}" in result
    if not is_known and OUTCOME_UNKNOWN not in result:
        wrong.append(f"its result is {result[:200]}")
    if is_known and done < 1:
        wrong.append("it has a result without an effect")
    match job.kind:
        case Kind.IDEMPOTENT if not is_known:
            wrong.append("it was not repeated")
        case Kind.TASK | Kind.NEITHER if begun > 1:
            wrong.append(f"it was made {begun} times")
        case Kind.QUESTION:
            asked = await pool.fetchval(QUESTIONS, job.chat_id)
            if asked > 1 or server.answers[job.name] > 1 or done > 1 or (is_known and not asked):
                wrong.append(f"{asked} questions, {server.answers[job.name]} answers, {done} effects")
    return result, wrong


def main() -> None:
    from tests.chaos.deployment import database_server

    parser = argparse.ArgumentParser(prog="make chaos-mcp", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the decisions of an earlier run")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--kills-per-kind", type=int, default=50, help="end when kills have struck as many of each kind")
    ends.add_argument("--kills", type=int, default=None, help="end after this many kills, whatever they have struck")
    options = parser.parse_args()
    goal = Goal(kills=options.kills) if options.kills is not None else Goal(per_kind=options.kills_per_kind)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed

    async def run(folder: Path) -> Outcome:
        async with database_server(folder / "p") as server:
            return await kill_mcp(server.url, folder, seed=seed, goal=goal, say=_say)

    with tempfile.TemporaryDirectory(prefix="rkm", ignore_cleanup_errors=True) as temporary:
        outcome = asyncio.run(run(Path(temporary)))
    _say(f"{outcome.kills} kills, {outcome.calls} calls, {outcome.seconds:.0f} s")
    _say(f"open at a kill: {_words(outcome.struck)}; outcome unknown: {_words(outcome.unknown)}")
    for fault in outcome.faults[:SHOWN]:
        _say(f"WRONG {fault}")
    _say(f"seed {seed}: {'nothing is wrong' if not outcome.faults else f'{len(outcome.faults)} things are wrong'}")
    sys.exit(bool(outcome.faults))


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
