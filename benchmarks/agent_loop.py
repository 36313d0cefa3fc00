"""The cost of the agent loop: a complete worker, from the provider's socket to the part buffer, against a bare reader.

Embedded PostgreSQL, machine, hints, leases, runners, wires and part buffer are real. The provider runs in a separate
process and records when requests arrive and when it sends the first token, so that only our CPU counts and the
provider's time can be subtracted. The floor reads the same answers with aiohttp and one typed msgspec decoder per
event.

    python benchmarks/agent_loop.py [--quick] [--only memory|tokens|steps|crowds|owners]

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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._worker_rig import Floor, WorkerRig, open_rig, serving
from benchmarks.token_decode import WIRES, WORD

from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.live.part_buffer import EpisodeKey
from rookery.runtime.heap import share_heap, trim_heap
from rookery.store import machine
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.machine import ChatSpec, Limits

# A token that is streamed to a client may cost 1.6 times the floor paced and 3 times burst. Here both end before the
# client, so the floor is lower. `streaming.py` measures the whole path.
PACED_BUDGET, BURST_BUDGET = 1.6, 2.8
STEP_BUDGET_MS, FIRST_P50_MS, FIRST_P99_MS = 10.0, 15.0, 50.0
LAG_BUDGET_MS, CROWD_BUDGET_MS, BLOCK_BUDGET_MS = 100.0, 100.0, 50.0
LENGTH_BUDGET = 3.0  # an estimate: the rest is sending a thousand times as much
MEMORY_BUDGET_KIB = 256.0  # an estimate: 200 running chats take at most 50 MiB
KEPT_BUDGET_KIB, KEPT_BUDGET_MIB = 10.0, 20.0  # 2,000 turns leave at most 20 MiB
KEPT_TOKENS = 800  # answers of about 5 kB
SHORT, LONG = 10, 10_000
ROOTS = Limits().running_roots
PACE, STREAM_PACE, SLOW_PACE = 100.0, 50.0, 10.0
FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', repeat('words and more ', 20) || n)), 1
      FROM generate_series(1, $2::int) n
"""


# Measurements


