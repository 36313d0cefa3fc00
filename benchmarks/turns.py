"""The cost of a turn besides its tokens: a complete replica, from the request that sends a message to the chat's rest.

The provider and the clients run in separate processes, so that only the CPU of the replica and of PostgreSQL counts.
The floor is the minimum of any server that stores its chats, on the same web server in the same run: one request, one
bare transaction, one call of the provider with aiohttp, one bare transaction.

    python benchmarks/turns.py [--quick] [--only turn|starts|first|peer|long]

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
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import ReplicaRig, open_rig
from benchmarks._worker_rig import serving
from benchmarks.streaming import WIRE, claim, first_tokens, percentile

from rookery.runtime.heap import share_heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig
from rookery.store.machine import Limits

PYTHON_BUDGET_MS, POSTGRES_BUDGET_MS = 8.0, 5.0
START_P50_MS, START_WORST_MS = 120.0, 250.0
IDLE_FIRST_MS, BUSY_FIRST_MS, PEER_FIRST_MS = 8.0, 12.0, 14.0
LONG_BUDGET = 10 / 7
# The count does not depend on the machine.
STATEMENTS_BUDGET = 11.0
TOKENS = 20
SHORT, LONG = 10, 5100
TOGETHER = 20
PAUSE_SECONDS = 0.08  # longer than a turn, so that turns do not overlap
ROOTS = Limits().running_roots

Claims = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of the replica and of PostgreSQL."""

    python: float
    postgres: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.python - other.python, self.postgres - other.postgres)

    def __mul__(self, factor: float) -> Cpu:
        return Cpu(self.python * factor, self.postgres * factor)


@dataclass(frozen=True, slots=True)
class Bench:
    """The rig, and the process id of PostgreSQL."""

    rig: ReplicaRig
    postgres: int

    def cpu(self) -> Cpu:
        return Cpu(time.process_time(), family_cpu(self.postgres))

    async def idle(self, seconds: int) -> Cpu:
        """Return what a replica without turns takes in a second."""
        each = []
        for _ in range(seconds):
            before = self.cpu()
            await asyncio.sleep(1.0)
            each.append(self.cpu() - before)
        return Cpu(statistics.median(cpu.python for cpu in each), statistics.median(cpu.postgres for cpu in each))


def family_cpu(pid: int) -> float:
    """Return the CPU seconds of the running children of a process, to the nanosecond."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) for child in children) / 1e9


@contextmanager
def counted(bench: Bench) -> Iterator[Counter[str]]:
    """Count the statements of the pools' open connections."""
    ran: Counter[str] = Counter()

    def note(record: Any) -> None:
        ran[" ".join(record.query.split())] += 1

    pools: tuple[Any, ...] = (bench.rig.replica.database.api, bench.rig.replica.database.worker)
    open_now = [holder._con for pool in pools for holder in pool._holders if holder._con is not None]
    for connection in open_now:
        connection.add_query_logger(note)
    try:
        yield ran
    finally:
        for connection in open_now:
            connection.remove_query_logger(note)


# Measurements


async def floor_turns(bench: Bench, turns: int, idle: Cpu) -> Cpu:
    """Return the CPU of a bare turn."""
    url = f"{bench.rig.floor_url.replace('ws', 'http', 1)}/{WIRE}/{TOKENS}@0@0"
    sends = [(url, "", {"content": [{"type": "text", "text": "And now?"}]})] * turns
    began, before = time.monotonic(), bench.cpu()
    await bench.rig.clients.ask(do="send", sends=sends, pause=PAUSE_SECONDS)
    await bench.rig.floor.wait_idle()
    return (bench.cpu() - before - idle * (time.monotonic() - began)) * (1 / turns)


