"""A complete worker on embedded PostgreSQL, and a provider in a separate process. Used by `agent_loop.py`.

The provider records when requests arrive and when it sends the first token. `Floor` does the minimum of any reader.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _provider_process
from benchmarks.token_decode import PATHS, WIRES, WORD, FloorReader, events, sse

from rookery.domain.chat.messages import ChatId, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.domain.models.options import ProviderType
from rookery.live.part_buffer import EpisodeKey
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput, ToolSpec
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.models.key_ring import KeyRing
from rookery.runtime import heap
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.store import machine
from rookery.store.db.hints import ChatHint, Hint
from rookery.store.db.pool import Database
from rookery.store.db.pubsub import Bus, Listener, Notifier
from rookery.store.machine import ChatSpec, Machine
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import limit_settings, settings
from rookery.tools.step_tools import PlainToolbox
from rookery.worker.worker import Worker, WorkerServices

# Multiples of it modulo one are evenly distributed, however many there are.
GOLDEN = 0.618034
TYPES = {
    "anthropic": ProviderType.ANTHROPIC,
    "responses": ProviderType.OPENAI,
    "completions": ProviderType.OPENAI_COMPAT,
}

# The provider


class Provider:
    """A minimal HTTP server.

    The model's name defines the answer: `<tokens>@<tokens a second>@<tool calls before that>`, and `@<words>` if a
    token is more than one word.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, float, float]] = []
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._answers = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An interrupted client closes the connection, and the transport then accepts no more data.
        with suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError):
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
        tokens, pace, calls, words, *_ = (*(float(number) for number in named[1].decode().split("@")), 1.0)
        chat = re.search(r"x-rookery-chat-id: *(\S+)", head)
        name = chat[1] if chat else ""
        self._asked[name] += 1
        is_call = self._asked[name] % (int(calls) + 1) != 0
        packets = call_events(self._asked[name]) if is_call else answer(wire, int(tokens), int(words))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self.requests.append((name, arrived, time.monotonic()))
        self._answers += 1
        await send(writer, packets, pace, phase=self._answers * GOLDEN % 1.0)


@cache
def answer(wire: str, tokens: int, words: int) -> list[bytes]:
    """Return an answer, which is cached, because encoding the long answers of many chats would delay the provider."""
    return list(events(wire, tokens, WORD * words))


def call_events(number: int) -> list[bytes]:
    """Return an answer of the completions wire that calls the tool. Equal calls would be held by the brake."""
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    function = {"name": "look", "arguments": json.dumps({"number": number})}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    delta = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}
    return [
        sse({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False),
        sse({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, named=False),
        sse({**chunk, "choices": [], "usage": usage}, named=False),
        b"data: [DONE]\n\n",
    ]


async def send(writer: asyncio.StreamWriter, packets: Sequence[bytes], pace: float, *, phase: float) -> None:
    """Send the first packet immediately and the others at the given pace. The second is early by `phase` of an
    interval.

    Answers that begin together must not stay synchronous, because a reader that finds ten of them at one wake-up works
    less for each, and real providers do not send like that.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() - (phase / pace if pace else 0.0)
    for packet in packets:
        writer.write(b"%x\r\n%b\r\n" % (len(packet), packet))
        if pace:
            due += 1 / pace
            await asyncio.sleep(max(0.0, due - loop.time()))
        else:
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def serving() -> AbstractAsyncContextManager[str]:
    return _provider_process.serving(__file__)


# The worker


class Look:
    """A tool that returns immediately."""

    spec = ToolSpec(name="look", description="Look.", input_schema={"type": "object", "properties": {}})

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return ToolOutput("There is nothing to see.")


class Announced:
    """Passes hints on, and records when each history version of a chat was committed."""

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
class WorkerRig:
    """One replica."""

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

    async def limit(self, running_roots: int) -> None:
        """Set the number of chats that may run at once; 0 for no limit."""
        async with self.database.api.acquire() as conn:
            await settings.write_setting(conn, limit_settings.CHATS, value={"running_roots": running_roots})
        self.bus.resync()

    async def requests(self) -> list[tuple[str, float, float]]:
        """Return (chat, time of the request, time of the first token) of the requests since the last call."""
        async with self.session.get(f"{self.base}/requests") as response:
            return [tuple(each) for each in await response.json()]

    async def start(self, owner: UUID, model: UUID) -> EpisodeKey:
        """Create a chat that waits for an answer."""
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

    async def stop(self, chats: Sequence[EpisodeKey]) -> None:
        await asyncio.gather(*(self.machine.chat(key.chat_id).update(machine.interrupt) for key in chats))
        await self.rest(chats)

    async def rest(self, chats: Sequence[EpisodeKey]) -> None:
        """Wait until the turns of all chats have ended."""
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
        """Return when the first part of the answer is available for a client."""
        with self.worker.buffer.subscribe(key) as subscription:
            async for _ in subscription:
                return time.monotonic()
        raise AssertionError("The answer ended before it began.")

    def words(self, keys: Sequence[EpisodeKey]) -> int:
        """Return the number of tokens that these chats have streamed so far."""
        total = 0
        for key in keys:
            total += sum(len(live.part.text) for live in self.worker.buffer.get_parts(key) if type(live.part) is Text)
        return total // len(WORD)


@asynccontextmanager
async def open_rig(base: str, database: Database, session: aiohttp.ClientSession) -> AsyncIterator[WorkerRig]:
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
        await conn.execute("CREATE TABLE bench_row AS SELECT 0 AS n")
        await conn.execute(
            "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
            " VALUES ($1, 'bench', 'bench', 1, 'bench', 1)",
            worker_id,
        )
        await settings.write_setting(conn, limit_settings.CHATS, value={"running_roots": 0})
        # Disabled, because labels and summaries after a turn would be counted as steps by the provider.
        nobody = {"mode": "model", "model_config_id": str(uuid4())}
        await settings.write_setting(conn, "models", value={"title_generation": nobody})
        for wire in WIRES:
            draft = ProviderDraft(
                type=TYPES[wire], name=wire, base_url=base, api_key=SecretStr("sk-bench-key"), send_correlation=True
            )
            made[wire] = (await providers.create_provider(conn, draft, ring=ring)).id
    worker = Worker(
        WorkerServices(
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
    rig = WorkerRig(
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
    assert main is not None

    def watch(done: asyncio.Task[Any]) -> None:
        # If a loop ended, the benchmark would wait forever.
        if not done.cancelled() and done.exception() is not None:
            main.cancel(str(done))

    loops = [asyncio.create_task(run()) for run in (listener.run, notifier.run, worker.run)]
    for each in loops:
        each.add_done_callback(watch)
    try:
        await listener.wait_connected()
        heap.freeze_startup_objects()  # `rookery serve` does the same
        yield rig
    finally:
        await worker.close()
        await notifier.close()
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await connector.close()
        await directory.close()


# The floor


class Floor:
    """Reads answers with aiohttp, a split at blank lines and one typed decode per event, and counts characters."""

    def __init__(self, wire: str, rig: WorkerRig) -> None:
        self._reader = FloorReader(wire)
        self._url = rig.base + PATHS[wire].removeprefix("/v1")
        self._session = rig.session
        self.chars = 0

    async def read(self, model: str) -> None:
        feed, rest = self._reader.feed, b""
        async with self._session.post(self._url, data=json.dumps({"model": model})) as response:
            async for chunk in response.content.iter_any():
                chars, rest = feed(rest + chunk)
                self.chars += chars


if __name__ == "__main__":
    uvloop.run(_provider_process.serve(Provider().serve))
