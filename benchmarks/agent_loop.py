"""What the agent loop costs: a whole worker, from the provider's socket to the part buffer, against a bare reader.

Everything is real: embedded PostgreSQL, machine, hints, leases, runners, wires, part buffer. The provider runs in a
process of its own and notes when requests reach it and when it sends the first token, so that only our CPU counts and
its own time can be taken off. The floor reads the same answers with aiohttp and one typed msgspec decoder per event.

    python benchmarks/agent_loop.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import UUID, uuid4

import aiohttp
import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.token_decode import PATHS, WIRES, WORD, events, sse

from rookery.chat.messages import ChatId, NewMessage, NewQueuedMessage, Role
from rookery.chat.parts import Text
from rookery.chat.states import Status
from rookery.chat.transitions import BusyBehavior
from rookery.clock import SystemClock
from rookery.llm.connect import Connector
from rookery.llm.directory import Directory
from rookery.llm.secrets import KeyRing, SecretStr
from rookery.loop.tools import ToolCall, ToolContext, ToolOutput, ToolSpec
from rookery.store import chat_settings, machine, migrate, model_configs, providers, settings
from rookery.store.embedded.server import EmbeddedServer
from rookery.store.hints import ChatHint, Hint
from rookery.store.machine import ChatSpec, Machine
from rookery.store.model_configs import ModelConfigDraft
from rookery.store.model_options import ProviderType
from rookery.store.pool import Database, DatabaseConfig
from rookery.store.providers import ProviderDraft
from rookery.store.pubsub import Bus, Listener, Notifier
from rookery.worker.parts import EpisodeKey
from rookery.worker.toolbox import PlainToolbox
from rookery.worker.worker import Worker, WorkerParts

# architecture.md, "Budgets". A token on its way to a client has 1.6 times the floor paced and 3 times burst; what is
# measured here ends at the part buffer and must leave room for the rest.
PACED_BUDGET, BURST_BUDGET = 1.5, 2.8
STEP_BUDGET_MS, FIRST_P50_MS, FIRST_P99_MS = 10.0, 15.0, 50.0
LAG_BUDGET_MS, CROWD_BUDGET_MS, BLOCK_BUDGET_MS = 100.0, 100.0, 50.0
MEMORY_BUDGET_KIB = 256.0  # chosen: 200 running chats take no more than 50 MiB
SHORT, LONG = 10, 10_000
PACE, STREAM_PACE = 100.0, 50.0
TYPES = {
    "anthropic": ProviderType.ANTHROPIC,
    "responses": ProviderType.OPENAI,
    "completions": ProviderType.OPENAI_COMPAT,
}

FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', repeat('words and more ', 20) || n)), 1
      FROM generate_series(1, $2::int) n
"""


# The provider


class Provider:
    """HTTP by hand. The model's name says what to answer: `<tokens>@<tokens a second>@<tool calls before that>`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, float, float]] = []
        self._asked: defaultdict[str, int] = defaultdict(int)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                arrived = time.monotonic()
                length = re.search(r"content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                path = head.split()[1]
                if path == "/v1/requests":
                    self._reply(writer, b"200 OK", json.dumps(self.requests).encode())
                    self.requests.clear()
                elif not body:
                    self._reply(writer, b"404 Not Found", b"{}")
                else:
                    await self._answer(writer, path, head=head, body=body, arrived=arrived)
        writer.close()

    def _reply(self, writer: asyncio.StreamWriter, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)

    async def _answer(self, writer: asyncio.StreamWriter, path: str, *, head: str, body: bytes, arrived: float) -> None:
        wire = next(name for name, known in PATHS.items() if path.endswith(known.removeprefix("/v1")))
        named = re.search(rb'"model": *"([^"]+)"', body)
        assert named is not None
        tokens, pace, calls = (float(number) for number in named[1].decode().split("@"))
        chat = re.search(r"x-rookery-chat-id: *(\S+)", head)
        name = chat[1] if chat else ""
        self._asked[name] += 1
        is_call = self._asked[name] % (int(calls) + 1) != 0
        packets = call_events(self._asked[name]) if is_call else list(events(wire, int(tokens), WORD))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self.requests.append((name, arrived, time.monotonic()))
        await send(writer, packets, pace)


def call_events(number: int) -> list[bytes]:
    """An answer of the completions wire that calls the tool."""
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    delta = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [
        sse({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False),
        sse({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, named=False),
        b"data: [DONE]\n\n",
    ]


async def send(writer: asyncio.StreamWriter, packets: Sequence[bytes], pace: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for packet in packets:
        writer.write(b"%x\r\n%b\r\n" % (len(packet), packet))
        if pace:
            due += 1 / pace
            await asyncio.sleep(max(0.0, due - loop.time()))
        else:
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def serve() -> None:
    server = await asyncio.start_server(Provider().serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode().strip()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        await process.wait()


# The worker


class Look:
    """A tool that has its answer at hand."""

    spec = ToolSpec(name="look", description="Look.", input_schema={"type": "object", "properties": {}})

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return ToolOutput("There is nothing to see.")


class Announced:
    """Passes hints on, and notes when each history version of a chat was committed."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self.at: dict[str, dict[int, float]] = defaultdict(dict)

    def publish(self, hints: Sequence[Hint]) -> None:
        now = time.monotonic()
        for hint in hints:
            if isinstance(hint, ChatHint):
                self.at[str(hint.chat_id)].setdefault(hint.history_version, now)
        self._notifier.publish(hints)


