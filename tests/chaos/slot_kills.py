"""Kills replicas of a running server every few seconds, and checks that the server answers throughout.

    python -m tests.chaos.slot_kills [--place first|random|both] [--seed 7] [--seconds 120] [--every 3] [--replicas 3]

With `first`, the replica of the first slot is killed as soon as it is ready. With `random`, any ready replica is killed
while another one is ready, because otherwise no replica could answer.

A request that fails because its replica died is repeated once, as clients do. A request that fails twice in a row
counts as a failure. At the end, all slots must be ready again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import asyncpg

from rookery.runtime import replica_slots
from rookery.runtime.replica_slots import ReplicaSlot, SlotState
from rookery.store.db.embedded.server import running_url
from tests.cli.serve.server_process import Served, serving

LOOK_SECONDS = 0.2
READY_AGAIN_SECONDS = 90.0
FAILURES = (OSError, HTTPException)

Choice = Callable[[list[int]], int | None]  # of the ready slots


def first_place(ready: list[int]) -> int | None:
    return 0 if 0 in ready else None


def random_place(seed: int) -> Choice:
    generator = random.Random(seed)
    return lambda ready: generator.choice(ready) if len(ready) > 1 else None


@dataclass(slots=True)
class Findings:
    """The observations of a run. `absences` are the seconds from a kill until the slot was ready again."""

    kills: int = 0
    skipped: int = 0
    asked: int = 0
    repeated: int = 0
    failed: int = 0
    slowest: float = 0.0
    most_deaths: int = 0
    ready_counts: list[int] = field(default_factory=list)
    absences: list[float] = field(default_factory=list)
    killed_at: dict[int, float] = field(default_factory=dict)

    def ask(self, served: Served) -> None:
        began = time.monotonic()
        self.asked += 1
        if not _answers(served):
            self.repeated += 1
            self.failed += not _answers(served)
        self.slowest = max(self.slowest, time.monotonic() - began)

    def look(self, slots: Sequence[ReplicaSlot], *, dead: dict[int, int]) -> list[int]:
        """Return the ready slots. `dead` has the number of restarts of a slot at its kill; later restarts count."""
        for slot in slots:
            self.most_deaths = max(self.most_deaths, slot.deaths)
            if slot.state is SlotState.READY and slot.restarts > dead.get(slot.index, slot.restarts):
                del dead[slot.index]
                self.absences.append(time.monotonic() - self.killed_at.pop(slot.index))
        ready = [slot.index for slot in slots if slot.state is SlotState.READY and slot.index not in dead]
        self.ready_counts.append(len(ready))
        return ready

    def report(self, took: float) -> None:
        print(f"{self.kills} kills, {self.skipped} times nobody could be killed; {self.most_deaths} deaths in a row")
        print(f"{self.failed} of {self.asked} requests failed twice in a row, {self.repeated} were made a second time")
        print(f"slowest answer {self.slowest:.2f} s; {statistics.fmean(self.ready_counts):.2f} places ready on average")
        if self.absences:
            middle, longest = statistics.median(self.absences), max(self.absences)
            print(f"a killed place was ready again after {middle:.1f} s in the median, {longest:.1f} s at most")
        print(f"all places ready {took:.1f} s after the last look")


def _answers(served: Served) -> bool:
    with suppress(*FAILURES):
        return served.get("/readyz")[0] == 200
    return False


async def pid_of_place(data_dir: Path, index: int) -> int | None:
    url = running_url(data_dir)
    assert url is not None
    connection = await asyncpg.connect(url)
    try:
        statement = "SELECT pid FROM replicas WHERE index = $1 AND stopping_at IS NULL ORDER BY started_at DESC LIMIT 1"
        found: int | None = await connection.fetchval(statement, index)
        return found
    finally:
        await connection.close()


def kill(data_dir: Path, index: int) -> bool:
    pid = asyncio.run(pid_of_place(data_dir, index))
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def run(choose: Choice, *, seconds: float, every: float, replicas: int) -> int:
    found = Findings()
    dead: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="rookery-chaos-") as folder:
        home, data_dir = Path(folder), Path(folder) / "data"
        with serving(home, "--data-dir", str(data_dir), "--replicas", str(replicas)) as served:
            end, next_kill = time.monotonic() + seconds, time.monotonic()
            while (now := time.monotonic()) < end:
                slots = replica_slots.read(data_dir)
                ready = found.look(slots, dead=dead)
                if now >= next_kill:
                    next_kill += every
                    victim = choose(ready)
                    if victim is not None and kill(data_dir, victim):
                        found.kills += 1
                        found.killed_at[victim] = time.monotonic()
                        dead[victim] = slots[victim].restarts
                    else:
                        found.skipped += 1
                found.ask(served)
                time.sleep(LOOK_SECONDS)
            began = time.monotonic()
            while len(found.look(replica_slots.read(data_dir), dead=dead)) < replicas:
                if time.monotonic() > began + READY_AGAIN_SECONDS:
                    print("Not all places are ready again.")
                    return 1
                time.sleep(LOOK_SECONDS)
            took = time.monotonic() - began
            ready_again = served.readiness()["status"] == "ready"
            code = served.stop()
    found.report(took)
    print(f"exit code {code}")
    return int(found.failed > 0 or code != 0 or not ready_again)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill replicas of a running server every few seconds.")
    parser.add_argument("--place", choices=("first", "random", "both"), default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--replicas", type=int, default=3)
    arguments = parser.parse_args()
    choices = {"first": first_place, "random": random_place(arguments.seed)}
    worst = 0
    for name, choose in choices.items():
        if arguments.place in (name, "both"):
            print(f"place {name}, seed {arguments.seed}:", flush=True)
            code = run(choose, seconds=arguments.seconds, every=arguments.every, replicas=arguments.replicas)
            worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
