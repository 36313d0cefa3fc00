"""The cost of debug records: a complete replica with recording on, kept in memory for errors, and off, in one run.

The provider and the clients run in separate processes, so that only the CPU of the replica counts. Figures are medians
of pairs that are measured one after the other, because a shared machine changes its speed by more than what recording
costs. The whole path is that of `streaming.py`: from the provider's socket to one WebSocket client, while answers
stream. The end of a call costs CPU beside that path, in the thread that redacts and compresses; it is measured over
whole turns.

    python benchmarks/debug_records.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import ReplicaRig, open_rig
from benchmarks._worker_rig import serving
from benchmarks.streaming import PACE as STREAM_PACE
from benchmarks.streaming import WIRE, claim, window

from rookery.debug.model_wrapper import RecordedStream
from rookery.debug.recorded_http import RecordedHttp
from rookery.debug.recorder import ModelFacts, Recorder, Room, RunFacts
from rookery.debug.recording_policy import Recording
from rookery.debug.writer import MAX_BYTES, MAX_OPERATIONS
from rookery.debug.writer_operations import Operation
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.http import HttpClient, HttpStream
from rookery.llm.types import Call, Finish, FinishReason, StreamPart, TextDelta, Usage, Wire
from rookery.runtime.clock import SystemClock
from rookery.runtime.heap import share_heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig
from rookery.store.debug.record_rows import RunKind

TOKEN_BUDGET_US = 3.0
PATH_BUDGET = 1.10
# Nothing measurable: the ratio of two equal measurements differs from 1 by about this much here.
OFF_BUDGET = 1.04
FIRST_BUDGET_MS = 5.0
# Redaction of an event stream takes about 14 us per event in the thread. The first request of a turn and its statements
# take 5 ms together, which are 17 us per token here.
BESIDE_BUDGET_US = 40.0
TOKENS, PACE, ANSWERS = 300, 200.0, 20

MODES = (Recording.OFF, Recording.ON_ERROR, Recording.FULL)
PAIR = (Recording.OFF, Recording.FULL)
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
Claims = dict[str, dict[str, object]]


class Kept:
    """A queue that keeps operations, so that only the event loop is measured."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def submit(self, operation: Operation) -> bool:
        self.operations.append(operation)
        return True

    def room(self) -> Room:
        return Room(bytes=MAX_BYTES, operations=MAX_OPERATIONS)


async def words(count: int) -> AsyncGenerator[StreamPart, None]:
    for _ in range(count):
        yield TextDelta("0", "word ")
    yield Finish(FinishReason.STOP, Usage(input=1, output=count))


class MemoryStream:
    """A response whose chunks are in memory."""

    status = 200

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream"}
        self._chunks = iter(chunks)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for chunk in self._chunks:
            yield chunk

    async def gathered(self) -> bytes:
        return next(self._chunks, b"")

    async def read(self, limit: int) -> bytes:
        return b"".join(self._chunks)[:limit]

    async def finish(self) -> bytes:
        return b""

    def close(self) -> None: ...

    def unread(self) -> bytes:
        return b""


class MemoryHttp:
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def open(self, url: str, *, headers: Mapping[str, str], body: bytes) -> HttpStream:
        return MemoryStream(self._chunks)


async def read(stream: AsyncGenerator[StreamPart, None], http: HttpClient) -> float:
    """Return the CPU seconds of reading all parts, and as many chunks of the response."""
    response = await http.open("http://127.0.0.1/v1", headers={}, body=b"{}")
    started = time.thread_time()
    async for _ in stream:
        await response.gathered()
    seconds = time.thread_time() - started
    await response.finish()
    return seconds