@dataclass(kw_only=True)
class House:
    """One replica at work."""

    database: Database
    machine: Machine
    worker: Worker
    bus: Bus
    base: str
    session: aiohttp.ClientSession
    announced: Announced
    providers: dict[str, UUID]
    models: dict[tuple[str, str], UUID] = field(default_factory=dict)

    async def user(self) -> UUID:
        async with self.database.api.acquire() as conn:
            return UUID(
                str(await conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", uuid4().hex[:16]))
            )

    async def model(self, wire: str, tokens: int, *, pace: float, calls: int = 0) -> UUID:
        name = f"{tokens}@{pace:g}@{calls}"
        if (wire, name) not in self.models:
            draft = ModelConfigDraft(provider_id=self.providers[wire], model=name, context_limit=50_000_000)
            async with self.database.api.acquire() as conn:
                self.models[wire, name] = (await model_configs.create_model_config(conn, draft, by=None)).id
            self.bus.resync()
        return self.models[wire, name]

    async def requests(self) -> list[tuple[str, float, float]]:
        """What the provider was asked since the last time: chat, when the request came, when the first token went."""
        async with self.session.get(f"{self.base}/requests") as response:
            return [tuple(each) for each in await response.json()]

    async def start(self, owner: UUID, model: UUID) -> EpisodeKey:
        """A new chat that wants an answer."""
        message = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=owner)
        spec = ChatSpec(owner_id=owner, title="bench", model_config_id=model, messages=(message,))
        chat = (await self.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat
        return EpisodeKey(chat.id, chat.history_version, 1)

    async def say(self, chat_id: UUID, owner: UUID, model: UUID) -> EpisodeKey:
        message = NewQueuedMessage(content=(Text("And now?"),), created_by=owner, model_config_id=model)

        async def run(tx: machine.Tx) -> EpisodeKey:
            await machine.send_message(tx, message, BusyBehavior.QUEUE)
            return EpisodeKey(ChatId(chat_id), tx.chat.history_version, 1)

        return await self.machine.chat(chat_id).update(run)

    async def rest(self, chats: Sequence[EpisodeKey]) -> None:
        """Wait until all of them are through with their turns."""
        waiting = {key.chat_id for key in chats}
        done = asyncio.Event()

        def heard(hint: ChatHint) -> None:
            if hint.status in (Status.WAITING, Status.ERROR):
                waiting.discard(ChatId(hint.chat_id))
            if not waiting:
                done.set()

        with self.bus.subscribe(ChatHint, heard):
            async with self.database.api.acquire() as conn:
                states = await machine.states_of(conn, waiting)
            for state in states.values():
                assert state.status != Status.ERROR, "a turn failed"
                if state.status == Status.WAITING:
                    waiting.discard(state.chat_id)
            if waiting:
                async with asyncio.timeout(60):
                    await done.wait()

    async def first_part(self, key: EpisodeKey) -> float:
        """When the first part of the answer is there for a client."""
        with self.worker.buffer.subscribe(key) as subscription:
            async for _ in subscription:
                return time.monotonic()
        raise AssertionError("The answer ended before it began.")

    def words(self, keys: Sequence[EpisodeKey]) -> int:
        """How many tokens these chats have said by now."""
        total = 0
        for key in keys:
            total += sum(len(live.part.text) for live in self.worker.buffer.get_parts(key) if type(live.part) is Text)
        return total // len(WORD)


@asynccontextmanager
async def open_house(base: str, database: Database, session: aiohttp.ClientSession) -> AsyncIterator[House]:
    clock, bus, worker_id = SystemClock(), Bus(), uuid4()
    ring = KeyRing([("bench", bytes(32))])
    notifier = Notifier(database.worker, bus)
    announced = Announced(notifier)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=clock, rng=Random(1))
    directory = Directory(database.worker, ring=ring, environ={}, clock=clock)
    directory.follow(bus)
    connector = Connector(clock=clock)
    made: dict[str, UUID] = {}
    async with database.worker.acquire() as conn:
        await conn.execute(
            "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
            " VALUES ($1, 'bench', 'bench', 1, 'bench', 1)",
            worker_id,
        )
        await settings.write_setting(conn, chat_settings.SETTING, value={"running_roots": 0})
        # Labels and summaries follow a turn; asked from the same provider, they would be taken for steps.
        nobody = {"mode": "model", "model_config_id": str(uuid4())}
        await settings.write_setting(conn, "models", value={"title_generation": nobody})
        for wire in WIRES:
            draft = ProviderDraft(
                type=TYPES[wire], name=wire, base_url=base, api_key=SecretStr("sk-bench-key"), send_correlation=True
            )
            made[wire] = (await providers.create_provider(conn, draft, ring=ring)).id
    worker = Worker(
        WorkerParts(
            worker_id=worker_id,
            machine=Machine(database.worker, announced, clock=clock),
            pool=database.worker,
            connect=database.dedicated,
            bus=bus,
            publisher=announced,
            directory=directory,
            connector=connector,
            toolbox=PlainToolbox([Look()]),
            clock=clock,
            rng=Random(1),
        )
    )
    house = House(
        database=database,
        machine=Machine(database.api, announced),
        worker=worker,
        bus=bus,
        base=base,
        session=session,
        announced=announced,
        providers=made,
    )
    main = asyncio.current_task()

    def watch(done: asyncio.Task[Any]) -> None:
        # A loop that dies would leave the benchmark waiting for answers that nobody gives.
        if not done.cancelled() and done.exception() is not None and main is not None:
            main.cancel(str(done))

    loops = [asyncio.create_task(run()) for run in (listener.run, notifier.run, worker.run)]
    for each in loops:
        # A loop that dies would leave the benchmark waiting for answers that nobody gives.
        each.add_done_callback(
            lambda done: None if done.cancelled() or not done.exception() else main.cancel(str(done))
        )
    try:
        await listener.wait_connected()
        yield house
    finally:
        await worker.close()
        await notifier.close()
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await connector.close()
        await directory.close()


