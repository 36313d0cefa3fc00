"""The cost of streaming tokens to clients: a complete replica, from the provider's socket to WebSockets.

The provider and the clients run in separate processes, so that only the CPU of the replica counts. The floor is the
minimum of any server, on the same web server in the same run: aiohttp, one typed decode per event, a merge, a send.

    python benchmarks/streaming.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import ReplicaRig, open_rig, resident_kib
from benchmarks._worker_rig import serving
from benchmarks.token_decode import PATHS

from rookery.runtime.heap import share_heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig

# Multiples of the floor, by the number of answers at once.
PACED_BUDGETS, BURST_BUDGET = {10: 0.9, 100: 0.8}, 3.0
FIRST_P50_MS, FIRST_P99_MS = 12.0, 50.0
BURST_FIRST_MS = 500.0
IDLE_BUDGET_KIB = 50.0
# With the relay, two processes handle each part. A long history must not slow down opening a chat (an estimate).
RELAY_BUDGET, OPEN_BUDGET = 1.2, 1.5
PACE, STREAM_PACE = 100.0, 50.0
SHORT, LONG = 10, 10_000
WIRE = "completions"

Claims = dict[str, dict[str, object]]


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(values: Sequence[float]) -> str:
    return f"p50 {percentile(values, 50):.1f} ms, p99 {percentile(values, 99):.1f} ms, worst {max(values):.1f} ms"


async def window(rig: ReplicaRig, seconds: float) -> float:
    """Return the CPU us per token that reached a client between two readings while everything streams."""
    words, cpu = await rig.clients.words(), rig.cpu()
    await asyncio.sleep(seconds)
    cpu = rig.cpu() - cpu
    return cpu / max(1, await rig.clients.words() - words) * 1e6


async def floor_paced(rig: ReplicaRig, *, answers: int, seconds: float) -> float:
    model = f"{int((seconds + 2) * PACE)}@{PACE:g}@0"
    streams = [(f"{rig.floor_url}/{WIRE}/{model}", "")] * answers
    await rig.clients.ask(do="open", streams=streams, wait=False)
    await asyncio.sleep(0.5)
    found = await window(rig, seconds)
    await rig.clients.ask(do="close")
    return found


async def ours_paced(rig: ReplicaRig, *, answers: int, seconds: float, viewers: int = 1) -> float:
    """Return the cost per token and viewer."""
    model = await rig.model(WIRE, int((seconds + 4 + answers / 50) * PACE), pace=PACE)
    chats = await rig.start(model, answers)
    await rig.watch(chats, viewers=viewers)
    await asyncio.sleep(0.5)
    found = await window(rig, seconds)
    await rig.clients.ask(do="close")
    await rig.stop(chats)
    return found


async def floor_burst(rig: ReplicaRig, *, answers: int, tokens: int) -> float:
    """Return the CPU us per token of answers in a burst: the additional cost of a long answer over a single token."""

    async def read(length: int) -> float:
        cpu = rig.cpu()
        streams = [(f"{rig.floor_url}/{WIRE}/{length}@0@0", "")] * answers
        await rig.clients.ask(do="open", streams=streams, wait=False)
        await until(rig, answers * length)
        cpu = rig.cpu() - cpu
        await rig.clients.ask(do="close")
        return cpu

    return (await read(tokens) - await read(1)) / answers / (tokens - 1) * 1e6


async def ours_burst(rig: ReplicaRig, *, answers: int, tokens: int, is_first: bool) -> float:
    """Measure with streams that are open before the answers begin, like that of a client that sends a message."""
    chats = await rig.start(await rig.model(WIRE, 1, pace=0), answers)
    await rig.rest(chats)

    async def answer(length: int) -> float:
        model = await rig.model(WIRE, length, pace=0)
        await rig.watch(chats)
        cpu = rig.cpu()
        await send_all(rig, chats, model)
        await rig.rest(chats)
        cpu = rig.cpu() - cpu
        await rig.clients.ask(do="close")
        return cpu

    if is_first:
        await answer(1)
    return (await answer(tokens) - await answer(1)) / answers / (tokens - 1) * 1e6


async def send_all(rig: ReplicaRig, chats: Sequence[UUID], model: UUID) -> None:
    body = {"content": [{"type": "text", "text": "And now?"}], "model_config_id": str(model)}

    async def send(chat: UUID) -> None:
        headers = {"Authorization": f"Bearer {rig.token(chat)}"}
        async with rig.session.post(f"{rig.url}/api/v1/chats/{chat}/messages", json=body, headers=headers) as sent:
            assert sent.status == 200, await sent.text()

    await asyncio.gather(*map(send, chats))


async def until(rig: ReplicaRig, words: int) -> None:
    """Wait until the clients have this many words. Parts that a commit merged away never arrive as parts."""
    before = -1
    while (seen := await rig.clients.words()) < words and seen != before:
        before = seen
        await asyncio.sleep(0.3)


async def first_tokens(rig: ReplicaRig, *, running: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds from sending a message to its first live part at the client.

    Also return the milliseconds from a request to the provider to its first token, in the same process at the same
    time.
    """
    chats = [await rig.rested(SHORT) for _ in range(4)]
    long = await rig.model(WIRE, int(STREAM_PACE * 120), pace=STREAM_PACE)
    others = await rig.start(long, running)
    await rig.watch(others)
    await asyncio.sleep(1.0 if rounds < 10 else 2.0)  # after the start of many chats
    short = str(await rig.model(WIRE, 3, pace=0))
    sends = [(str(chat), short, rig.token(chat)) for _ in range(rounds) for chat in chats]
    asked = {"url": rig.url, "provider": rig.base + PATHS[WIRE].removeprefix("/v1"), "model": "3@0@0"}
    await rig.clients.ask(do="first", sends=sends[: len(chats)], **asked)  # to load and cache histories
    found = await rig.clients.ask(do="first", sends=sends, **asked)
    await rig.clients.ask(do="close")
    await rig.stop(others)
    return found["seen"], found["own"]


