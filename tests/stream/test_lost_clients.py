"""Clients that disconnect before the server notices that the connection is broken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import ClientConnection, unix_connect

from rookery.server.listener import serving, unix_socket
from rookery.stream.access_monitor import Grant
from rookery.stream.query_parameters import StreamParams
from tests.eventually import until
from tests.stream.stream_rig import Rig, say


class Porch:
    """Serves one chat's stream, and delays new clients until `gate` is set. `connections` are the server's sides."""

    def __init__(self, rig: Rig, chat_id: UUID) -> None:
        self._rig = rig
        self._chat_id = chat_id
        self.gate = asyncio.Event()
        self.arrived = 0
        self.connections: list[WebSocketsSansIOProtocol] = []

    def protocol(self, *args: Any, **options: Any) -> WebSocketsSansIOProtocol:
        made = WebSocketsSansIOProtocol(*args, **options)
        self.connections.append(made)
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = uuid4()
        grant = Grant(user_id=user, credential=str(user), chat_id=self._chat_id, root_id=self._chat_id)
        opened = await self._rig.site.streams.open_chat(grant, StreamParams())
        self.arrived += 1
        await self.gate.wait()
        await opened.serve(scope, receive, send)

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[Callable[[], asyncio.Task[ClientConnection]]]:
        def arrive() -> asyncio.Task[ClientConnection]:
            async def connect() -> ClientConnection:
                return await unix_connect(str(path), "ws://localhost/", compression=None)

            return asyncio.ensure_future(connect())

        with unix_socket(path) as listening:
            async with serving(self, listening, ws=self.protocol):
                yield arrive


async def test_client_that_vanishes_during_the_handshake_is_no_failure(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    porch = Porch(rig, await rig.chat("one"))
    async with porch.open(tmp_path / "door") as arrive:
        client = arrive()
        await until(lambda: porch.arrived)
        (connection,) = porch.connections

        # In this order: the stream continues while the connection is closing and not yet lost.
        porch.gate.set()
        connection.transport.close()
        await until(lambda: len(rig.site.streams.sessions) == 0)
        await asyncio.gather(client, return_exceptions=True)

    assert errors(caplog) == []


async def test_connection_that_the_server_gave_up_is_no_failure(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat_id, chat = await rig.running(worker=rig.site.id)
    porch = Porch(rig, chat_id)
    porch.gate.set()
    async with porch.open(tmp_path / "door") as arrive:
        client = await arrive()
        await client.recv()
        (connection,) = porch.connections

        say(rig.site.episode(chat), "a word on its way")
        connection.keepalive_timeout()
        await until(lambda: len(rig.site.streams.sessions) == 0)
        await client.wait_closed()

    assert client.close_code == 1011
    assert errors(caplog) == []


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
