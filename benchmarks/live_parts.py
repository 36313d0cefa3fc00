"""CPU per delta in the part buffer: merged, numbered, encoded and delivered to 0, 1 and 10 readers.

The floor encodes each delta and appends it to a list, without readers. Paced: 100 concurrent answers with 100 deltas a
second each and real timers; the cost of an empty tick is subtracted from both. This is the claim. Burst: as fast as
possible. Readers are tasks that iterate, like streams. Paced, a window contains three or four deltas, and its timer and
the wake-up of each reader cost more than the encoding. "unmerged" is the same buffer without a window, which shows its
saving.

    python benchmarks/live_parts.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import uvloop

from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Text
from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.live.feeds import Subscription
from rookery.live.part_buffer import Episode, EpisodeKey, PartBuffer, PartLimits
from rookery.runtime.clock import SystemClock
from rookery.runtime.shared_tick import SharedTick

ANSWERS, PACE = 100, 100
READERS = (0, 1, 10)
WORD = " token"
CHUNK = 50  # deltas between two passes of the loop in a burst: about one read from a socket
# An estimate with room for noise: a few encodings per delta, while a whole token may cost a hundred (streaming).
PACED_BUDGET, BURST_BUDGET = {0: 5.0, 1: 8.0, 10: 24.0}, {0: 2.0, 1: 2.0, 10: 3.0}
MERGED_BUDGET = 0.8  # of the cost of ten readers without merging
REPLAY_BUDGET_MS = 20.0  # an estimate: the time for which one batch of a late reader may block the loop

Add = Callable[[int], None]


async def paced(add: Add, *, seconds: float) -> float:
    """Return the CPU seconds while every answer gets its deltas on time."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    started = time.process_time()
    for _ in range(int(seconds * PACE)):
        for answer in range(ANSWERS):
            add(answer)
        due += 1 / PACE
        await asyncio.sleep(max(0.0, due - loop.time()))
    return time.process_time() - started


async def burst(add: Add, *, count: int) -> float:
    started = time.process_time()
    for index in range(count):
        add(index % ANSWERS)
        if index % CHUNK == 0:
            await asyncio.sleep(0)
    return time.process_time() - started


async def nothing(run: Callable[[Add], Awaitable[float]]) -> float:
    return await run(lambda answer: None)


async def floor(run: Callable[[Add], Awaitable[float]]) -> float:
    lists: list[list[bytes]] = [[] for _ in range(ANSWERS)]

    def add(answer: int) -> None:
        kept = lists[answer]
        kept.append(deltas.encode(len(kept) + 1, Role.ASSISTANT, Text(WORD)))

    return await run(add)


async def ours(run: Callable[[Add], Awaitable[float]], *, readers: int, merge_chars: int = 512) -> float:
    buffer = PartBuffer(SystemClock(), limits=PartLimits(episode_max_bytes=1 << 30, merge_chars=merge_chars))
    keys = [EpisodeKey(ChatId(UUID(int=1)), 1, answer + 1) for answer in range(ANSWERS)]
    episodes = [buffer.create_episode(key) for key in keys]
    tasks = [asyncio.create_task(drain(buffer.subscribe(key))) for key in keys for _ in range(readers)]
    await asyncio.sleep(0)
    added = 0

    def add(answer: int) -> None:
        nonlocal added
        added += 1
        episodes[answer].add_part(Role.ASSISTANT, Text(WORD))

    spent = await run(add)
    started = time.process_time()
    for key in keys:
        buffer.close_episode(key)
    read = await asyncio.gather(*tasks)
    spent += time.process_time() - started
    assert sum(map(characters, read)) == added * len(WORD) * readers, "a reader missed words"
    buffer.close()
    return spent


async def drain(subscription: Subscription) -> list[PartEvent]:
    events: list[PartEvent] = []
    with subscription:
        async for batch in subscription:
            events += batch
    return events


def characters(events: list[PartEvent]) -> int:
    return sum(len(deltas.piece(deltas.decode(data).part) or "") for _, _, data in events)


def replay_ms() -> float:
    """Return the longest pull of a reader that joins at the end of a long answer with small parts."""
    never: list[Callable[[], None]] = []
    buffer = PartBuffer(SystemClock(), tick=SharedTick(call_later=lambda _, callback: Never(never, callback)))
    key = EpisodeKey(ChatId(UUID(int=1)), 1, 1)
    episode: Episode = buffer.create_episode(key)
    for _ in range(20_000):
        episode.add_part(Role.ASSISTANT, Text(WORD))
        episode.flush()
    longest = 0.0
    with buffer.subscribe(key) as subscription:
        while True:
            started = time.process_time()
            batch = subscription.pull()
            longest = max(longest, time.process_time() - started)
            if not batch:
                return longest * 1000


class Never:
    """A timer that does not fire."""

    def __init__(self, kept: list[Callable[[], None]], callback: Callable[[], None]) -> None:
        kept.append(callback)

    def cancel(self) -> None:
        return


async def least(measures: dict[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, float]:
    """Return the minimum of some rounds, because noise only adds. The rounds alternate, so that noise affects all."""
    found: dict[str, float] = {}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name] = min(await measure(), found.get(name, float("inf")))
    return found


async def run(*, quick: bool) -> int:
    seconds, count, rounds = (0.6, 40_000, 3) if quick else (4.0, 500_000, 5)
    claims: dict[str, dict[str, object]] = {}
    runs: dict[str, tuple[Callable[[Add], Awaitable[float]], int, dict[int, float]]] = {
        "paced": (lambda add: paced(add, seconds=seconds), int(seconds * PACE) * ANSWERS, PACED_BUDGET),
        "burst": (lambda add: burst(add, count=count), count, BURST_BUDGET),
    }
    most = READERS[-1]
    for kind, (play, total, budgets) in runs.items():
        measures: dict[str, Callable[[], Awaitable[float]]] = {
            "empty": partial(nothing, play),
            "floor": partial(floor, play),
            **{f"{readers} readers": partial(ours, play, readers=readers) for readers in READERS},
            f"{most} readers, unmerged": partial(ours, play, readers=most, merge_chars=1),
        }
        found = await least(measures, rounds)
        empty = found.pop("empty")
        costs = {name: (spent - empty) / total * 1e6 for name, spent in found.items()}
        print(f"\n{kind}: CPU us per delta, {ANSWERS} answers")
        for name, cost in costs.items():
            print(f"  {name:24}{cost:8.2f}")
        for readers in READERS:
            ratio = costs[f"{readers} readers"] / costs["floor"]
            claims[f"{kind}, {readers} readers: over floor"] = claim(ratio, budgets[readers])
        saved = costs[f"{most} readers"] / costs[f"{most} readers, unmerged"]
        claims[f"{kind}, {most} readers: merged over unmerged"] = claim(saved, MERGED_BUDGET)
    longest = min(replay_ms() for _ in range(3))
    print(f"\nlate joiner after 20,000 parts: longest pull {longest:.1f} ms")
    claims["late joiner: longest pull, ms"] = claim(longest, REPLAY_BUDGET_MS)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per delta in the part buffer, against bare encoding.")
    parser.add_argument("--quick", action="store_true", help="fewer deltas and rounds, under 40 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
