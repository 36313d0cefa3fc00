"""Kills replicas while chats and their subagents work, and checks the invariants at the end.

See `python -m tests.chaos.family_kills --help`. Parents spawn children and wait for all or any of them, or rest until a
notice wakes them. The faults are those of `run`, with restarts of the database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import agent_reports, parts
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.settings import settings
from rookery.telemetry import log
from tests.chaos import family_jobs
from tests.chaos.deployment import Deployment, database_server, open_deployment
from tests.chaos.family_jobs import Family
from tests.chaos.family_traces import Child, End, FamilyTrace, Waited, find_faults
from tests.chaos.faults import Faults
from tests.chaos.run import KILL_SECONDS, REPLICAS, SHOWN, Progress
from tests.eventually import until

LOOK_SECONDS = 0.2
SETTLE_SECONDS = 60.0
# Rows of killed runners are swept when they are older than a lease.
SWEEP_SECONDS = 60.0
# Less than the children of all families together, so that a slot that is not freed stops the run.
CHILD_SLOTS = 8

# One statement, so that all parts are of one moment.
HAS_ENDED = """
    SELECT p.status = 'error'
        OR (p.status = 'waiting'
            AND (SELECT count(*) FROM chats c WHERE c.parent_chat_id = p.id AND c.status IN ('waiting', 'error')) = $2
            AND NOT EXISTS (SELECT FROM subagent_ends e WHERE e.parent_chat_id = p.id AND e.told_at IS NULL))
      FROM chats p
     WHERE p.id = $1
"""
NO_BEATS = """
    SELECT NOT EXISTS (
           SELECT FROM chat_heartbeats h JOIN chats c ON c.id = h.chat_id WHERE c.status IN ('waiting', 'error'))
"""
ROOTS = "SELECT id FROM chats WHERE parent_chat_id IS NULL OR root_chat_id IS NULL"
PARENT = """
    SELECT status, last_error::text AS error, (SELECT count(*) FROM chat_heartbeats h WHERE h.chat_id = $1) AS beats
      FROM chats
     WHERE id = $1
"""
CHILDREN = """
    SELECT s.chat_id, c.title, c.parent_chat_id AS parent_id, c.root_chat_id AS root_id, c.status,
           (SELECT count(*)
              FROM chat_messages m
             WHERE m.chat_id = c.id AND m.role = 'user' AND NOT m.deleted) AS started,
           (SELECT count(*) FROM chat_heartbeats h WHERE h.chat_id = c.id) AS beats
      FROM subagents s
      JOIN chats c ON c.id = s.chat_id
     WHERE s.parent_chat_id = $1
     ORDER BY c.title
"""
ENDS = """
    SELECT id, chat_id, outcome, told_by, notice_id, woke_parent
      FROM subagent_ends
     WHERE parent_chat_id = $1
     ORDER BY id
"""
UNBILLED = """
    SELECT count(*)
      FROM chats c
      JOIN chat_messages m ON m.chat_id = c.id
     WHERE (c.id = $1 OR c.root_chat_id = $1)
       AND m.role = 'assistant'
       AND NOT m.deleted
       AND (SELECT count(*)
              FROM model_usage u
             WHERE u.chat_id = c.id AND u.message_id = m.id AND u.status = 'ok') <> 1