# The floor


class _AnthropicDelta(msgspec.Struct):
    text: str = ""


class _AnthropicEvent(msgspec.Struct):
    type: str
    delta: _AnthropicDelta | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str
    delta: str = ""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


class Floor:
    """Reads answers with aiohttp, a split at blank lines and one typed decode per event, and counts characters."""

    _KINDS: ClassVar[dict[str, tuple[type[Any], Callable[[Any], str]]]] = {
        "anthropic": (_AnthropicEvent, lambda event: event.delta.text if event.type == "content_block_delta" else ""),
        "responses": (_ResponsesEvent, lambda event: event.delta if event.type == "response.output_text.delta" else ""),
        "completions": (_Chunk, lambda event: (event.choices[0].delta.content or "") if event.choices else ""),
    }

    def __init__(self, wire: str, house: House) -> None:
        kind, self._text_of = self._KINDS[wire]
        self._decode = msgspec.json.Decoder(kind).decode
        self._url = house.base + PATHS[wire].removeprefix("/v1")
        self._session = house.session
        self.chars = 0

    async def read(self, model: str) -> None:
        decode, text_of, rest = self._decode, self._text_of, b""
        async with self._session.post(self._url, data=json.dumps({"model": model})) as response:
            async for chunk in response.content.iter_any():
                *blocks, rest = (rest + chunk).split(b"\n\n")
                for block in blocks:
                    data = block[block.index(b"data: ") + 6 :]
                    if data != b"[DONE]":
                        self.chars += len(text_of(decode(data)))


