"""The agent's egress forwarder: connections of a loopback port are forwarded unchanged to the server's socket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.workspaces.agent import egress_forwarder
from rookery.workspaces.agent.config import Egress
from rookery.workspaces.agent.egress_forwarder import Forwarder
from rookery.workspaces.agent.log import Log
from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.test_bundle import PYTHONS

MEBIBYTE = 1024 * 1024


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")
    writer.close()


class Way:
    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "e.sock")
        self.forwarder = Forwarder(Egress(0, self.socket), Log(directory / "log"), connect_s=0.5)
        self.port = 0
        self.servers: list[asyncio.AbstractServer] = []

    async def serve(self) -> None:
        self.servers.append(await asyncio.start_unix_server(echo, self.socket))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Way]:
    made = Way(tmp_path)
    made.port = await made.forwarder.listen()
    yield made
    await made.forwarder.close()
    for server in made.servers:
        server.close()


async def test_bytes_go_both_ways_until_both_ends_are_done(way: Way) -> None:
    await way.serve()
    reader, writer = await way.connect()

    async def send() -> None:
        writer.write(b"x" * (4 * MEBIBYTE))
        await writer.drain()
        writer.write_eof()

    _, back = await asyncio.gather(send(), reader.read(-1))
    writer.close()

    assert back == b"x" * (4 * MEBIBYTE) + b"bye"
    await until(lambda: not way.forwarder._connections)


async def test_connection_waits_for_a_server_that_comes_up(way: Way) -> None:
    reader, writer = await way.connect()
    writer.write(b"early")
    await until(lambda: way.forwarder._connections)

    await way.serve()
    writer.write_eof()

    assert await reader.read(-1) == b"earlybye"
    writer.close()


async def test_missing_proxy_behind_the_socket_is_reported(way: Way) -> None:
    reader, writer = await way.connect()
    writer.write(b"GET http://listed.test/ HTTP/1.1\r\n\r\n")

    answer = (await reader.read(-1)).decode()
    writer.close()

    assert answer.startswith("HTTP/1.1 503 The network of this workspace is not available")
    assert answer.endswith("does not answer. Try again in a minute.\n")


async def test_connections_beyond_the_bound_are_told(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_forwarder, "MAX_CONNECTIONS", 1)
    await way.serve()
    _, held = await way.connect()
    await until(lambda: way.forwarder._connections)

    reader, writer = await way.connect()
    answer = await reader.read(-1)

    assert b"may have 1 connections at the same time" in answer
    writer.close()
    held.close()


async def test_storm_of_connections_does_not_take_the_agents_files(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_forwarder, "MAX_CONNECTIONS", 2)
    most = 0

    async def connect() -> asyncio.StreamWriter:
        nonlocal most
        _, writer = await way.connect()
        most = max(most, len(way.forwarder._connections))
        return writer

    writers = await asyncio.gather(*(connect() for _ in range(50)))
    await until(lambda: way.forwarder._connections)

    assert most <= 4
    for writer in writers:
        writer.transport.abort()


async def test_server_that_leaves_ends_the_connection(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_forwarder, "HALF_S", 0.1)

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * MEBIBYTE)
        writer.close()

    way.servers.append(await asyncio.start_unix_server(leave, way.socket))
    reader, writer = await way.connect()

    assert len(await reader.read(-1)) == MEBIBYTE
    await until(lambda: not way.forwarder._connections)
    writer.close()


@pytest.mark.skipif(not PYTHONS, reason="this machine has one Python only")
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
async def test_agent_forwards_on_every_python_that_is_here(python: str, tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    server = await asyncio.start_unix_server(echo, str(path))
    async with rigs.rig({"egress": {"port": 0, "socket": str(path)}}, python=python) as rig:
        await rig.start()
        found = re.search(r"the proxy listens on 127\.0\.0\.1:(\d+)", rig.log())
        assert found is not None

        reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
        writer.write(b"hello")
        writer.write_eof()
        back = await reader.read(-1)
        writer.close()

        assert back == b"hellobye"
        assert "Traceback" not in rig.log()
    server.close()


async def test_port_that_is_taken_leaves_a_workspace_without_network(tmp_path: Path) -> None:
    taken = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with rigs.rig({"egress": {"port": port, "socket": str(tmp_path / "e.sock")}}) as rig:
        await rig.start()

        assert "the proxy cannot listen" in rig.log()
        assert (await rig.run("echo here", chat="c1", key="k"))["output"] == "here\n"
    taken.close()