async def short_turns(bench: Bench, chats: Sequence[UUID], idle: Cpu) -> Cpu:
    """Return the CPU of a turn of each of these chats, one after the other."""
    sends = await sends_to(bench.rig, chats, tokens=TOKENS)
    began, before = time.monotonic(), bench.cpu()
    await bench.rig.clients.ask(do="send", sends=sends, pause=PAUSE_SECONDS)
    await bench.rig.rest(chats)
    await bench.rig.replica.worker.wait_idle()
    return (bench.cpu() - before - idle * (time.monotonic() - began)) * (1 / len(chats))


async def sends_to(rig: ReplicaRig, chats: Sequence[UUID], *, tokens: int) -> list[tuple[str, str, dict[str, Any]]]:
    body = {
        "content": [{"type": "text", "text": "And now?"}],
        "model_config_id": str(await rig.model(WIRE, tokens, pace=0)),
    }
    return [(f"{rig.url}/api/v1/chats/{chat}/messages", rig.token(chat), body) for chat in chats]


async def measure_turn(bench: Bench, claims: Claims, *, quick: bool) -> None:
    rounds, count = (3, 20) if quick else (10, 50)
    chats = [await bench.rig.rested(SHORT) for _ in range(count)]
    for _ in range(2):  # statements are prepared, histories are cached
        await short_turns(bench, chats, Cpu(0, 0))
        await floor_turns(bench, count, Cpu(0, 0))
    idle = await bench.idle(3 if quick else 9)
    pairs = []
    for _ in range(rounds):
        least = await floor_turns(bench, count, idle)
        pairs.append((least, await short_turns(bench, chats, idle)))
    python, postgres = (
        tuple(statistics.median(getattr(cpu, side) * 1000 for cpu in column) for column in zip(*pairs, strict=True))
        for side in ("python", "postgres")
    )
    print(f"\na short turn ({TOKENS} tokens), CPU: floor -> ours, ratio")
    for name, (least_ms, ours_ms) in (("Python", python), ("PostgreSQL", postgres)):
        print(f"  {name:10} {least_ms:5.2f} -> {ours_ms:5.2f} ms  {ours_ms / least_ms:5.2f}x")
    claims["short turn, Python CPU, ms"] = claim(python[1], PYTHON_BUDGET_MS)
    claims["short turn, PostgreSQL CPU, ms"] = claim(postgres[1], POSTGRES_BUDGET_MS)
    await measure_counts(bench, chats, idle, claims)


async def measure_counts(bench: Bench, chats: Sequence[UUID], idle: Cpu, claims: Claims) -> None:
    with counted(bench) as ran:
        await short_turns(bench, chats, idle)
    per_turn = {query: number / len(chats) for query, number in ran.items() if number >= len(chats) / 4}
    total = sum(per_turn.values())
    print(f"round trips of a turn: {total:.1f} statements")
    for query, number in sorted(per_turn.items(), key=lambda item: -item[1]):
        print(f"  {number:4.1f}  {query[:110]}")
    claims["short turn, statements"] = claim(total, STATEMENTS_BUDGET)


async def measure_starts(bench: Bench, claims: Claims, *, quick: bool) -> None:
    rig, medians, worst = bench.rig, [], []
    model = str(await rig.model(WIRE, 100, pace=50.0))
    for number in range(4 if quick else 12):
        tokens = [token for _, token in rig.people[:TOGETHER]]
        found = await rig.clients.ask(do="start", url=rig.url, model=model, tokens=tokens)
        await rig.stop([UUID(chat) for chat in found["chats"]])
        if number:  # the first opens connections
            medians.append(statistics.median(found["ms"]))
            worst.append(max(found["ms"]))
    shown = ", ".join(f"{median:.0f}/{late:.0f}" for median, late in zip(medians, worst, strict=True))
    print(f"\n{TOGETHER} chats started at once, first word, median/worst ms: {shown}")
    claims[f"{TOGETHER} chats started at once, first word p50, ms"] = claim(statistics.median(medians), START_P50_MS)
    claims[f"{TOGETHER} chats started at once, first word worst, ms"] = claim(statistics.median(worst), START_WORST_MS)


