"""The cost of debug records: a complete replica with recording on, kept in memory for errors, and off, in one run.

The provider and the clients run in separate processes, so that only the CPU of the replica counts. The whole path is
that of `streaming.py`: from the provider's socket to one WebSocket client, while answers stream. The end of a call
costs CPU beside that path, in the thread that redacts and compresses; it is measured over whole turns.

    python benchmarks/debug.py [--quick]

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
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import ReplicaRig, open_rig
from benchmarks._worker_rig import serving
from benchmarks.streaming import PACE as STREAM_PACE
from benchmarks.streaming import WIRE, claim, window

from rookery.debug.enablement import Recording
from rookery.debug.operations import Operation
from rookery.debug.recorded_model import RecordedStream
from rookery.debug.recorder import ModelFacts, Recorder, RunFacts
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.prompt_parts import Prompt, PromptMessage, PromptText
from rookery.llm.types import Call, Finish, FinishReason, StreamPart, TextDelta, Usage, Wire
from rookery.runtime.clock import SystemClock
from rookery.runtime.heap import share_heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig
from rookery.store.debug.rows import RunKind

TOKEN_BUDGET_US = 3.0
PATH_BUDGET = 1.10
# Nothing measurable: the ratio of two equal measurements differs from 1 by about this much here.
OFF_BUDGET = 1.04
FIRST_BUDGET_MS = 5.0
# Redaction of an event stream takes about 14 us per event in the thread, and each operation some time of the loop.
BESIDE_BUDGET_US = 30.0
TOKENS, PACE, ANSWERS = 300, 200.0, 20

MODES = (Recording.OFF, Recording.ON_ERROR, Recording.FULL)
Claims = dict[str, dict[str, object]]


class Kept:
    """A queue that keeps operations, so that only the event loop is measured."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def submit(self, operation: Operation) -> bool:
        self.operations.append(operation)
        return True


async def words(count: int) -> AsyncGenerator[StreamPart, None]:
    for _ in range(count):
        yield TextDelta("0", "word ")
    yield Finish(FinishReason.STOP, Usage(input=1, output=count))


async def read(stream: AsyncGenerator[StreamPart, None]) -> float:
    started = time.perf_counter()
    async for _ in stream:
        pass
    return time.perf_counter() - started


async def token_us(count: int) -> float:
    """Return the time of the event loop that recording adds to a token, in us."""
    clock, chat_id = SystemClock(), ChatId(uuid4())
    wire: Wire = "completions"
    model = ModelFacts(model_config_id=uuid4(), provider="bench", model="bench")
    recorder = Recorder(Kept(), replica_id=uuid4(), clock=clock)
    run = recorder.open(
        RunFacts(
            chat_id=chat_id,
            root_chat_id=chat_id,
            parent_chat_id=None,
            snapshot_version=1,
            kind=RunKind.CHAT_TURN,
            model=model,
        )
    )
    assert run is not None
    call = Call(prompt=Prompt((PromptMessage(role=Role.USER, parts=(PromptText("hello"),)),)))
    added = []
    for _ in range(5):
        bare = await read(words(count))
        step = run.step(key=None)
        assert step is not None
        recorded = await read(RecordedStream(words(count), step.begin(call, model, wire=wire)))
        added.append((recorded - bare) / count * 1e6)
    return min(added)


class Switch:
    """A policy that this benchmark switches."""

    def __init__(self) -> None:
        self.recording = Recording.OFF
        self.is_forced = False

    async def of_turn(self, *, wants_debug: bool) -> Recording:
        return self.recording

    async def records_call(self, chat_id: UUID) -> bool:
        return self.recording is Recording.FULL


async def path_us(rig: ReplicaRig, *, answers: int, seconds: float) -> float:
    """Return the CPU us per token while answers stream to one viewer each, as in `streaming.ours_paced`."""
    model = await rig.model(WIRE, int((seconds + 5) * STREAM_PACE), pace=STREAM_PACE)
    chats = await rig.start(model, answers)
    await rig.watch(chats)
    await asyncio.sleep(0.3)
    # The beginning of the calls is recorded, and belongs to the cost of turns.
    await rig.replica.debug.writer.flush()
    found = await window(rig, seconds)
    await rig.clients.ask(do="close")
    await rig.stop(chats)
    await rig.replica.debug.writer.flush()
    return found