class Lag:
    """Measures the delay of the event loop with a timer of a few milliseconds, and the CPU time of its thread."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.busy_ms: list[float] = []

    async def run(self) -> None:
        while True:
            started, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            self.late_ms.append((time.monotonic() - started) * 1000 - 5)
            self.busy_ms.append((time.thread_time() - cpu) * 1000)


@asynccontextmanager
async def lag_watched() -> AsyncIterator[Lag]:
    lag = Lag()
    task = asyncio.create_task(lag.run())
    try:
        yield lag
    finally:
        task.cancel()


async def bare_ms(rig: WorkerRig) -> float:
    """Return the time of BEGIN, one UPDATE of one row and COMMIT, which shows the current speed of the machine."""
    took = []
    for _ in range(20):
        started = time.monotonic()
        async with rig.database.api.acquire() as conn, conn.transaction():
            await conn.execute("UPDATE bench_row SET n = n + 1")
        took.append((time.monotonic() - started) * 1000)
    return statistics.median(took)


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def window(count: Callable[[], int], seconds: float) -> float:
    """Return the CPU us per token between two readings while everything streams."""
    words, cpu = count(), time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - cpu
    return cpu / (count() - words) * 1e6


async def paced(rig: WorkerRig, wire: str, *, answers: int, seconds: float) -> tuple[float, float]:
    """Return (floor, ours): CPU us per token in the middle of the answers."""
    tokens = int((seconds + 0.8) * PACE)
    floor = Floor(wire, rig)
    reads = [asyncio.create_task(floor.read(f"{tokens}@{PACE:g}@0")) for _ in range(answers)]
    await asyncio.sleep(0.3)
    least = await window(lambda: floor.chars // len(WORD), seconds)
    await asyncio.gather(*reads)
    owner, model = await rig.user(), await rig.model(wire, tokens, pace=PACE)
    keys = await asyncio.gather(*(rig.start(owner, model) for _ in range(answers)))
    await asyncio.gather(*(rig.first_part(key) for key in keys))
    await asyncio.sleep(0.1)
    ours = await window(lambda: rig.words(keys), seconds)
    await rig.rest(keys)
    return least, ours


async def burst(rig: WorkerRig, wire: str, *, answers: int, tokens: int) -> tuple[float, float]:
    """Return (floor, ours): the additional CPU us per token of a long answer over an answer with one token."""
    owner = await rig.user()
    floor = Floor(wire, rig)

    async def read(length: int) -> float:
        cpu = time.process_time()
        await asyncio.gather(*(floor.read(f"{length}@0@0") for _ in range(answers)))
        return time.process_time() - cpu

    async def answer(length: int) -> float:
        model = await rig.model(wire, length, pace=0)
        cpu = time.process_time()
        keys = await asyncio.gather(*(rig.start(owner, model) for _ in range(answers)))
        await rig.rest(keys)
        return time.process_time() - cpu

    await answer(1)
    per_token = 1e6 / answers / (tokens - 1)
    return (await read(tokens) - await read(1)) * per_token, (await answer(tokens) - await answer(1)) * per_token


@dataclass(frozen=True, slots=True)
class Steps:
    """The cost of tool steps.

    The fields are the time from a commit to the next request, our CPU of a model call with its tool call, and the
    longest block of the event loop: by the clock, and in CPU time of its thread, to which other processes cannot add.
    """

    gap_ms: float
    cpu_ms: float
    late_ms: float
    block_ms: float


async def tool_steps(rig: WorkerRig, chat_id: UUID, *, owner: UUID, calls: int) -> Steps:
    """Run one turn with this many model calls that each call the tool."""
    model = await rig.model("completions", 5, pace=0, calls=calls)
    # One warm-up to load and cache the history. The first token benchmark measures a first step.
    await rig.rest([await rig.say(chat_id, owner, model)])
    await rig.requests()
    async with lag_watched() as lag:
        cpu = time.process_time()
        await rig.rest([await rig.say(chat_id, owner, model)])
        cpu = time.process_time() - cpu
    commits = sorted(rig.announced.at[str(chat_id)].values())
    asked = sorted(arrived for name, arrived, _ in await rig.requests() if name == str(chat_id))
    gaps = [(arrived - max(at for at in commits if at < arrived)) * 1000 for arrived in asked[1:]]
    assert len(gaps) == calls, "some steps are missing"
    return Steps(statistics.median(gaps), cpu / calls * 1000, max(lag.late_ms), max(lag.busy_ms))


async def first_tokens(rig: WorkerRig, chats: Sequence[UUID], *, owner: UUID, rounds: int) -> list[float]:
    """Return the milliseconds from sending a message to the first part of the answer, without the provider's time."""
    model = await rig.model("completions", 3, pace=0)
    await rig.requests()
    seen: list[tuple[str, float, float]] = []
    for _ in range(rounds):
        for chat_id in chats:
            sent = time.monotonic()
            key = await rig.say(chat_id, owner, model)
            seen.append((str(chat_id), sent, await rig.first_part(key)))
            await rig.rest([key])
            # A pause like that of a user. A message during the end of the last turn would wait for its row locks.
            await asyncio.sleep(0.05)
    return added(seen, await rig.requests())


def added(seen: Sequence[tuple[str, float, float]], requests: Sequence[tuple[str, float, float]]) -> list[float]:
    """Return the times of (chat, sent, first part) without the provider's time."""
    found = []
    for chat, sent, first in seen:
        own = next(out - arrived for name, arrived, out in requests if name == chat and sent < arrived < first)
        found.append((first - sent - own) * 1000)
    return found