async def measure_first(bench: Bench, claims: Claims, *, quick: bool) -> None:
    for running, budget in ((0, IDLE_FIRST_MS), (100, BUSY_FIRST_MS)):
        await _measure_first(bench, claims, running=running, rounds=5 if quick else 40, budget=budget)


async def _measure_first(
    bench: Bench, claims: Claims, *, running: int, rounds: int, budget: float, where: str = ""
) -> None:
    seen, own = await first_tokens(bench.rig, running=running, rounds=rounds)
    usual = statistics.median(own)
    added = [each - usual for each in seen]
    what = f"added to the first word{where}, {running} chats running"
    print(f"\n{what}: p50 {percentile(added, 50):.1f} ms, p99 {percentile(added, 99):.1f} ms")
    claims[f"{what}, p50, ms"] = claim(percentile(added, 50), budget)


async def measure_peer(bench: Bench, claims: Claims, *, quick: bool) -> None:
    await _measure_first(
        bench, claims, running=0, rounds=5 if quick else 40, budget=PEER_FIRST_MS, where=", chat taken by a peer"
    )


async def measure_long(bench: Bench, claims: Claims, *, quick: bool) -> None:
    """Measure the time from sending a message to the provider's request."""
    rig = bench.rig
    chats = {length: await rig.rested(length) for length in (SHORT, LONG)}
    await rig.requests()
    taken: dict[int, list[float]] = {length: [] for length in chats}
    for number in range(6 if quick else 30):
        for length, chat in chats.items():
            sent = (await rig.clients.ask(do="send", sends=await sends_to(rig, [chat], tokens=3), pause=0))["at"][0]
            await rig.rest([chat])
            arrived = next(at for name, at, _ in await rig.requests() if name == str(chat))
            if number:  # the first loads the history
                taken[length].append((arrived - sent) * 1000)
            await asyncio.sleep(0.05)
    found = {length: statistics.median(times) for length, times in taken.items()}
    print(f"\nsent to requested: {SHORT} messages {found[SHORT]:.1f} ms, {LONG} messages {found[LONG]:.1f} ms")
    claims[f"sent to requested, {LONG} messages over {SHORT}"] = claim(found[LONG] / found[SHORT], LONG_BUDGET)


MEASURES: dict[str, Callable[..., Awaitable[None]]] = {
    "turn": measure_turn,
    "starts": measure_starts,
    "first": measure_first,
    "long": measure_long,
    "peer": measure_peer,
}


@asynccontextmanager
async def opened(stack: AsyncExitStack, *, with_owner: bool) -> AsyncIterator[Bench]:
    """Open a rig on a database of its own."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rookery-bench-")))
    server = EmbeddedServer(folder / "data")
    await server.start()
    try:
        await migrate.migrate(DatabaseConfig(server.url))
        async with (
            serving() as base,
            open_rig(folder, server.url, base, with_owner=with_owner, running_roots=ROOTS) as rig,
        ):
            assert server.pid is not None
            yield Bench(rig, server.pid)
    finally:
        await server.stop()


async def run(*, quick: bool, only: str | None) -> int:
    claims: Claims = {}
    names = [name for name in MEASURES if only in (None, name)]
    for with_owner in (False, True):
        chosen = [name for name in names if (name == "peer") is with_owner]
        if not chosen:
            continue
        async with AsyncExitStack() as stack, opened(stack, with_owner=with_owner) as bench:
            for name in chosen:
                await MEASURES[name](bench, claims, quick=quick)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What a turn costs, against a bare server.")
    parser.add_argument("--quick", action="store_true", help="fewer turns, under 40 seconds")
    parser.add_argument("--only", choices=MEASURES, help="measure only this")
    arguments = parser.parse_args()
    share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick, only=arguments.only))


if __name__ == "__main__":
    sys.exit(main())
