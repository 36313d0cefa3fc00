"""Kill the replica of one place again and again, and see that the server answers throughout.

    python -m tests.chaos.slot_kills [--seconds 120] [--every 3] [--replicas 3]

A request that meets the death of the replica that had accepted it is made once more, as clients do; one that fails
twice in a row counts. At the end all places must be ready again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import asyncpg

from rookery import replica_slots
from rookery.replica_slots import SlotState
from rookery.store.embedded.server import running_url
from tests.cli.served import Served, serving

LOOK_SECONDS = 0.2
READY_AGAIN_SECONDS = 90.0
FAILURES = (OSError, HTTPException)


def answers(served: Served) -> bool:
    for _ in range(2):
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


def run(*, seconds: float, every: float, replicas: int) -> int:
    kills = asked = failed = 0
    with tempfile.TemporaryDirectory(prefix="rookery-chaos-") as folder:
        home, data_dir = Path(folder), Path(folder) / "data"
        with serving(home, "--data-dir", str(data_dir), "--replicas", str(replicas)) as served:
            end, next_kill = time.monotonic() + seconds, time.monotonic()
            while (now := time.monotonic()) < end:
                if now >= next_kill:
                    next_kill += every
                    pid = asyncio.run(pid_of_place(data_dir, 0))
                    with suppress(ProcessLookupError):
                        if pid is not None:
                            os.kill(pid, signal.SIGKILL)
                            kills += 1
                asked += 1
                failed += not answers(served)
                time.sleep(LOOK_SECONDS)
            worst = max(slot.deaths for slot in replica_slots.read(data_dir))
            until = time.monotonic() + READY_AGAIN_SECONDS
            while not all(slot.state is SlotState.READY for slot in replica_slots.read(data_dir)):
                if time.monotonic() > until:
                    print("Not all places are ready again.")
                    return 1
                time.sleep(LOOK_SECONDS)
            took = READY_AGAIN_SECONDS - (until - time.monotonic())
            ready = served.readiness()
            code = served.stop()
    print(f"{kills} kills, {worst} deaths in a row; {failed} of {asked} requests failed twice in a row")
    print(f"all {len(ready['replicas'])} places ready {took:.1f} s after the last look; exit code {code}")
    return int(failed > 0 or code != 0 or ready["status"] != "ready")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the replica of one place again and again.")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--replicas", type=int, default=3)
    arguments = parser.parse_args()
    return run(seconds=arguments.seconds, every=arguments.every, replicas=arguments.replicas)


if __name__ == "__main__":
    sys.exit(main())
