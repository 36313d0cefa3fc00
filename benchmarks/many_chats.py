"""How late words arrive when a thousand chats stream over two replicas on one machine.

The provider and the clients are as cheap as possible, because they share the machine: the provider writes the same
bytes to fifty answers at a time, and the clients read one chat in ten. Each word is the time at which it was sent. Half
of the clients are connected to a replica that does not run their chat, so that their words pass the relay.

    python benchmarks/many_chats.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import RING, cpu_of, listening, prepare, settings_for
from benchmarks.streaming import Claims, claim, percentile
from benchmarks.token_decode import sse

from rookery.app import installation
from rookery.app.replica import Choices, running_replica
from rookery.runtime import heap
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.models import model_configs
from rookery.store.models.model_configs import ModelConfigDraft

LATE_P99_MS = 250.0
# Words that are on their way when the measurement begins or ends.
MISSING_PERCENT = 3.0
PACE = 50
# Answers of one group get their words in the same millisecond.
GROUPS = 20
SAMPLED = 10  # every tenth client reads the times of its words
CREATED_AT_ONCE = 20
WORD = re.compile(rb"\d{7}\.\d{6}")

# The provider


class Provider(asyncio.Protocol):
    """Answers each request with an endless answer. A word is the time of the monotonic clock, like 0012345.678901."""

    groups: tuple[list[asyncio.Transport], ...] = tuple([] for _ in range(GROUPS))
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._group: list[asyncio.Transport] | None = None
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._request += data
        head, _, body = self._request.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head.lower())
        if length is None or len(body) < int(length[1]):
            return
        self._request = b""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head + _packet())
        self._group = Provider.groups[Provider.count % GROUPS]
        Provider.count += 1
        self._group.append(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._group is not None:
            self._group.remove(self._transport)


def _packet() -> bytes:
    delta = {"content": f"{time.monotonic():014.6f} "}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event = sse({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False)
    return b"%x\r\n%b\r\n" % (len(event), event)


async def provide() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    due = loop.time()
    while True:
        for group in Provider.groups:
            due += 1 / PACE / GROUPS
            await asyncio.sleep(due - loop.time())
            packet = _packet()
            for transport in group:
                transport.write(packet)


# The clients


class Client(asyncio.Protocol):
    """Reads a stream. A sampled client records how late each word is."""

    late: ClassVar[list[float]] = []
    words: ClassVar = 0
    is_recording: ClassVar = False

    def __init__(self, *, is_sampled: bool) -> None:
        self._is_sampled = is_sampled
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if not self._is_sampled or not Client.is_recording:
            return
        now = time.monotonic()
        found = WORD.findall(self._rest + data)
        # A word that is split between two reads is found with the second one. A whole word is longer than the rest.
        self._rest = data[-13:]
        Client.words += len(found)
        Client.late += [now - float(word) for word in found]


async def read_streams(streams: Sequence[tuple[str, int, str, str]], seconds: float) -> dict[str, Any]:
    """Open the streams, (address, port, path, token), and record for a while."""
    loop = asyncio.get_running_loop()
    for number, (host, port, path, token) in enumerate(streams):
        transport, _ = await loop.create_connection(
            lambda number=number: Client(is_sampled=number % SAMPLED == 0),  # type: ignore[misc]
            host,
            port,
        )
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        transport.write(request.encode())
        if number % CREATED_AT_ONCE == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3.0)
    Client.is_recording = True
    cpu, started = os.times(), time.monotonic()
    print("recording", flush=True)
    await asyncio.sleep(seconds)
    Client.is_recording = False
    print("recorded", flush=True)
    spent = sum(os.times()[:2]) - sum(cpu[:2])
    return {"late": Client.late, "words": Client.words, "cpu": spent, "seconds": time.monotonic() - started}


async def be_clients() -> None:
    asked = json.loads(sys.stdin.readline())
    print(json.dumps(await read_streams(asked["streams"], asked["seconds"])), flush=True)


# The replicas


async def be_replica(folder: Path, url: str) -> None:
    config = settings_for(folder, url, **{"worker.max_runners": "1000"})
    async with (
        await Database.connect(installation.database_config(config, url)) as database,
        running_replica(config, database, Choices(ring=RING)) as replica,
        listening(replica.application) as port,
    ):
        heap.freeze_startup_objects()
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def helper(*command: object) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    line = [sys.executable, __file__, *map(str, command)]
    process = await asyncio.create_subprocess_exec(*line, stdin=pipe, stdout=pipe, limit=1 << 28)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if command[0] != "--replica":
            process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    if not line:
        raise RuntimeError("A helper process ended.")
    return line


async def start_chats(
    ports: Sequence[int], people: Sequence[tuple[Any, str]], model: str, count: int
) -> list[tuple[str, str]]:
    """Create chats whose answers begin immediately. Return their ids with the tokens of their owners."""
    made: list[tuple[str, str]] = []
    gate = asyncio.Semaphore(CREATED_AT_ONCE)
    async with aiohttp.ClientSession() as session:

        async def make(number: int) -> None:
            token = people[number % len(people)][1]
            body = {"content": [{"type": "text", "text": "hello"}], "model_config_id": model}
            headers = {"Authorization": f"Bearer {token}"}
            url = f"http://127.0.0.1:{ports[number % len(ports)]}/api/v1/chats"
            async with gate, session.post(url, json=body, headers=headers) as response:
                answer = await response.json()
                assert response.status == 201, answer
                made.append((answer["id"], token))

        await asyncio.gather(*map(make, range(count)))
    return made


async def measure(folder: Path, url: str, *, chats: int, seconds: float) -> Claims:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(helper("--provider"))
        base = f"http://127.0.0.1:{await line_of(provider)}/v1"
        config = settings_for(folder, url)
        database = await stack.enter_async_context(await Database.connect(installation.database_config(config, url)))
        people, providers = await prepare(database, base)
        async with database.api.acquire() as conn:
            draft = ModelConfigDraft(provider_id=providers["completions"], model="endless", context_limit=50_000_000)
            model = (await model_configs.create_model_config(conn, draft, by=None)).id
        replicas = [await stack.enter_async_context(helper("--replica", folder, url)) for _ in range(2)]
        ports = [int(await line_of(replica)) for replica in replicas]
        started = time.monotonic()
        made = await start_chats(ports, people, str(model), chats)
        print(f"{chats} chats created in {time.monotonic() - started:.1f} s", flush=True)
        clients = await stack.enter_async_context(helper("--clients"))
        streams = [
            ("127.0.0.1", ports[number // 2 % 2], f"/api/v1/chats/{chat}/stream?tail=0", token)
            for number, (chat, token) in enumerate(made)
        ]
        assert clients.stdin is not None
        clients.stdin.write(json.dumps({"streams": streams, "seconds": seconds}).encode() + b"\n")
        assert await line_of(clients) == "recording"
        processes = [*replicas, provider]
        before = [cpu_of(process.pid) for process in processes]
        assert await line_of(clients) == "recorded"
        cores = [cpu_of(process.pid) - cpu for process, cpu in zip(processes, before, strict=True)]
        found = json.loads(await line_of(clients))
    late = sorted(each * 1000 for each in found["late"])
    expected = len(streams[::SAMPLED]) * PACE * found["seconds"]
    arrived = found["words"] / expected
    cpu = sum(cores[:2]) / (chats * PACE * found["seconds"]) * 1e6
    print(f"{chats} chats at {PACE} words/s over two replicas, {os.cpu_count()} cores, {found['seconds']:.0f} s:")
    print(
        f"  words late by p50 {percentile(late, 50):.0f} ms, p90 {percentile(late, 90):.0f} ms,"
        f" p99 {percentile(late, 99):.0f} ms, worst {late[-1]:.0f} ms; {arrived:.1%} of the words arrived"
    )
    shares = ", ".join(f"{each / found['seconds']:.2f}" for each in (*cores, found["cpu"]))
    print(f"  CPU: {cpu:.0f} us per word in the replicas; cores of replica, replica, provider, clients: {shares}")
    return {
        f"{chats} chats over two replicas: words late, p99 ms": claim(percentile(late, 99), LATE_P99_MS),
        f"{chats} chats over two replicas: missing words, %": claim(max(0.0, 1 - arrived) * 100, MISSING_PERCENT),
    }


async def run(*, quick: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            claims = await measure(
                Path(folder), server.url, chats=100 if quick else 1000, seconds=3.0 if quick else 15.0
            )
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="How late words arrive with a thousand chats on one machine.")
    parser.add_argument("--quick", action="store_true", help="a hundred chats for three seconds")
    for name in ("--provider", "--clients"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--replica", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.provider:
        uvloop.run(provide())
    elif arguments.clients:
        uvloop.run(be_clients())
    elif arguments.replica:
        heap.share_heap()
        uvloop.run(be_replica(Path(arguments.replica[0]), arguments.replica[1]))
    else:
        return uvloop.run(run(quick=arguments.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
