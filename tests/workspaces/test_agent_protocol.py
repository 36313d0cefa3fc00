"""Agents that flood, drip and stall: their cost for the server, and how they are cut off."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.runtime.clock import SystemClock
from rookery.workspaces import agent_protocol
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp, ChatHeaders, Request
from rookery.workspaces.agent_protocol import BURST_SECONDS, SHARE, LoopShare
from rookery.workspaces.errors import AgentCutOff, AgentUnreachable
from tests.workspaces.fake_agent import UnixPath

HEALTH = json.dumps({"generation": 1, "api": 2, "home": "/home/agent"}).encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(HEALTH), HEALTH)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

CHAT = UUID(int=1)

Hostile = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Agent:
    """An agent served by `hostile`, as a test sees it."""

    def __init__(self, path: str) -> None:
        self.reasons: list[str] = []
        self.http = AgentHttp(
            UnixPath(path), token="t", generation=1, clock=SystemClock(), on_cut_off=self.reasons.append
        )
        self.conn = AgentConn(self.http)


@asynccontextmanager
async def served(hostile: Hostile) -> AsyncIterator[Agent]:
    open_ones: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await hostile(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    with tempfile.TemporaryDirectory(prefix="rk") as folder:
        path = str(Path(folder) / "agent.sock")
        server = await asyncio.start_unix_server(accept, path)
        agent = Agent(path)
        try:
            yield agent
        finally:
            await agent.http.close()
            server.close()
            # The agents notice that the server has closed the connection.
            await asyncio.gather(*open_ones)


def says(data: bytes) -> Hostile:
    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await reader.read()  # until the server leaves

    return hostile


async def test_agent_that_answers_continue_without_end_is_cut_off() -> None:
    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(CONTINUE * 1000)
            await writer.drain()

    async with served(hostile) as agent:
        with pytest.raises(AgentCutOff, match="more than 64 KiB before a response"):
            await agent.conn.health()
        assert len(agent.reasons) == 1

        with pytest.raises(AgentCutOff, match="Stop it and start it again"):
            await agent.conn.health()


async def test_few_interim_answers_are_read_over() -> None:
    async with served(says(CONTINUE * 20 + OK)) as agent:
        assert (await agent.conn.health()).home == "/home/agent"
        assert agent.reasons == []


async def test_head_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_protocol, "HEAD_SECONDS", 0.05)

    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Le")) as agent:
        with pytest.raises(AgentUnreachable, match="did not complete the head"):
            await agent.conn.health()
        assert agent.reasons == []  # a tunnel may stall; the next request is tried


async def test_stream_whose_head_never_comes_ends_in_time() -> None:
    async with served(says(b"")) as agent:
        request = Request(method="GET", path="/v1/files", seconds=0.05)
        with pytest.raises(AgentUnreachable, match=r"did not answer within 0\.05 s"):
            async with agent.http.stream(request, ChatHeaders()):
                raise AssertionError("unreachable")


async def test_body_in_tiny_chunks_takes_no_more_than_a_share_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = b"1\r\nx\r\n" * 20_000

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunks)
            await writer.drain()

    spent: list[float] = []
    spend = LoopShare.spend

    def record(self: LoopShare, seconds: float) -> None:
        spent.append(seconds)
        spend(self, seconds)

    monkeypatch.setattr(LoopShare, "spend", record)
    async with served(hostile) as agent:
        began = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await agent.conn.read_bytes("/x", max_bytes=10**9)
        elapsed = time.monotonic() - began

    # A piece is parsed whole, so the last one may be one too many.
    assert 0 < sum(spent) - spent[-1] <= BURST_SECONDS + SHARE * elapsed


async def test_pieces_of_any_size_arrive_completely_and_in_order() -> None:
    body = bytes(range(256)) * 4096  # a mebibyte, more than the server parses in one piece

    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))) as agent:
        assert await agent.conn.read_bytes("/x", max_bytes=2 * len(body)) == body


async def test_answers_that_end_with_the_connection_are_read_to_their_end() -> None:
    body = b"x" * 300_000

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()

    async with served(hostile) as agent:
        assert await agent.conn.read_bytes("/x", max_bytes=2 * len(body)) == body


async def test_slow_reader_of_a_large_body_gets_all_of_it() -> None:
    body = b"abc" * 1_000_000

    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))) as agent:
        found = bytearray()
        async for chunk in agent.conn.read_file("/x"):
            found += chunk
            await asyncio.sleep(0)
        assert bytes(found) == body


async def test_reader_that_is_slow_while_the_share_is_used_up_still_gets_all_of_it() -> None:
    """The pauses of the reader and of the share may end in either order."""
    body = b"abc" * 400_000

    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))) as agent:
        found = bytearray()
        async with asyncio.timeout(60):
            async for chunk in agent.conn.read_file("/x"):
                found += chunk
                share = agent.http._limits.share
                share.spend(max(0.0, share._left) + 0.0005)
                await asyncio.sleep(0.01)
        assert bytes(found) == body


async def test_line_that_arrives_byte_by_byte_is_read() -> None:
    line = b'{"type":"changes","repositories":[{"root":"/p","additions":2}]}\n'

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for byte in line:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (2 * len(line), line * 2))
        await reader.read()

    async with served(hostile) as agent:
        found = [message.repositories[0].additions async for message in agent.conn.watch_git(CHAT)]

    assert found == [2, 2, 2]


# The share


class _Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 0.01), st.floats(0, 0.01)), max_size=200))
def test_share_is_never_exceeded_by_more_than_the_last_piece(steps: list[tuple[float, float]]) -> None:
    now = _Time()
    share = LoopShare(now)
    spent = last = 0.0
    for idle, cost in steps:
        now.now += idle
        if share.pause() == 0:
            share.spend(cost)
            spent, last = spent + cost, cost
        assert spent - last <= BURST_SECONDS + SHARE * (now.now - 100.0) + 1e-9


def test_pause_is_as_long_as_it_takes_to_earn_what_was_spent() -> None:
    now = _Time()
    share = LoopShare(now)

    share.spend(BURST_SECONDS + 0.01)

    assert share.pause() == pytest.approx(0.01 / SHARE)
    now.now += share.pause() + 1e-9
    assert share.pause() == 0
    now.now += 3600
    share.spend(BURST_SECONDS + 0.01)
    assert share.pause() > 0  # after an hour without use, the share is still one burst
