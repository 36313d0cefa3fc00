"""CPU of a wait: `runtime/waits.py` against `asyncio.timeout` and `asyncio.shield`, in the same run.

Two kinds of waits occur in every transition and every frame of a stream: a wait with a limit for something that is
nearly always ready, and a commit that a cancellation must not interrupt.

    python benchmarks/waits.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}. The budgets are ratios. If the
first or the last is missed, the standard library is fast enough, and `runtime/waits.py` should be removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rookery.runtime.waits import Uninterrupted, WithTimeout

# A limit that is never reached.
SECONDS = 60.0
# The second may cost more than the standard one, because it is rare and saves the cost of the first.
READY_BUDGET, TURN_BUDGET, COMMIT_BUDGET = 0.5, 1.5, 0.7

Wait = Callable[[], Awaitable[int]]


async def ready() -> int:
    """Wait like for a free connection, or for a socket that accepts the frame."""
    return 1


async def hop() -> int:
    """Wait for a result in the next pass of the event loop."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    return int(await future)


async def standard_timeout(work: Callable[[], Awaitable[int]]) -> int:
    async with asyncio.timeout(SECONDS):
        return await work()


async def standard_shield() -> int:
    return await asyncio.shield(asyncio.ensure_future(hop()))


async def cpu_us(wait: Wait, *, rounds: int) -> float:
    """Return the CPU time of one wait in microseconds."""
    began = time.process_time()
    for _ in range(rounds):
        await wait()
    return (time.process_time() - began) / rounds * 1e6


async def compare(name: str, standard: Wait, ours: Wait, *, rounds: int, repeats: int) -> float:
    pairs = [(await cpu_us(standard, rounds=rounds), await cpu_us(ours, rounds=rounds)) for _ in range(repeats)]
    ratio = statistics.median(mine / theirs for theirs, mine in pairs)
    theirs, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{name}: {ratio:.2f}x  (CPU us of a wait, standard -> ours: {theirs:.2f} -> {mine:.2f})")
    return ratio


async def run(*, quick: bool) -> int:
    rounds, repeats = (20_000, 5) if quick else (100_000, 9)

    async def within_ready() -> int:
        return await WithTimeout(SECONDS, ready().__await__())

    async def within_hop() -> int:
        return await WithTimeout(SECONDS, hop().__await__())

    async def unbroken() -> int:
        return await Uninterrupted(hop().__await__())

    claims = {
        "limited wait for what is ready: over asyncio.timeout": (
            await compare("ready", lambda: standard_timeout(ready), within_ready, rounds=rounds, repeats=repeats),
            READY_BUDGET,
        ),
        "limited wait of one turn: over asyncio.timeout": (
            await compare("one turn", lambda: standard_timeout(hop), within_hop, rounds=rounds, repeats=repeats),
            TURN_BUDGET,
        ),
        "unbreakable wait: over asyncio.shield": (
            await compare("unbreakable", standard_shield, unbroken, rounds=rounds, repeats=repeats),
            COMMIT_BUDGET,
        ),
    }
    shown = {
        name: {"value": round(value, 3), "budget": most, "ok": value <= most} for name, (value, most) in claims.items()
    }
    print(f"\n{json.dumps(shown)}")
    return 0 if all(each["ok"] for each in shown.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What a wait costs, against the standard library.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 10 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
