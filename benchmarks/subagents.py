"""Subagents: the time from spawn to the child's first request, from an end to the parent's next one, and CPU of waits.

    python benchmarks/subagents.py [--quick]

A worker on embedded PostgreSQL with a scripted model that answers at once, so only the server's own time is measured.
Times are differences of two moments of the same machine: a row's time in the database, and the model's call. The
baseline of a spawn is a new root chat of the same run. The last line is one JSON object:
{"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agent_loop import claim, own_database

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.model_prompt import PromptCall
from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Say, Step
from rookery.llm.types import Call
from rookery.runtime.clock import SystemClock
from rookery.store.authorized.actor_store import Store
from tests.agents.family_rig import FamilyRig, open_family
from tests.agents.test_subagent_operations import results

SPAWN_BUDGET_MS = 15.0
WAKE_BUDGET_MS = 15.0
# Of one listed chat: a family of 50 is 51 chats.
LIST_BUDGET = 2.0
SPAWN = CallTool("spawn_agent", {"type": "general", "prompt": "work"})


class Script:
    """Plays parents and children, and notes when each chat was first asked and when it was last asked."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.children = 5
        self.waits = True

    def note(self, call: Call) -> None:
        assert call.chat_id is not None
        self.first.setdefault(call.chat_id, time.time())
        self.last[call.chat_id] = time.time()

    def parent(self, call: Call) -> Sequence[Step]:
        self.note(call)
        made = sum(isinstance(part, PromptCall) for each in call.prompt.messages for part in each.parts)
        if made == 0:
            return (SPAWN,) * self.children
        if made == self.children and self.waits:
            ids = [each["chat_id"] for each in results(call)]
            return (CallTool("wait_agent", {"chat_ids": ids}),)
        return (Say("Done."),)

    def child(self, call: Call) -> Sequence[Step]:
        self.note(call)
        return (Say("My report."),)


async def seconds_since(rig: FamilyRig, statement: str, chat_id: UUID) -> float:
    found: float = await rig.sql(f"SELECT extract(epoch FROM ({statement}))::float8", chat_id)
    return found


async def spawn_delays(rig: FamilyRig, script: Script, rounds: int) -> tuple[list[float], list[float]]:
    """Return milliseconds from the row of a chat to its first request: of new roots, and of spawned children."""
    roots: list[float] = []
    children: list[float] = []
    script.children, script.waits = 1, True
    for _ in range(rounds):
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)
        for each, delays in ((chat_id, roots), (child, children)):
            created = await seconds_since(rig, "SELECT created_at FROM chats WHERE id = $1", each)
            delays.append((script.first[str(each)] - created) * 1000)
    return roots, children


async def wake_delays(rig: FamilyRig, script: Script, rounds: int) -> tuple[list[float], list[float]]:
    """Return milliseconds from the end of a child, and from the wake, to the request of the parent that was at rest."""
    since_end: list[float] = []
    since_wake: list[float] = []
    script.children, script.waits = 1, False
    for _ in range(rounds):
        chat_id = await rig.worker.ask()
        await rig.worker.until_status(chat_id, Status.WAITING)
        while not await rig.sql("SELECT bool_or(woke_parent) FROM subagent_ends WHERE parent_chat_id = $1", chat_id):
            if await rig.sql(
                "SELECT count(*) > 0 FROM subagent_ends WHERE parent_chat_id = $1 AND told_at IS NOT NULL", chat_id
            ):
                break
            await asyncio.sleep(0.005)
        await rig.worker.until_status(chat_id, Status.WAITING)
        if await rig.sql("SELECT bool_or(woke_parent) FROM subagent_ends WHERE parent_chat_id = $1", chat_id):
            asked = script.last[str(chat_id)]
            for column, delays in (("ended_at", since_end), ("told_at", since_wake)):
                statement = f"SELECT max({column}) FROM subagent_ends WHERE parent_chat_id = $1"
                delays.append((asked - await seconds_since(rig, statement, chat_id)) * 1000)
    return since_end, since_wake


async def cpu_of_waits(rig: FamilyRig, script: Script, parents: int) -> float:
    """Return milliseconds of this process's CPU for each child that is spawned, waited for and finished."""
    script.children, script.waits = 5, True
    started = time.process_time()
    chats = [await rig.worker.ask() for _ in range(parents)]
    for chat_id in chats:
        await rig.worker.rested(chat_id)
    return (time.process_time() - started) * 1000 / (parents * script.children)


async def list_ratio(rig: FamilyRig, script: Script) -> tuple[float, float]:
    """Return the time of a listed chat with a family of 50 over without, and the milliseconds of its agents' list."""
    store = Store(
        rig.worker.database.api,
        machine=rig.worker.machine,
        publisher=rig.worker.replicas[0].notifier,
        clock=SystemClock(),
    )
    user = await rig.worker.add_user()
    as_user = store.as_actor(OwnerActor(user))

    async def listed() -> float:
        times = []
        for _ in range(30):
            began = time.perf_counter()
            await as_user.chats.list(user)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    async def ask() -> ChatId:
        chat_id = await rig.worker.ask(owner_id=user)
        await rig.worker.rested(chat_id)
        return chat_id

    script.children, script.waits = 1, True
    alone = [await ask() for _ in range(20)]
    plain = await listed()
    script.children = 50
    large = await ask()
    with_family = await listed()
    began = time.perf_counter()
    await as_user.chats.list_agents(large)
    before, after = 2 * len(alone), 2 * len(alone) + 51
    return (with_family / after) / (plain / before), (time.perf_counter() - began) * 1000


async def run(url: str, *, quick: bool) -> int:
    rounds, parents = (15, 20) if quick else (60, 40)
    script = Script()
    claims: dict[str, dict[str, object]] = {}
    async with open_family(url, parent=script.parent, child=script.child) as rig:
        await spawn_delays(rig, script, 3)  # warm up
        roots, children = await spawn_delays(rig, script, rounds)
        root, child = statistics.median(roots), statistics.median(children)
        print(f"row to first request, p50: root {root:.1f} ms, child {child:.1f} ms")
        claims["spawn to the child's first request, over a new chat, p50 ms"] = claim(child - root, SPAWN_BUDGET_MS)
        since_end, since_wake = (statistics.median(each) for each in await wake_delays(rig, script, rounds))
        print(f"request of a parent at rest, p50: {since_end:.1f} ms after the end, {since_wake:.1f} ms after the wake")
        claims["wake to the parent's request, p50 ms"] = claim(since_wake, WAKE_BUDGET_MS)
        cpu = await cpu_of_waits(rig, script, parents)
        print(f"CPU for each child spawned, waited for and finished: {cpu:.1f} ms ({parents * 5} children)")
        ratio, agents_ms = await list_ratio(rig, script)
        print(f"time for each listed chat, with a family of 50 over without: {ratio:.2f}")
        print(f"list of 50 subagents: {agents_ms:.1f} ms")
        claims["time for each listed chat with a family of 50, over without"] = claim(ratio, LIST_BUDGET)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def run_all(arguments: argparse.Namespace) -> int:
    async with own_database() as url:
        return await run(url, quick=arguments.quick)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_all(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