async def make_chat(rig: WorkerRig, owner: UUID, messages: int) -> UUID:
    """Create a chat at rest with a history of this many rows.

    One transaction, so that the worker does not see it run.
    """
    message = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=owner)
    model = await rig.model("completions", 1, pace=0)
    spec = ChatSpec(owner_id=owner, title="bench", model_config_id=model, messages=(message,))

    async def make(bundle: machine.Bundle) -> UUID:
        created = await machine.create_chat(bundle, spec)
        tx = await bundle.open(created.chat.id)
        await tx.conn.execute(FILL, tx.chat.id, messages - 1)
        await machine.finish_turn(tx)
        return tx.chat.id

    return await rig.machine.bundle(make)


async def crowd(rig: WorkerRig, *, chats: int, seconds: float) -> tuple[list[float], float]:
    """Return the delay of the event loop while this many chats stream, and the memory of each chat in KiB."""
    owner = await rig.user()
    model = await rig.model("completions", int((seconds + 3) * STREAM_PACE), pace=STREAM_PACE)
    before = resident_kib()
    keys = await asyncio.gather(*(rig.start(owner, model) for _ in range(chats)))
    await asyncio.gather(*(rig.first_part(key) for key in keys))
    async with lag_watched() as lag:
        await asyncio.sleep(seconds)
    taken = (resident_kib() - before) / chats
    await rig.rest(keys)
    return lag.late_ms, taken


