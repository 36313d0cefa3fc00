"""A chaos run: users talk to a deployment with faults, and the invariants are checked at the end.

See `python -m tests.chaos.run --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rookery.telemetry import log
from tests.chaos import debug_records, invariants
from tests.chaos.deployment import Deployment, database_server, open_deployment
from tests.chaos.faults import Faults
from tests.chaos.schedule import script_of

REPLICAS = 3
# From the last fault until all users have their answers. This is far more than needed.
SETTLE_SECONDS = 60.0
# The time of a kill on a busy machine, with everything before the next one.
KILL_SECONDS = 15.0
SHOWN = 50

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    faults: list[str]
    debug_runs: int
    kills: int
    chats: int
    messages: int
    struck: dict[str, int]
    settled_seconds: float


async def chaos(folder: Path, *, seed: int, kills: int, chats: int, say: Progress) -> Outcome:
    """Keep this many chats active until this many processes were killed.

    Then let all users finish, and check the invariants.
    """
    say(f"seed {seed}")
    async with (
        database_server(folder) as server,
        open_deployment(
            lambda: server.url, folder, seed=seed, replicas=REPLICAS, is_fast=True, has_doors=True
        ) as deployment,
    ):
        started = time.monotonic()

        def told(killed: int) -> None:
            if killed % 25 == 0 or killed == kills:
                say(f"{killed} of {kills} kills, {len(deployment.people)} chats, {time.monotonic() - started:.0f} s")

        fire = Faults(deployment, server, on_kill=told)
        is_over = asyncio.Event()
        numbers = count()
        async with fire.burning(kills) as injecting:
            crowd = [asyncio.create_task(_live(deployment, numbers, is_over)) for _ in range(chats)]
            try:
                _, endless = await asyncio.wait([injecting], timeout=KILL_SECONDS * (kills + 10))
                if endless:
                    up = [replica.is_up for replica in deployment.replicas]
                    raise TimeoutError(f"{fire.kills} kills, then nothing; replicas up: {up}; struck: {fire.struck}")
                injecting.result()
                is_over.set()
                calm = time.monotonic()
                _, late = await asyncio.wait(crowd, timeout=SETTLE_SECONDS)
                stuck = [f"still at work after {SETTLE_SECONDS:g} s: {chat}" for chat in deployment.watch.unrested()]
                settled = time.monotonic() - calm
                for person in crowd:
                    if person.done():
                        person.result()
            finally:
                for person in crowd:
                    person.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)
        run = await deployment.record(database_crashes=fire.struck["RESTART_DATABASE"])
        recorded_seconds = await debug_records.settle(deployment.pool)
        records = await debug_records.read(deployment.pool)
        say(f"{len(records)} debug runs, ended {recorded_seconds:.0f} s after the last answer")
        return Outcome(
            faults=[*(stuck if late else []), *invariants.find_faults(run), *debug_records.find_faults(records)],
            debug_runs=len(records),
            kills=fire.kills,
            chats=len(run.chats),
            messages=len(run.accepted),
            struck=dict(sorted(fire.struck.items())),
            settled_seconds=settled,
        )


async def _live(deployment: Deployment, numbers: Iterator[int], is_over: asyncio.Event) -> None:
    """Run one chat after the other, at least one."""
    while True:
        number = next(numbers)
        person = deployment.person(number)
        await person.follow(script_of(deployment.seed, number))
        deployment.watch.forget(person.chat_id)
        if is_over.is_set():
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the decisions of an earlier run")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--chats", type=int, default=50, help="how many are going at any time")
    parser.add_argument("--keep", type=Path, default=None, help="an empty folder for the logs of the replicas")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="rookery-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "people.log").open("w") as stream:
            log.configure("info", "text", replica="people", stream=stream)
            outcome = asyncio.run(chaos(folder, seed=seed, kills=options.kills, chats=options.chats, say=_say))
    _say(f"{outcome.kills} kills, {outcome.chats} chats, {outcome.messages} messages; struck: {outcome.struck}")
    _say(f"at rest {outcome.settled_seconds:.1f} s after the last fault")
    for fault in outcome.faults[:SHOWN]:
        _say(f"WRONG {fault}")
    _say(f"seed {seed}: {'nothing is wrong' if not outcome.faults else f'{len(outcome.faults)} things are wrong'}")
    sys.exit(bool(outcome.faults))


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