async def idle(rig: ReplicaRig, *, streams: int, seconds: float) -> tuple[float, float]:
    """Return the (KiB, CPU us per second) of an idle stream."""
    chats = [await rig.rested(SHORT) for _ in range(50)]
    await rig.watch(chats[:1])  # one-time allocations are not counted
    before = resident_kib()
    await rig.watch(chats, viewers=streams // len(chats))
    taken = (resident_kib() - before) / streams
    cpu = rig.cpu()
    await asyncio.sleep(seconds)
    spent = (rig.cpu() - cpu) / seconds / streams * 1e6
    await rig.clients.ask(do="close")
    return taken, spent


async def openings(rig: ReplicaRig, *, rounds: int) -> tuple[float, float, float]:
    """Return the milliseconds until an opened chat is synced: short, long with all messages, long with a window."""
    short, long = await rig.rested(SHORT), await rig.rested(LONG)
    found: dict[str, list[float]] = {"short": [], "long": [], "window": []}
    for _ in range(rounds):
        found["short"] += await rig.watch([short], tail=SHORT)
        found["long"] += await rig.watch([long], tail=SHORT)
        found["window"] += await rig.watch([long], tail=200)
        await rig.clients.ask(do="close")
    return statistics.median(found["short"]), statistics.median(found["long"]), statistics.median(found["window"])


async def measure(rig: ReplicaRig, claims: Claims, *, quick: bool) -> None:
    seconds, rounds = (0.8, 2) if quick else (5.0, 5)
    for answers, budget in PACED_BUDGETS.items():
        pairs = []
        for _ in range(1 if quick and answers == 100 else rounds):
            least = await floor_paced(rig, answers=answers, seconds=seconds)
            pairs.append((least, await ours_paced(rig, answers=answers, seconds=seconds)))
        ratio = statistics.median(ours / least for least, ours in pairs)
        shown = ", ".join(f"{least:.0f} -> {ours:.0f}" for least, ours in pairs)
        print(f"paced, {answers:3} answers: {ratio:.2f}x  (CPU us per token, floor -> ours: {shown})")
        claims[f"paced, {answers} answers: over floor"] = claim(ratio, budget)
    pairs = []
    # Short answers are not used, because the cost of a turn besides its tokens outweighs them and varies. Each side is
    # measured alone, because neighboring rounds of a burst have no more in common than others.
    for number in range(3 if quick else rounds):
        tokens = 1000 if quick else 2000
        least = await floor_burst(rig, answers=20, tokens=tokens)
        pairs.append((least, await ours_burst(rig, answers=20, tokens=tokens, is_first=number == 0)))
    ratio = statistics.median(ours for _, ours in pairs) / statistics.median(least for least, _ in pairs)
    shown = ", ".join(f"{least:.0f} -> {ours:.0f}" for least, ours in pairs)
    print(f"burst,  20 answers: {ratio:.2f}x  (CPU us per token, floor -> ours: {shown})")
    claims["burst, 20 answers: over floor"] = claim(ratio, BURST_BUDGET)
    for viewers in (1, 100) if quick else (1, 10, 100):
        each = await ours_paced(rig, answers=1, seconds=seconds / 2 if quick else seconds, viewers=viewers)
        print(f"one chat, {viewers:3} viewers: {each:.1f} us per token and viewer")


async def measure_waits(rig: ReplicaRig, claims: Claims, *, quick: bool) -> None:
    seen, own = await first_tokens(rig, running=100, rounds=5 if quick else 50)
    usual = statistics.median(own)
    firsts = [each - usual for each in seen]
    print(f"added to the first token at the client, 100 chats at {STREAM_PACE:g} tokens/s: {spread(firsts)}")
    print(f"  over what the provider takes by itself at the same time: {spread(own)}")
    claims["added to first token, 100 chats running, p50 ms"] = claim(percentile(firsts, 50), FIRST_P50_MS)
    claims["added to first token, 100 chats running, p99 ms"] = claim(percentile(firsts, 99), FIRST_P99_MS)
    streams = 500 if quick else 5000
    taken, spent = await idle(rig, streams=streams, seconds=1.0 if quick else 20.0)
    print(f"{streams} idle streams: {taken:.1f} KiB and {spent:.1f} us of CPU a second each")
    claims[f"{streams} idle streams: memory each, KiB"] = claim(taken, IDLE_BUDGET_KIB)
    short, long, shown = await openings(rig, rounds=10 if quick else 50)
    print(f"opened: {SHORT} messages {short:.1f} ms; {LONG} with {SHORT} shown {long:.1f} ms, with 200 {shown:.1f} ms")
    claims[f"opening {LONG} messages over {SHORT}"] = claim(long / short, OPEN_BUDGET)


async def measure_relay(rig: ReplicaRig, claims: Claims, *, quick: bool) -> None:
    seconds, rounds = (1.0, 1) if quick else (5.0, 3)
    pairs = []
    for _ in range(rounds):
        least = await floor_paced(rig, answers=10, seconds=seconds)
        pairs.append((least, await ours_paced(rig, answers=10, seconds=seconds)))
    ratio = statistics.median(ours / least for least, ours in pairs)
    shown = ", ".join(f"{least:.0f} -> {ours:.0f}" for least, ours in pairs)
    print(f"through the relay, 10 answers: {ratio:.2f}x  (CPU us per token of both replicas, floor -> ours: {shown})")
    claims["paced, 10 answers, through the relay: over floor"] = claim(ratio, RELAY_BUDGET)


async def run(*, quick: bool) -> int:
    claims: Claims = {}
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            async with serving() as base:
                async with open_rig(Path(folder), server.url, base) as rig:
                    await measure(rig, claims, quick=quick)
                    await measure_waits(rig, claims, quick=quick)
                async with open_rig(Path(folder), server.url, base, with_owner=True) as rig:
                    await measure_relay(rig, claims, quick=quick)
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What it costs to bring tokens to clients, against a bare server.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, under 40 seconds")
    arguments = parser.parse_args()
    share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