# Measuring


class Lag:
    """How late the event loop is, by a timer that looks every few milliseconds; and what its thread did meanwhile."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.busy_ms: list[float] = []

    async def run(self) -> None:
        while True:
            started, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            self.late_ms.append((time.monotonic() - started) * 1000 - 5)
            self.busy_ms.append((time.thread_time() - cpu) * 1000)


@asynccontextmanager
async def lag_watched() -> AsyncIterator[Lag]:
    lag = Lag()
    task = asyncio.create_task(lag.run())
    try:
        yield lag
    finally:
        task.cancel()


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def window(count: Callable[[], int], seconds: float) -> float:
    """CPU us per token between two looks, while everything streams."""
    words, cpu = count(), time.process_time()
    await asyncio.sleep(seconds)
    cpu = time.process_time() - cpu
    return cpu / (count() - words) * 1e6


async def paced(house: House, wire: str, *, answers: int, seconds: float) -> tuple[float, float]:
    """(floor, ours): CPU us per token in the middle of the answers."""
    tokens = int((seconds + 1.0) * PACE)
    floor = Floor(wire, house)
    reads = [asyncio.create_task(floor.read(f"{tokens}@{PACE:g}@0")) for _ in range(answers)]
    await asyncio.sleep(0.3)
    least = await window(lambda: floor.chars // len(WORD), seconds)
    await asyncio.gather(*reads)
    owner, model = await house.user(), await house.model(wire, tokens, pace=PACE)
    keys = await asyncio.gather(*(house.start(owner, model) for _ in range(answers)))
    await asyncio.gather(*(house.first_part(key) for key in keys))
    await asyncio.sleep(0.1)
    ours = await window(lambda: house.words(keys), seconds)
    await house.rest(keys)
    return least, ours


async def burst(house: House, wire: str, *, answers: int, tokens: int) -> tuple[float, float]:
    """(floor, ours): what a long answer costs more than one of a single token, by the token."""
    owner = await house.user()
    floor = Floor(wire, house)

    async def read(length: int) -> float:
        cpu = time.process_time()
        await asyncio.gather(*(floor.read(f"{length}@0@0") for _ in range(answers)))
        return time.process_time() - cpu

    async def answer(length: int) -> float:
        model = await house.model(wire, length, pace=0)
        cpu = time.process_time()
        keys = await asyncio.gather(*(house.start(owner, model) for _ in range(answers)))
        await house.rest(keys)
        return time.process_time() - cpu

    await answer(1)
    per_token = 1e6 / answers / (tokens - 1)
    return (await read(tokens) - await read(1)) * per_token, (await answer(tokens) - await answer(1)) * per_token


@dataclass(frozen=True, slots=True)
class Steps:
    """Of tool steps: from commit to the next request, our CPU for a model call and its tool call, and the longest that
    the event loop was kept: by the clock, and in CPU of its thread, which other processes cannot add to."""

    gap_ms: float
    cpu_ms: float
    late_ms: float
    block_ms: float


async def tool_steps(house: House, chat_id: UUID, *, owner: UUID, calls: int) -> Steps:
    """One turn of so many model calls that each call the tool."""
    model = await house.model("completions", 5, pace=0, calls=calls)
    # Once to load and cache the history; what a first step costs is measured as a first token.
    await house.rest([await house.say(chat_id, owner, model)])
    await house.requests()
    async with lag_watched() as lag:
        cpu = time.process_time()
        await house.rest([await house.say(chat_id, owner, model)])
        cpu = time.process_time() - cpu
    commits = sorted(house.announced.at[str(chat_id)].values())
    asked = sorted(arrived for name, arrived, _ in await house.requests() if name == str(chat_id))
    gaps = [(arrived - max(at for at in commits if at < arrived)) * 1000 for arrived in asked[1:]]
    assert len(gaps) == calls, "some steps are missing"
    return Steps(statistics.median(gaps), cpu / calls * 1000, max(lag.late_ms), max(lag.busy_ms))


async def first_tokens(house: House, chats: Sequence[UUID], *, owner: UUID, rounds: int) -> list[float]:
    """Milliseconds from sending a message to the first part of the answer, without the provider's own time."""
    model = await house.model("completions", 3, pace=0)
    await house.requests()
    seen: list[tuple[str, float, float]] = []
    for _ in range(rounds):
        for chat_id in chats:
            sent = time.monotonic()
            key = await house.say(chat_id, owner, model)
            seen.append((str(chat_id), sent, await house.first_part(key)))
            await house.rest([key])
    return added(seen, await house.requests())


