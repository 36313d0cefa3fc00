"""A soak: chats of mixed sizes at a steady rate for an hour. Memory must stay flat once the caches are full.

    python -m tests.chaos.soak [--minutes 60] [--rate 0.5] [--clients 8] [--seed 1]

One replica serves on a real port; the provider and the viewers are other processes. Chats are created through the API,
with answers of 4 kB, 40 kB and 2 MB, one to three turns, some of them watched. The load is fixed: `--rate` chats begin
each second, and one of seven in a row has the large answer, so that the caches are always about as full. A machine that
is too busy for this load begins chats late; the run proves nothing if it does so for many.

The memory of the replica's process is printed every ten seconds, with the sizes of its caches and of the part buffer.
The requests are made by the same process, so its memory includes the client's.

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import uvloop
from benchmarks import _worker_rig
from benchmarks._replica_rig import ReplicaRig, open_rig, resident_kib

from rookery.runtime.cache import CHAT_SECONDS
from rookery.runtime.heap import share_heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig
from rookery.worker.memory_upkeep import SWEEP_SECONDS, TRIM_SECONDS

# Tokens of ten words (60 bytes), and the number of seven chats with answers of that length.
SIZES = ((70, 4), (700, 2), (33_000, 1))
WORDS = 10
TURNS = (1, 2, 3)
WATCHED = 0.3
# The recent chats from which the watcher chooses. A list of all chats would count as memory of the server.
RECENT_CHATS = 50
TURN_SECONDS = 600.0  # long, because a busy machine is not an error
LINE_SECONDS = 10.0
# After this time, everything that the last turns left has expired and was returned to the system.
REST_SECONDS = CHAT_SECONDS + SWEEP_SECONDS + TRIM_SECONDS + 10
# The caches are full after their maximum age and the busy trim interval, which is within the first eighth of an hour.
EIGHTHS = 8
RISE_BUDGET_MIB, REST_BUDGET_MIB = 20.0, 40.0
LATE_SECONDS, LATE_BUDGET_PERCENT = 10.0, 5.0


class Memory(NamedTuple):
    """The memory of the process in MiB. `other` is the memory that neither caches nor live parts count."""

    resident: float
    caches: float
    parts: float

    @property
    def other(self) -> float:
        return self.resident - self.caches - self.parts


class PlannedChat(NamedTuple):
    due: float
    tokens: int
    turns: int


def plan(rng: Random, *, rate: float, began: float, until: float) -> Iterator[PlannedChat]:
    """Yield the chats of the run, `rate` per second: all sizes with one turn, then with two, then with three."""
    group = [tokens for tokens, count in SIZES for _ in range(count)]
    chats = ((tokens, turns) for turns in cycle(TURNS) for tokens in rng.sample(group, len(group)))
    for number, (tokens, turns) in enumerate(chats):
        due = began + number / rate
        if due >= until:
            return
        yield PlannedChat(due, tokens, turns)


class Soak:
    def __init__(self, rig: ReplicaRig, chats: Iterator[PlannedChat], rng: Random) -> None:
        self._rig = rig
        self._chats = chats
        self._rng = rng
        self._created = 0
        self.turns: Counter[int] = Counter()
        self.late: list[bool] = []

    async def client(self, until: float) -> None:
        """Begin the next planned chat when it is due, and finish it. After `until`, only count the remaining chats."""
        for planned in self._chats:
            await asyncio.sleep(max(planned.due - time.monotonic(), 0))
            self.late.append(time.monotonic() - planned.due > LATE_SECONDS)
            if time.monotonic() > until:
                continue
            model = await self._rig.model("completions", planned.tokens, pace=0, words=WORDS)
            token = self._rig.people[self._created % len(self._rig.people)][1]
            chat = await self._create(token, model)
            for number in range(planned.turns):
                if number:
                    await self._request(token, f"/api/v1/chats/{chat}/messages", _message(model))
                await self._rig.rest([chat], seconds=TURN_SECONDS)
                self.turns[planned.tokens] += 1

    async def watcher(self) -> None:
        """Open the newest chats and leave them again, until cancelled."""
        while True:
            newest = list(self._rig.owners)[-3:]
            if newest and self._rng.random() < WATCHED:
                await self._rig.watch(newest)
                await self._rig.clients.ask(do="close")
            await asyncio.sleep(0.5)

    async def _create(self, token: str, model: UUID) -> UUID:
        owner = self._created % len(self._rig.people)
        self._created += 1
        made = await self._request(token, "/api/v1/chats", _message(model))
        chat = UUID(made["id"])
        self._rig.owners[chat] = owner
        if len(self._rig.owners) > RECENT_CHATS:
            del self._rig.owners[next(iter(self._rig.owners))]
        return chat

    async def _request(self, token: str, path: str, body: dict[str, Any]) -> Any:
        # A new connection for each request, because the server closes idle ones, possibly at the moment of the next
        # use.
        headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
        async with self._rig.session.post(self._rig.url + path, json=body, headers=headers) as response:
            if response.status not in (200, 201):
                raise RuntimeError(f"{path} was answered with {response.status}: {await response.text()}")
            return await response.json()

    def line(self, began: float) -> Memory:
        """Print and return the memory of the process."""
        worker = self._rig.replica.worker
        caches = sum(cache.size_bytes for cache in worker.caches) / 2**20
        parts = worker.buffer.stats()
        memory = Memory(resident_kib() / 1024, caches, parts.size_bytes / 2**20)
        print(
            f"{time.monotonic() - began:6.0f} s  {self.turns.total():6} turns  {memory.resident:7.1f} MiB"
            f"  caches {caches:6.1f} MiB  live parts {memory.parts:6.1f} MiB in {parts.episodes}"
            f"  other {memory.other:6.1f} MiB",
            flush=True,
        )
        return memory


def _message(model: UUID) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "Tell me more."}], "model_config_id": str(model)}


async def soak(rig: ReplicaRig, options: argparse.Namespace) -> int:
    began = time.monotonic()
    until = began + options.minutes * 60
    rng = Random(options.seed)
    run = Soak(rig, plan(rng, rate=options.rate, began=began, until=until), rng)
    lines: list[Memory] = []
    start = rest = run.line(began)
    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(run.client(until)) for _ in range(options.clients)]
        watcher = group.create_task(run.watcher())
        while time.monotonic() < until:
            await asyncio.sleep(LINE_SECONDS)
            lines.append(run.line(began))
        await asyncio.wait(clients)
        watcher.cancel()
    print(f"at rest; turns by tokens of their answers: {dict(run.turns)}", flush=True)
    for _ in range(round(REST_SECONDS / LINE_SECONDS)):
        await asyncio.sleep(LINE_SECONDS)
        rest = run.line(began)
    resident, other = (medians_of_eighths([getattr(each, name) for each in lines]) for name in ("resident", "other"))
    print(f"median of each eighth, MiB: {_shown(resident)}")
    print(f"the same without caches and live parts: {_shown(other)}")
    claims = {
        f"chats that began more than {LATE_SECONDS:.0f} s late, %": _claim(
            100 * sum(run.late) / max(len(run.late), 1), LATE_BUDGET_PERCENT
        ),
        "rise of memory from any eighth after the first to a later one, MiB": _claim(
            largest_rise(resident[1:]), RISE_BUDGET_MIB
        ),
        "the same without caches and live parts, MiB": _claim(largest_rise(other[1:]), RISE_BUDGET_MIB),
        "memory at rest over the start, MiB": _claim(rest.resident - start.resident, REST_BUDGET_MIB),
    }
    print(json.dumps(claims))
    return 0 if all(each["ok"] for each in claims.values()) else 1


def largest_rise(values: Sequence[float]) -> float:
    """Return the largest difference between a value and an earlier one; 0 if the values only decrease."""
    return max((late - early for n, early in enumerate(values) for late in values[n:]), default=0.0)


def medians_of_eighths(values: list[float]) -> list[float]:
    """Return the median of each eighth, so that single peaks do not count."""
    bounds = [len(values) * n // EIGHTHS for n in range(EIGHTHS + 1)]
    return [_median(values[low:high]) for low, high in pairwise(bounds) if low < high]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _shown(values: list[float]) -> str:
    return ", ".join(f"{each:.0f}" for each in values)


def _claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 1), "budget": budget, "ok": value <= budget}


async def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="rookery-soak-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            async with (
                _worker_rig.serving() as base,
                open_rig(Path(folder), server.url, base) as rig,
            ):
                return await soak(rig, options)
        finally:
            await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.5, help="chats that begin each second")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    share_heap()  # `rookery serve` does the same
    sys.exit(uvloop.run(main(parser.parse_args())))