async def kept_by_turns(rig: WorkerRig, turns: int) -> tuple[float, float]:
    """Return the memory that remains of a finished turn in KiB after all cache entries have expired.

    Also return the memory that remains of all turns, compared with the start of the process, in MiB.
    """
    owner = await rig.user()
    model = await rig.model("completions", KEPT_TOKENS, pace=0)

    async def run_turns(count: int) -> int:
        for first in range(0, count, 20):
            await rig.rest(await asyncio.gather(*(rig.start(owner, model) for _ in range(min(20, count - first)))))
        await rig.worker.wait_idle()
        rig.announced.at.clear()
        # All cache entries expire.
        for cache in rig.worker.caches:
            cache.max_age_seconds = 0
        rig.worker.memory.sweep()
        rig.worker.buffer._limits = replace(rig.worker.buffer._limits, episode_retention_seconds=0)
        rig.worker.buffer.sweep()
        trim_heap()
        return resident_kib()

    start = resident_kib()
    # One-time allocations, such as statements and connections, exist after the first of them.
    before = await run_turns(max(60, turns // 5))
    after = await run_turns(turns)
    return (after - before) / turns, (after - start) / 1024


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


async def crowded_first_tokens(
    rig: WorkerRig, *, rounds: int, chats: int, tries: int
) -> tuple[list[float], list[float]]:
    """Return an owner's first tokens in ms: alone, and while another owner starts and then runs many chats.

    The other owner runs all its chats, or as many as there are slots for one owner while the rest wait.
    """
    quiet, busy = await rig.user(), await rig.user()
    # Slow answers, because the cost of streams is measured with crowds, and this measures slots.
    long = await rig.model("completions", int(SLOW_PACE * 300), pace=SLOW_PACE)
    short = await rig.model("completions", 3, pace=0)
    most = min(chats, ROOTS - ROOTS // 4)

    connections = asyncio.Semaphore(4)  # of a fast client; more would measure the connection pool

    async def start() -> EpisodeKey:
        async with connections:
            return await rig.start(busy, long)

    async def first() -> float:
        sent = time.monotonic()
        key = await rig.start(quiet, short)
        found = (await rig.first_part(key) - sent) * 1000
        await rig.rest([key])
        return found

    alone, behind = [], []
    for _ in range(rounds):
        alone += [await first() for _ in range(5)]
        started = [asyncio.create_task(start()) for _ in range(chats)]
        await started[chats // 2]
        behind.append(await first())
        keys = await asyncio.gather(*started)
        while len(rig.worker.manager) < most:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        behind += [await first() for _ in range(tries - 1)]
        assert len(rig.worker.manager) >= most, "the others are through"
        await rig.stop(keys)
    return alone, behind


@asynccontextmanager
async def own_database() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            yield server.url
        finally:
            await server.stop()


async def run(url: str, *, quick: bool, only: str | None) -> int:
    claims: dict[str, dict[str, object]] = {}
    async with (
        serving() as base,
        aiohttp.ClientSession() as session,
        await Database.connect(DatabaseConfig(url)) as database,
        open_rig(base, database, session) as rig,
    ):
        for name, measure in MEASURES.items():
            if only in (None, name):
                await measure(rig, claims, quick=quick)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def measure_memory(rig: WorkerRig, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    ages = [cache.max_age_seconds for cache in rig.worker.caches]
    limits = rig.worker.buffer._limits
    kept, total = await kept_by_turns(rig, 300 if quick else 2000)
    for cache, age in zip(rig.worker.caches, ages, strict=True):
        cache.max_age_seconds = age
    rig.worker.buffer._limits = limits
    print(f"\nmemory that stays of a finished turn: {kept:.1f} KiB; of all of them over the start: {total:.1f} MiB")
    claims["memory kept for each finished turn, KiB"] = claim(kept, KEPT_BUDGET_KIB)
    claims["memory kept of all finished turns over the start, MiB"] = claim(total, KEPT_BUDGET_MIB)


async def measure_tokens(rig: WorkerRig, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    answers, seconds, rounds = (20, 1.0, 1) if quick else (10, 4.0, 3)
    tokens, burst_rounds = (3000, 3) if quick else (10_000, 5)
    kinds: dict[str, tuple[Callable[[str], Awaitable[tuple[float, float]]], int, float]] = {
        "paced": (lambda wire: paced(rig, wire, answers=answers, seconds=seconds), rounds, PACED_BUDGET),
        "burst": (lambda wire: burst(rig, wire, answers=4, tokens=tokens), burst_rounds, BURST_BUDGET),
    }
    if not quick:
        crowded = (lambda wire: paced(rig, wire, answers=100, seconds=seconds), rounds, PACED_BUDGET)
        kinds["paced, 100 answers"] = crowded
    for kind, (measure, times, budget) in kinds.items():
        print(f"\n{kind}: CPU us per token, from socket to part buffer")
        for wire in WIRES:
            found = [await measure(wire) for _ in range(times)]
            ratios = [ours / least for least, ours in found]
            shown = ", ".join(f"{least:.1f} -> {ours:.1f}" for least, ours in found)
            print(f"  {wire:12} {statistics.median(ratios):5.2f}x  (floor -> ours: {shown})")
            claims[f"{wire}, {kind}: over floor"] = claim(statistics.median(ratios), budget)


async def measure_steps(rig: WorkerRig, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    owner = await rig.user()
    short_cpu = 0.0
    for length in (SHORT, LONG):
        chats = [await make_chat(rig, owner, length) for _ in range(1 if quick else 3)]
        calls = 20 if length == SHORT or not quick else 10
        steps = [await tool_steps(rig, chat_id, owner=owner, calls=calls) for chat_id in chats]
        gap, cpu, late, block = (
            statistics.median(getattr(step, name) for step in steps)
            for name in ("gap_ms", "cpu_ms", "late_ms", "block_ms")
        )
        firsts = await first_tokens(rig, chats, owner=owner, rounds=10 if length == SHORT or not quick else 3)
        print(f"\n{length} messages (a bare transaction takes {await bare_ms(rig):.1f} ms now):")
        print(
            f"  committed tool step to next request, p50 {gap:.1f} ms; a model call with its tool call {cpu:.1f} ms CPU"
        )
        print(f"  loop kept for {block:.1f} ms of its CPU at most, {late:.1f} ms by the clock")
        print(f"  added to the first token, no other chat running: {spread(firsts)}")
        if length == SHORT:
            short_cpu = cpu
            claims["committed tool step to next request, p50 ms"] = claim(gap, STEP_BUDGET_MS)
        else:
            claims[f"longest block of the loop, {LONG} messages, ms"] = claim(block, BLOCK_BUDGET_MS)
            claims[f"CPU of a step, {LONG} messages over {SHORT}"] = claim(cpu / short_cpu, LENGTH_BUDGET)


async def measure_crowds(rig: WorkerRig, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    owner = await rig.user()
    resting = [await make_chat(rig, owner, SHORT) for _ in range(4)]
    rounds, seconds = (6, 1.5) if quick else (50, 10.0)
    model = await rig.model("completions", int(STREAM_PACE * 120), pace=STREAM_PACE)
    others = await rig.user()
    keys = await asyncio.gather(*(rig.start(others, model) for _ in range(100)))
    await asyncio.gather(*(rig.first_part(key) for key in keys))
    firsts = await first_tokens(rig, resting, owner=owner, rounds=rounds)
    assert all(rig.worker.buffer.get_parts(key) for key in keys), "the others are through"
    await rig.stop(keys)
    print(f"\na bare transaction takes {await bare_ms(rig):.1f} ms now")
    print(f"added to the first token with 100 chats at {STREAM_PACE:g} tokens/s: {spread(firsts)}")
    claims["added to first token, 100 chats running, p50 ms"] = claim(percentile(firsts, 50), FIRST_P50_MS)
    claims["added to first token, 100 chats running, p99 ms"] = claim(percentile(firsts, 99), FIRST_P99_MS)

    late, taken = await crowd(rig, chats=200, seconds=seconds)
    print(f"\n200 chats at {STREAM_PACE:g} tokens/s: loop late by {spread(late)}; {taken:.0f} KiB for each chat")
    claims["200 chats streaming: loop lag p99, ms"] = claim(percentile(late, 99), LAG_BUDGET_MS)
    claims["200 chats streaming: memory for each, KiB"] = claim(taken, MEMORY_BUDGET_KIB)


async def measure_owners(rig: WorkerRig, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    """Measure with limited slots, as in the default configuration."""
    await rig.limit(ROOTS)
    for chats in (40, 400):
        rounds, tries = (1, 4) if quick else (2, 10)
        alone, behind = await crowded_first_tokens(rig, rounds=rounds, chats=chats, tries=tries)
        print(f"\nfirst token of an owner alone: {spread(alone)}; beside {chats} chats of another: {spread(behind)}")
        delays = [each - statistics.median(alone) for each in behind]
        within = sum(delay <= CROWD_BUDGET_MS for delay in delays)
        print(f"  {within} of {len(delays)} are at most {CROWD_BUDGET_MS:g} ms later")
        claims[f"first token delayed by another owner's {chats} chats, worst, ms"] = claim(max(delays), CROWD_BUDGET_MS)
    await rig.limit(0)


MEASURES = {
    "memory": measure_memory,
    "tokens": measure_tokens,
    "steps": measure_steps,
    "crowds": measure_crowds,
    "owners": measure_owners,
}


def spread(values: Sequence[float]) -> str:
    return f"p50 {percentile(values, 50):.1f} ms, p99 {percentile(values, 99):.1f} ms, worst {max(values):.1f} ms"


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the agent loop costs, against a bare reader of the provider.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, under a minute")
    parser.add_argument("--only", choices=MEASURES, help="measure only this; memory is what finished turns leave")
    parser.add_argument("--database-url", help="a migrated database to use instead of one of its own")
    arguments = parser.parse_args()
    share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_all(arguments))


async def run_all(arguments: argparse.Namespace) -> int:
    database = own_database() if arguments.database_url is None else nullcontext(arguments.database_url)
    async with database as url:
        return await run(url, quick=arguments.quick, only=arguments.only)


if __name__ == "__main__":
    sys.exit(main())