def added(seen: Sequence[tuple[str, float, float]], requests: Sequence[tuple[str, float, float]]) -> list[float]:
    """What is left of (chat, sent, first part) without what the provider took."""
    found = []
    for chat, sent, first in seen:
        own = next(out - arrived for name, arrived, out in requests if name == chat and sent < arrived < first)
        found.append((first - sent - own) * 1000)
    return found


async def make_chat(house: House, owner: UUID, messages: int) -> UUID:
    """A chat at rest with a history of so many rows. In one transaction: the worker must not see it run."""
    message = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=owner)
    model = await house.model("completions", 1, pace=0)
    spec = ChatSpec(owner_id=owner, title="bench", model_config_id=model, messages=(message,))

    async def make(bundle: machine.Bundle) -> UUID:
        created = await machine.create_chat(bundle, spec)
        tx = await bundle.open(created.chat.id)
        await tx.conn.execute(FILL, tx.chat.id, messages - 1)
        await machine.finish_turn(tx)
        return tx.chat.id

    return await house.machine.bundle(make)


async def crowd(house: House, *, chats: int, seconds: float) -> tuple[list[float], float]:
    """How late the loop is while so many chats stream, and what each of them takes in memory, in KiB."""
    owner = await house.user()
    model = await house.model("completions", int((seconds + 3) * STREAM_PACE), pace=STREAM_PACE)
    before = resident_kib()
    keys = await asyncio.gather(*(house.start(owner, model) for _ in range(chats)))
    await asyncio.gather(*(house.first_part(key) for key in keys))
    async with lag_watched() as lag:
        await asyncio.sleep(seconds)
    taken = (resident_kib() - before) / chats
    await house.rest(keys)
    return lag.late_ms, taken


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


