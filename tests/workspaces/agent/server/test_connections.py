"""Slow clients, streamed responses, and leftovers of many requests, with a server in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.journal import Journal
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.process.children import Children
from rookery.workspaces.agent.process.processes import Processes
from rookery.workspaces.agent.scripts import Scripts
from rookery.workspaces.agent.server import connections, http
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent
from tests.eventually import until
from tests.workspaces.agent.agent_rig import PATIENCE_S, TOKEN, Rig

HEADERS = f" HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\nx-rookery-generation: 1\r\n".encode()


class Inside:
    """A server with routes of the test, on the loopback."""

    def __init__(self, folder: Path) -> None:
        log, clock, children = Log(folder / "agent.log"), Clock(), Children()
        config = Config(1, str(folder), str(folder))
        processes = Processes(children, clock)
        journal = Journal(folder / "journal", clock, log)
        scripts = Scripts(config, folder, processes, log)
        self.agent = Agent(config, folder, TOKEN, log, journal, children, processes, scripts)
        self.router = Router()
        self.server = connections.Server(self.agent, self.router)
        self.closed = asyncio.Event()

    async def talk(self, *pieces: bytes) -> bytes:
        """Send the pieces without closing; return what comes back until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()

    async def start(self) -> None:
        self.port = await self.server.listen_tcp("127.0.0.1", 0)


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Inside]:
    made = Inside(tmp_path)
    await made.start()
    yield made
    await made.server.close()


async def test_client_too_slow_with_its_head_is_cut_off(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)

    assert await inside.talk(b"GET /v1/health HT") == b""


async def test_silent_unauthenticated_connection_is_closed(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_IDLE_S", 0.05)

    assert await inside.talk() == b""


async def test_connections_that_make_room_are_closed_however_young(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "UNAUTHENTICATED_IDLE_S", 1000.0)

    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", inside.port) for _ in range(20)))
    ends = [asyncio.create_task(reader.read()) for reader, _ in opened]

    try:
        await until(lambda: sum(end.done() for end in ends) == 18, timeout=PATIENCE_S)
    finally:
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*ends)


async def test_client_too_slow_with_its_body_is_told_so(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_READ_S", 0.05)

    async def echo(request: Request) -> Response:
        return Response(200, await request.read())

    inside.router.add("POST", "/echo", echo)

    answer = await inside.talk(b"POST /echo" + HEADERS + b"content-length: 10\r\n\r\nhalf")

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_client_that_does_not_read_is_cut_off(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_S", 0.05)
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            ended.set()

    async def stream(request: Request) -> Response:
        return Response.streamed(endless(), content_type="text/plain")

    inside.router.add("GET", "/stream", stream)
    _, writer = await asyncio.open_connection("127.0.0.1", inside.port)
    writer.write(b"GET /stream" + HEADERS + b"\r\n")

    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()
    writer.close()


async def test_stream_ends_with_its_client_and_is_closed(inside: Inside) -> None:
    ended = asyncio.Event()

    async def stream(request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            try:
                yield b"first\n"
                await request.gone.wait()
            finally:
                ended.set()

        return Response.streamed(lines(), content_type="application/jsonl")

    inside.router.add("GET", "/stream", stream)
    reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
    writer.write(b"GET /stream" + HEADERS + b"\r\n")
    head = await reader.readuntil(b"first\n\r\n")
    writer.close()

    assert b"transfer-encoding: chunked" in head
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


@pytest.mark.parametrize(("length", "whole"), [(6, True), (7, False)])
async def test_stream_of_a_promised_length(inside: Inside, length: int, whole: bool) -> None:
    async def stream(request: Request) -> Response:
        return Response.streamed(pieces(b"abc", b"", b"def"), content_type="text/plain", length=length)

    inside.router.add("GET", "/stream", stream)

    answer = await inside.talk(b"GET /stream" + HEADERS + (b"connection: close\r\n\r\n" if whole else b"\r\n"))

    assert answer.endswith(b"\r\n\r\nabcdef")
    assert f"content-length: {length}".encode() in answer


async def test_handler_that_fails_is_answered_and_logged(inside: Inside) -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError("a bug")

    inside.router.add("GET", "/fail", fail)

    answer = await inside.talk(b"GET /fail" + HEADERS + b"connection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"a bug" not in answer
    assert "RuntimeError: a bug" in (inside.agent.run_dir / "agent.log").read_text()


def test_log_is_bounded_and_turned_over_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log", max_bytes=1000)

    for number in range(200):
        log(f"line {number:03} \ud800")
    log("x" * 5000)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "agent.log.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert (tmp_path / "agent.log.1").read_bytes().endswith(b"line 199 ?\n")


def test_log_that_cannot_be_written_costs_only_the_line(tmp_path: Path) -> None:
    (tmp_path / "agent.log").symlink_to(tmp_path / "elsewhere")

    Log(tmp_path / "agent.log")("a line")
    Log(tmp_path / "missing" / "agent.log")("a line")

    assert not (tmp_path / "elsewhere").exists()


async def test_many_requests_and_processes_leave_no_descriptors(rig: Rig) -> None:
    async def once() -> Any:
        shown = await rig.run("echo x", key=None)
        await rig.raw(b"bad\r\n\r\n")
        return shown

    await once()
    before = descriptors(rig)
    for _ in range(40):
        await once()
    await rig.disconnect()

    await until(lambda: descriptors(rig) <= before, timeout=PATIENCE_S)


def descriptors(rig: Rig) -> int:
    assert rig.process is not None
    return len(os.listdir(f"/proc/{rig.process.pid}/fd"))