async def turns_us(rig: ReplicaRig, *, answers: int, tokens: int) -> float:
    """Return the CPU us per token of whole turns with one viewer each, with everything that recording does."""
    model = await rig.model(WIRE, tokens, pace=PACE)
    cpu = rig.cpu()
    chats = await rig.start(model, answers)
    await rig.watch(chats)
    await rig.rest(chats)
    await rig.replica.debug.writer.flush()
    cpu = rig.cpu() - cpu
    await rig.clients.ask(do="close")
    return cpu / answers / tokens * 1e6


async def short_turn_ms(rig: ReplicaRig) -> float:
    model = await rig.model(WIRE, 1, pace=0)
    started = time.perf_counter()
    await rig.rest(await rig.start(model, 1))
    return (time.perf_counter() - started) * 1000


async def measure(rig: ReplicaRig, claims: Claims, *, quick: bool) -> None:
    switch = Switch()
    rig.replica.debug.recordings.policy = switch  # type: ignore[assignment]  # a policy for this benchmark
    await turns_us(rig, answers=ANSWERS, tokens=20)
    rounds = 4 if quick else 10
    seconds = 0.8 if quick else 4.0
    path: dict[Recording, list[float]] = {mode: [] for mode in MODES}
    turns: dict[Recording, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        # The order changes, so that no mode always has the warmer process.
        for mode in MODES if number % 2 else reversed(MODES):
            switch.recording = mode
            path[mode].append(await path_us(rig, answers=30, seconds=seconds))
            if mode is not Recording.ON_ERROR and (number % 2 or not quick):
                turns[mode].append(await turns_us(rig, answers=ANSWERS, tokens=TOKENS))
    # The least of several rounds is the least disturbed by other processes.
    print("whole path while answers stream, least CPU us per token:")
    for mode in MODES:
        print(f"  {mode:8} {min(path[mode]):6.1f}  ({shown(path[mode])})")
    off, kept, on = (min(path[mode]) for mode in MODES)
    claims["whole path: recorded over unrecorded"] = claim(on / off, PATH_BUDGET)
    claims["whole path: kept for errors over unrecorded"] = claim(kept / off, OFF_BUDGET)
    beside = min(turns[Recording.FULL]) - min(turns[Recording.OFF])
    print(f"whole turns of {TOKENS} tokens, CPU us per token: {shown(turns[Recording.OFF])}; recorded", end=" ")
    print(shown(turns[Recording.FULL]))
    claims["whole turns: us per token that recording adds, with its thread"] = claim(beside, BESIDE_BUDGET_US)
    times: dict[Recording, list[float]] = {mode: [] for mode in MODES}
    for _ in range(15 if quick else 60):
        for mode in MODES:
            switch.recording = mode
            times[mode].append(await short_turn_ms(rig))
    base, slowest = statistics.median(times[Recording.OFF]), statistics.median(times[Recording.FULL])
    print(f"turns of one token: {base:.1f} ms, recorded {slowest:.1f} ms (medians)")
    claims["recording: ms added to a turn of one token"] = claim(slowest - base, FIRST_BUDGET_MS)
    count = await rig.replica.database.api.fetchval("SELECT count(*) FROM chat_debug_steps")
    print(f"{count} steps were recorded; dropped: {dict(rig.replica.debug.stats.dropped)}")


def shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


async def run(*, quick: bool) -> int:
    claims: Claims = {}
    added = await token_us(20_000 if quick else 100_000)
    print(f"added to the event loop: {added:.2f} us per token")
    claims["recording: us per token on the event loop"] = claim(added, TOKEN_BUDGET_US)
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            async with serving() as base, open_rig(Path(folder), server.url, base) as rig:
                await measure(rig, claims, quick=quick)
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What debug records cost, on against off.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 seconds")
    arguments = parser.parse_args()
    share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