async def crowded_first_tokens(house: House, *, rounds: int, chats: int) -> tuple[list[float], list[float]]:
    """An owner's first tokens, in ms: alone, and right behind another owner who starts many chats at once."""
    quiet, busy = await house.user(), await house.user()
    long, short = await house.model("completions", 100, pace=STREAM_PACE), await house.model("completions", 3, pace=0)

    async def first() -> float:
        sent = time.monotonic()
        key = await house.start(quiet, short)
        found = (await house.first_part(key) - sent) * 1000
        await house.rest([key])
        return found

    alone, behind = [], []
    for _ in range(rounds):
        alone += [await first() for _ in range(5)]
        started = [asyncio.create_task(house.start(busy, long)) for _ in range(chats)]
        await started[chats // 2]
        behind.append(await first())
        await house.rest(await asyncio.gather(*started))
    return alone, behind


async def run(*, quick: bool) -> int:
    claims: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            config = DatabaseConfig(server.url)
            await migrate.migrate(config)
            async with (
                serving() as base,
                aiohttp.ClientSession() as session,
                await Database.connect(config) as database,
                open_house(base, database, session) as house,
            ):
                await measure_tokens(house, claims, quick=quick)
                await measure_steps(house, claims, quick=quick)
                await measure_crowds(house, claims, quick=quick)
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def measure_tokens(house: House, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    answers, seconds, rounds = (20, 1.0, 1) if quick else (10, 4.0, 3)
    tokens, burst_rounds = (2000, 3) if quick else (10_000, 5)
    kinds: dict[str, tuple[Callable[[str], Awaitable[tuple[float, float]]], int, float]] = {
        "paced": (lambda wire: paced(house, wire, answers=answers, seconds=seconds), rounds, PACED_BUDGET),
        "burst": (lambda wire: burst(house, wire, answers=4, tokens=tokens), burst_rounds, BURST_BUDGET),
    }
    if not quick:
        crowded = (lambda wire: paced(house, wire, answers=100, seconds=seconds), rounds, PACED_BUDGET)
        kinds["paced, 100 answers"] = crowded
    for kind, (measure, times, budget) in kinds.items():
        print(f"\n{kind}: CPU us per token, from socket to part buffer")
        for wire in WIRES:
            found = [await measure(wire) for _ in range(times)]
            ratios = [ours / least for least, ours in found]
            shown = ", ".join(f"{least:.1f} -> {ours:.1f}" for least, ours in found)
            print(f"  {wire:12} {statistics.median(ratios):5.2f}x  (floor -> ours: {shown})")
            claims[f"{wire}, {kind}: over floor"] = claim(statistics.median(ratios), budget)


async def measure_steps(house: House, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    owner = await house.user()
    for length in (SHORT, LONG):
        chats = [await make_chat(house, owner, length) for _ in range(1 if quick else 3)]
        steps = [await tool_steps(house, chat_id, owner=owner, calls=20) for chat_id in chats]
        gap, cpu, block = (
            statistics.median(getattr(step, name) for step in steps) for name in ("gap_ms", "cpu_ms", "block_ms")
        )
        firsts = await first_tokens(house, chats, owner=owner, rounds=10)
        print(f"\n{length} messages: committed tool step to next request {gap:.1f} ms; CPU of a model call with its")
        print(f"  tool call {cpu:.1f} ms; longest block of the loop {block:.1f} ms; added to the first token, nobody")
        print(f"  else running: p50 {percentile(firsts, 50):.1f} ms, worst {max(firsts):.1f} ms")
        if length == SHORT:
            claims["committed tool step to next request, p50 ms"] = claim(gap, STEP_BUDGET_MS)
        else:
            claims[f"longest block of the loop, {LONG} messages, ms"] = claim(block, BLOCK_BUDGET_MS)


async def measure_crowds(house: House, claims: dict[str, dict[str, object]], *, quick: bool) -> None:
    owner = await house.user()
    resting = [await make_chat(house, owner, SHORT) for _ in range(4)]
    rounds, seconds = (10, 3.0) if quick else (50, 10.0)
    model = await house.model("completions", int(STREAM_PACE * (5 if quick else 25)), pace=STREAM_PACE)
    others = await house.user()
    keys = await asyncio.gather(*(house.start(others, model) for _ in range(100)))
    await asyncio.gather(*(house.first_part(key) for key in keys))
    firsts = await first_tokens(house, resting, owner=owner, rounds=rounds)
    await house.rest(keys)
    print(f"\nadded to the first token with 100 chats at {STREAM_PACE:g} tokens/s: {spread(firsts)}")
    claims["added to first token, 100 chats running, p50 ms"] = claim(percentile(firsts, 50), FIRST_P50_MS)
    claims["added to first token, 100 chats running, p99 ms"] = claim(percentile(firsts, 99), FIRST_P99_MS)

    alone, behind = await crowded_first_tokens(house, rounds=3 if quick else 10, chats=50)
    delay = statistics.median(behind) - statistics.median(alone)
    print(f"\nfirst token of an owner alone: {spread(alone)}; behind 50 chats of another: {spread(behind)}")
    claims["first token delayed by another owner's 50 chats, ms"] = claim(delay, CROWD_BUDGET_MS)

    late, taken = await crowd(house, chats=200, seconds=seconds)
    print(f"\n200 chats at {STREAM_PACE:g} tokens/s: loop late by {spread(late)}; {taken:.0f} KiB for each chat")
    claims["200 chats streaming: loop lag p99, ms"] = claim(percentile(late, 99), LAG_BUDGET_MS)
    claims["200 chats streaming: memory for each, KiB"] = claim(taken, MEMORY_BUDGET_KIB)


def spread(values: Sequence[float]) -> str:
    return f"p50 {percentile(values, 50):.1f} ms, p99 {percentile(values, 99):.1f} ms, worst {max(values):.1f} ms"


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the agent loop costs, against a bare reader of the provider.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, under 40 seconds")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if arguments.serve:
            runner.run(serve())
            return 0
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
