"""A soak: chats of mixed sizes for an hour. The server's memory must not grow once its caches are full.

    python -m tests.chaos.soak [--minutes 60] [--clients 8] [--seed 1]

One replica serves on a real port; the provider and the viewers are other processes. Chats are created through the API,
with answers of 4 kB, 40 kB and 2 MB, one turn or several, some of them watched. The memory of the replica's process is
printed every ten seconds, with the sizes of its caches and of the part buffer. The requests are made by the same
process, so its memory includes the client's. Run it on a quiet machine: the caches follow the load.

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
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import uvloop
from benchmarks import _worker_rig
from benchmarks._replica_rig import ReplicaRig, open_rig, resident_kib

from rookery.runtime.cache import CHAT_SECONDS
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig
from rookery.worker.memory import SWEEP_SECONDS, TRIM_SECONDS

# Tokens of six bytes, and how many of a hundred chats have answers of that length.
SIZES = ((700, 70), (7_000, 25), (330_000, 5))
MAX_TURNS = 3
WATCHED = 0.3
LINE_SECONDS = 10.0
# After this, whatever the last turns left has expired and was given back.
REST_SECONDS = CHAT_SECONDS + SWEEP_SECONDS + TRIM_SECONDS + 10
GROWTH_BUDGET_MIB, REST_BUDGET_MIB = 20.0, 40.0


class Memory(NamedTuple):
    """The memory of the process in MiB. `other` is what neither caches nor live parts count.

    `resident` follows the load, because the caches do: entries expire by age. `other` should not.
    """

    resident: float
    other: float


class Soak:
    def __init__(self, rig: ReplicaRig, rng: Random) -> None:
        self._rig = rig
        self._rng = rng
        self.turns: Counter[int] = Counter()

    async def client(self, until: float) -> None:
        """One chat after the other."""
        while time.monotonic() < until:
            tokens = self._rng.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]
            model = await self._rig.model("completions", tokens, pace=0)
            chat = await self._create(model)
            for number in range(self._rng.randint(1, MAX_TURNS)):
                if number:
                    await self._post(chat, f"/api/v1/chats/{chat}/messages", _message(model))
                await self._rig.rest([chat])
                self.turns[tokens] += 1

    async def watcher(self, until: float) -> None:
        """Opens the newest chats of the moment, and leaves them again."""
        while time.monotonic() < until:
            newest = list(self._rig.owners)[-3:]
            if newest and self._rng.random() < WATCHED:
                await self._rig.watch(newest)
                await self._rig.clients.ask(do="close")
            await asyncio.sleep(0.5)

    async def _create(self, model: UUID) -> UUID:
        number = len(self._rig.owners) % len(self._rig.people)
        made = await self._request(self._rig.people[number][1], "/api/v1/chats", _message(model))
        chat = UUID(made["id"])
        self._rig.owners[chat] = number
        return chat

    async def _post(self, chat: UUID, path: str, body: dict[str, Any]) -> None:
        await self._request(self._rig.token(chat), path, body)

    async def _request(self, token: str, path: str, body: dict[str, Any]) -> Any:
        # A connection for each request: the server closes those that are idle, and one may close as it is used again.
        headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
        async with self._rig.session.post(self._rig.url + path, json=body, headers=headers) as response:
            if response.status not in (200, 201):
                raise RuntimeError(f"{path} was answered with {response.status}: {await response.text()}")
            return await response.json()

    def line(self, began: float) -> Memory:
        """Print and return the memory of the process."""
        worker, resident = self._rig.replica.worker, resident_kib() / 1024
        caches = sum(cache.size_bytes for cache in worker.caches) / 2**20
        parts = worker.buffer.stats()
        print(
            f"{time.monotonic() - began:6.0f} s  {self.turns.total():6} turns  {resident:7.1f} MiB"
            f"  caches {caches:6.1f} MiB  live parts {parts.size_bytes / 2**20:6.1f} MiB in {parts.episodes}",
            flush=True,
        )
        return Memory(resident, resident - caches - parts.size_bytes / 2**20)


def _message(model: UUID) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "Tell me more."}], "model_config_id": str(model)}


async def soak(rig: ReplicaRig, options: argparse.Namespace) -> int:
    run = Soak(rig, Random(options.seed))
    began = time.monotonic()
    until = began + options.minutes * 60
    lines: list[Memory] = []
    start = rest = run.line(began)
    async with asyncio.TaskGroup() as group:
        for _ in range(options.clients):
            group.create_task(run.client(until))
        group.create_task(run.watcher(until))
        while time.monotonic() < until:
            await asyncio.sleep(LINE_SECONDS)
            lines.append(run.line(began))
    print(f"at rest; turns by tokens of their answers: {dict(run.turns)}", flush=True)
    for _ in range(round(REST_SECONDS / LINE_SECONDS)):
        await asyncio.sleep(LINE_SECONDS)
        rest = run.line(began)
    quarter = max(len(lines) // 4, 1)
    # The caches are full by the second quarter.
    early, late = lines[quarter : 2 * quarter] or lines, lines[-quarter:]
    growth = _middle([each.resident for each in late]) - _middle([each.resident for each in early])
    growth_of_other = _middle([each.other for each in late]) - _middle([each.other for each in early])
    claims = {
        "memory from the second to the last quarter, MiB": _claim(growth, GROWTH_BUDGET_MIB),
        "the same without caches and live parts, MiB": _claim(growth_of_other, GROWTH_BUDGET_MIB),
        "memory at rest over the start, MiB": _claim(rest.resident - start.resident, REST_BUDGET_MIB),
    }
    print(json.dumps(claims))
    return 0 if all(each["ok"] for each in claims.values()) else 1


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


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
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(uvloop.run(main(parser.parse_args())))