"""
ROWS = """
    SELECT id, role, content::text AS content, created_at
      FROM chat_messages
     WHERE chat_id = $1 AND NOT deleted
     ORDER BY id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run. `told` counts the ends by who told them, `wakes` the resumed parents."""

    faults: list[str]
    kills: int
    families: int
    children: int
    ends: int
    told: Counter[str]
    wakes: int
    struck: dict[str, int]
    seconds: float


async def kill_families(folder: Path, *, seed: int, kills: int, families: int, say: Progress) -> Outcome:
    """Keep this many families active until this many processes were killed, let all end, and check the invariants."""
    say(f"seed {seed}")
    async with (
        database_server(folder / "p") as server,
        open_deployment(
            lambda: server.url,
            folder,
            seed=seed,
            replicas=REPLICAS,
            is_fast=True,
            has_doors=True,
            scripted_model=family_jobs.MODEL,
        ) as deployment,
    ):
        async with deployment.pool.acquire() as conn:
            limits = {"running_roots": 0, "running_subagents": CHILD_SLOTS}
            await settings.write_setting(conn, "chats", value=limits)
        started = time.monotonic()
        made: list[tuple[Family, UUID]] = []

        def told(killed: int) -> None:
            if killed % 10 == 0 or killed == kills:
                say(f"{killed} of {kills} kills, {len(made)} families, {time.monotonic() - started:.0f} s")

        fire = Faults(deployment, server, on_kill=told)
        is_over, numbers = asyncio.Event(), count()
        async with fire.burning(kills) as injecting:
            crowd = [asyncio.create_task(_live(deployment, made, numbers, is_over)) for _ in range(families)]
            try:
                _, endless = await asyncio.wait([injecting], timeout=KILL_SECONDS * (kills + 10))
                if endless:
                    raise TimeoutError(f"{fire.kills} kills, then nothing; struck: {fire.struck}")
                injecting.result()
                is_over.set()
                _, late = await asyncio.wait(crowd, timeout=SETTLE_SECONDS)
                for each in crowd:
                    if each.done():
                        each.result()
            finally:
                for each in crowd:
                    each.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)
        faults = [f"{len(late)} families have not ended after {SETTLE_SECONDS:g} s"] if late else []
        faults += await _leaks(deployment.pool, {chat_id for _, chat_id in made})
        traces = [await _trace(deployment.pool, family, chat_id) for family, chat_id in made]
        return Outcome(
            faults=[*faults, *(fault for trace in traces for fault in find_faults(trace))],
            kills=fire.kills,
            families=len(traces),
            children=sum(len(trace.children) for trace in traces),
            ends=sum(len(trace.ends) for trace in traces),
            told=Counter(end.told_by or "nothing" for trace in traces for end in trace.ends),
            wakes=sum(trace.wakes for trace in traces),
            struck=dict(sorted(fire.struck.items())),
            seconds=time.monotonic() - started,
        )


async def _live(
    deployment: Deployment, made: list[tuple[Family, UUID]], numbers: Iterator[int], is_over: asyncio.Event
) -> None:
    """Run one family after the other, at least one."""
    while True:
        number = next(numbers)
        family, person = Family.draw(deployment.seed, number), deployment.person(number)
        await person.say(str(family))
        deployment.watch.forget(person.chat_id)
        made.append((family, person.chat_id))
        await _until_ended(deployment.pool, family, person.chat_id)
        if is_over.is_set():
            return


async def _until_ended(pool: asyncpg.Pool, family: Family, chat_id: UUID) -> None:
    """Wait until the parent and all children are at rest and all ends are told. The caller limits the time."""
    while True:
        with contextlib.suppress(*DATABASE_ERRORS):
            if await pool.fetchval(HAS_ENDED, chat_id, len(family.tasks)):
                return
        await asyncio.sleep(LOOK_SECONDS)


async def _leaks(pool: asyncpg.Pool, parents: set[UUID]) -> list[str]:
    """Return faults of the whole run: heartbeats that stay, and children without a parent."""
    faults = []
    try:
        await until(lambda: pool.fetchval(NO_BEATS), timeout=SWEEP_SECONDS)
    except AssertionError:
        faults.append(f"heartbeats of chats at rest are left after {SWEEP_SECONDS:g} s")
    roots = {row["id"] for row in await pool.fetch(ROOTS)}
    if roots != parents:
        faults.append(f"chats that should not be roots: {roots - parents}; that should be: {parents - roots}")
    return faults


async def _trace(pool: asyncpg.Pool, family: Family, chat_id: UUID) -> FamilyTrace:
    parent = await pool.fetchrow(PARENT, chat_id)
    assert parent is not None
    history = [(row, parts.decode(row["content"].encode())) for row in await pool.fetch(ROWS, chat_id)]
    calls = [(row, part) for row, content in history for part in content if isinstance(part, parts.ToolCall)]
    results = [(row, part) for row, content in history for part in content if isinstance(part, parts.ToolResult)]
    times = Counter(part.tool_call_id for _, part in results)
    return FamilyTrace(
        family=family,
        chat_id=chat_id,
        status=parent["status"],
        error=parent["error"],
        beats=parent["beats"],
        answers=sum(
            row["role"] == "assistant" and not any(isinstance(part, parts.ToolCall) for part in content)
            for row, content in history
        ),
        unanswered=[part.tool_call_id for _, part in calls if times[part.tool_call_id] != 1],
        failed=[
            f"{part.tool_name}: {bytes(part.result).decode()}"
            for _, part in results
            if part.is_error and isinstance(part.result, msgspec.Raw)
        ],
        unbilled=await pool.fetchval(UNBILLED, chat_id),
        children=[Child(**row) for row in await pool.fetch(CHILDREN, chat_id)],
        ends=[End(**row) for row in await pool.fetch(ENDS, chat_id)],
        notices={
            row["id"]: noticed
            for row, content in history
            if (noticed := [part.chat_id for part in content if isinstance(part, parts.AgentNotice)])
        },
        waits=[_waited(row, part, results) for row, part in calls if part.tool_name == agent_reports.WAIT_TOOL],
    )


def _waited(
    row: asyncpg.Record, call: parts.ToolCall, results: Sequence[tuple[asyncpg.Record, parts.ToolResult]]
) -> Waited:
    arguments = parts.json_value(call.args) if isinstance(call.args, msgspec.Raw) else None
    assert isinstance(arguments, dict)
    seconds: float | None = None
    agents: list[Any] = []
    for answer, result in results:
        if result.tool_call_id == call.tool_call_id and isinstance(result.result, msgspec.Raw):
            seconds = (answer["created_at"] - row["created_at"]).total_seconds()
            value = parts.json_value(result.result)
            agents = value.get("agents", []) if isinstance(value, dict) else []
    return Waited(
        call_id=call.tool_call_id,
        limit=float(arguments["timeout_seconds"]),
        seconds=seconds,
        end_ids=[each["end_id"] for each in agents if "end_id" in each],
        timed_out=any(each.get("timed_out") for each in agents),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos-agents", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the decisions of an earlier run")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--families", type=int, default=10, help="how many are active at any time")
    parser.add_argument("--keep", type=Path, default=None, help="an empty folder for the logs of the replicas")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    # A short path, because sockets are below it.
    with tempfile.TemporaryDirectory(prefix="rkf", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with (folder / "people.log").open("w") as stream:
            log.configure("info", "text", replica="people", stream=stream)
            run = kill_families(folder, seed=seed, kills=options.kills, families=options.families, say=_say)
            outcome = asyncio.run(run)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for each in folder.glob("*.log"):
                shutil.copy(each, options.keep)
    _say(f"{outcome.kills} kills, {outcome.families} families, {outcome.children} children; struck: {outcome.struck}")
    told = ", ".join(f"{times} by {teller}" for teller, times in sorted(outcome.told.items()))
    _say(f"{outcome.ends} ends, told: {told}; {outcome.wakes} wakes; {outcome.seconds:.0f} s")
    for fault in outcome.faults[:SHOWN]:
        _say(f"WRONG {fault}")
    _say(f"seed {seed}: {'nothing is wrong' if not outcome.faults else f'{len(outcome.faults)} things are wrong'}")
    sys.exit(bool(outcome.faults))


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