async def token_us(count: int) -> list[float]:
    """Return the CPU us of the event loop that recording adds to a token, which arrives in a chunk of its own."""
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
    http = MemoryHttp([CHUNK] * (count + 1))
    added = []
    for _ in range(9):
        bare = await read(words(count), http)
        step = run.step(key=None)
        assert step is not None
        stream = RecordedStream(words(count), step.begin(call, model, wire=wire))
        recorded = await read(stream, RecordedHttp(http, lambda step=step: step))  # type: ignore[misc]  # the loop's
        added.append((recorded - bare) / count * 1e6)
    return added


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
    await measure_path(rig, switch, claims, rounds=4 if quick else 12, seconds=1.0 if quick else 1.5)
    await measure_turns(rig, switch, claims, rounds=4 if quick else 10)
    await measure_short_turns(rig, switch, claims, rounds=20 if quick else 60)
    count = await rig.replica.database.api.fetchval("SELECT count(*) FROM chat_debug_steps")
    print(f"{count} steps were recorded; dropped: {dict(rig.replica.debug.stats.dropped)}")


async def measure_path(rig: ReplicaRig, switch: Switch, claims: Claims, *, rounds: int, seconds: float) -> None:
    """Compare the modes within rounds that run forwards and back, so that a machine that slows down affects all alike.

    A round gives one ratio, and the median of the rounds counts. The first and the last window of a round are both off:
    their ratio is the noise.
    """
    found: dict[Recording, list[float]] = {mode: [] for mode in MODES}
    noise = []
    for _ in range(rounds):
        times: dict[Recording, list[float]] = {mode: [] for mode in MODES}
        for mode in (*MODES, *reversed(MODES)):
            switch.recording = mode
            gc.collect()
            times[mode].append(await path_us(rig, answers=30, seconds=seconds))
        for mode in MODES:
            found[mode].append(statistics.mean(times[mode]))
        noise.append(times[Recording.OFF][1] / times[Recording.OFF][0])
    print("whole path while answers stream, CPU us per token, one figure per round:")
    for mode in MODES:
        print(f"  {mode:8} {shown(found[mode])}")
    print(f"  off against off: {', '.join(f'{ratio:.2f}' for ratio in noise)}")
    on, kept = (
        statistics.median(one / off for one, off in zip(found[mode], found[Recording.OFF], strict=True))
        for mode in (Recording.FULL, Recording.ON_ERROR)
    )
    claims["whole path: recorded over unrecorded"] = claim(on, PATH_BUDGET)
    claims["whole path: kept for errors over unrecorded"] = claim(kept, OFF_BUDGET)


async def measure_turns(rig: ReplicaRig, switch: Switch, claims: Claims, *, rounds: int) -> None:
    pairs = []
    for number in range(rounds):
        pair: dict[Recording, float] = {}
        for mode in PAIR if number % 2 else reversed(PAIR):
            switch.recording = mode
            gc.collect()
            pair[mode] = await turns_us(rig, answers=ANSWERS, tokens=TOKENS)
        pairs.append(pair)
    for mode in PAIR:
        print(f"whole turns of {TOKENS} tokens, {mode}: CPU us per token {shown([pair[mode] for pair in pairs])}")
    beside = statistics.median(pair[Recording.FULL] - pair[Recording.OFF] for pair in pairs)
    claims["whole turns: us per token that recording adds, with its thread"] = claim(beside, BESIDE_BUDGET_US)


async def measure_short_turns(rig: ReplicaRig, switch: Switch, claims: Claims, *, rounds: int) -> None:
    added, base = [], []
    for number in range(rounds):
        pair: dict[Recording, float] = {}
        for mode in PAIR if number % 2 else reversed(PAIR):
            switch.recording = mode
            pair[mode] = await short_turn_ms(rig)
            # The records of this turn are not written during the next one.
            await rig.replica.debug.writer.flush()
        added.append(pair[Recording.FULL] - pair[Recording.OFF])
        base.append(pair[Recording.OFF])
    print(f"turns of one token: {statistics.median(base):.1f} ms; recording adds {shown(sorted(added))} ms")
    claims["recording: ms added to a turn of one token"] = claim(statistics.median(added), FIRST_BUDGET_MS)


def shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


async def run(*, quick: bool) -> int:
    claims: Claims = {}
    added = await token_us(20_000 if quick else 100_000)
    print(f"added to the event loop, CPU us per token: {', '.join(f'{each:.2f}' for each in sorted(added))}")
    claims["recording: us per token on the event loop"] = claim(statistics.median(added), TOKEN_BUDGET_US)
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
    parser.add_argument("--quick", action="store_true", help="fewer rounds, about a minute")
    arguments = parser.parse_args()
    share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
