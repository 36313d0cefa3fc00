"""Cost of the MCP client: a call against a bare aiohttp request to the same server, and the start of a turn.

    python benchmarks/mcp.py [--quick]

The servers run in a process of their own, so that the CPU time is that of the client. Calls are made one after the
other and alternate with bare requests, which send the same JSON to the same tool. The start of a turn asks for the
tools of ten connected servers, whose lists are kept.

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import aiohttp
import uvloop

# The name of this file would hide the package `mcp`.
sys.path.remove(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.server_config import ServerConfig
from rookery.runtime.clock import SystemClock
from rookery.testing.fake_mcp import STATELESS, Era, FakeCall, FakeMcp, Json, text

SERVERS = 10
TOOLS = 50
CHAT = UUID(int=1)
# Milliseconds. A call of a tool takes the server tens to thousands of them.
CALL_CPU_BUDGET, CALL_TIME_BUDGET, TURN_BUDGET = 6.0, 6.0, 3.0


async def serve_fakes(era: Era) -> None:
    """Serve until the process is ended. Print the addresses first."""

    async def add(call: FakeCall) -> Json:
        return text(call.arguments["a"] + call.arguments["b"])

    async def serve(fake: FakeMcp, ready: asyncio.Queue[str]) -> None:
        async with fake.listening() as url:
            await ready.put(url)
            await asyncio.Event().wait()

    ready: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        for _ in range(SERVERS):
            fake = FakeMcp(era)
            fake.tool("add", add, properties={"a": {"type": "integer"}, "b": {"type": "integer"}})
            for number in range(TOOLS - 1):
                properties = {f"argument{each}": {"type": "string", "description": "x" * 80} for each in range(5)}
                fake.tool(f"tool{number}", description="y" * 200, properties=properties)
            group.create_task(serve(fake, ready))
        print(json.dumps([await ready.get() for _ in range(SERVERS)]), flush=True)


@asynccontextmanager
async def fakes(era: Era) -> AsyncIterator[list[str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", era, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


class Cost:
    """Times of repeated work, in milliseconds."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    async def of(self, work: Callable[[], Awaitable[object]]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        await work()
        self.cpu.append((time.process_time() - cpu) * 1e3)
        self.wall.append((time.perf_counter() - wall) * 1e3)

    @property
    def mean_cpu(self) -> float:
        return statistics.fmean(self.cpu)

    @property
    def median_wall(self) -> float:
        return statistics.median(self.wall)


def bare_call(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Callable[[], Awaitable[bytes]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "bare", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    async def call() -> bytes:
        async with session.post(url, json=body, headers=headers) as response:
            return await response.read()

    return call


async def session_headers(session: aiohttp.ClientSession, url: str, era: Era) -> dict[str, str]:
    if era == "stateless":
        return {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    async with session.post(url, json=body) as response:
        return {"mcp-session-id": response.headers["mcp-session-id"]}


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure_era(era: Era, rounds: int, claims: dict[str, tuple[float, float]]) -> None:
    clock = SystemClock()
    async with fakes(era) as urls, aiohttp.ClientSession() as session:
        connections = McpConnections(mcp_guard(allow_private=True), clock)
        servers = [ServerConfig(key=f"s{number}", slug=f"s{number}", url=url) for number, url in enumerate(urls)]
        began, before = time.perf_counter(), memory_mb()
        found = await connections.tools_of(CHAT, servers)
        assert all(len(tools.tools) == TOOLS for tools in found), [tools.problem for tools in found]
        connect_ms = (time.perf_counter() - began) * 1e3
        print(f"{era}: connect and list {SERVERS} servers {connect_ms:.0f} ms, {memory_mb() - before:.1f} MB")

        bare = bare_call(session, urls[0], await session_headers(session, urls[0], era))

        async def call() -> object:
            return await connections.call(CHAT, servers[0], "add", {"a": 1, "b": 2}, call_key="1")

        ours, theirs = Cost(), Cost()
        for _ in range(rounds // 10):
            await call()
            await bare()
        for _ in range(rounds):
            await ours.of(call)
            await theirs.of(bare)
        print(
            f"{era}: a call takes {ours.median_wall:.2f} ms and {ours.mean_cpu:.2f} ms of CPU; "
            f"bare aiohttp {theirs.median_wall:.2f} ms and {theirs.mean_cpu:.2f} ms"
        )
        claims[f"{era}: added CPU of a call, ms"] = (ours.mean_cpu - theirs.mean_cpu, CALL_CPU_BUDGET)
        claims[f"{era}: added time of a call, ms"] = (ours.median_wall - theirs.median_wall, CALL_TIME_BUDGET)

        many, none = Cost(), Cost()
        for _ in range(rounds):
            await many.of(lambda: connections.tools_of(CHAT, servers))
            await none.of(lambda: connections.tools_of(CHAT, []))
        added = many.median_wall - none.median_wall
        print(f"{era}: start of a turn with {SERVERS} connected servers {added:.3f} ms more than with none")
        claims[f"{era}: start of a turn with {SERVERS} servers, ms more"] = (added, TURN_BUDGET)
        await connections.close()


async def run(*, quick: bool) -> int:
    claims: dict[str, tuple[float, float]] = {}
    assert "mcp" not in sys.modules
    eras: tuple[Era, ...] = ("stateless", "sessions")
    for era in eras:
        await measure_era(era, 200 if quick else 2_000, claims)
    shown = {
        name: {"value": round(value, 3), "budget": most, "ok": value <= most} for name, (value, most) in claims.items()
    }
    print(f"\n{json.dumps(shown)}")
    return 0 if all(each["ok"] for each in shown.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What a call of an MCP server costs, against bare HTTP.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 10 seconds")
    parser.add_argument("--serve", choices=("stateless", "sessions"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if arguments.serve:
            runner.run(serve_fakes(arguments.serve))
            return 0
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
