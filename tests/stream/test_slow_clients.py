"""A client that connects and never reads: its pending data is limited, and others are not delayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from rookery.server.listener import serving, unix_socket
from rookery.server.request_timeouts import TimedHttpProtocol
from rookery.stream.outbox import MAX_FRAME_BYTES
from tests.eventually import until
from tests.store.machine.machine_rig import assistant
from tests.stream.socket_clients import SocketServer
from tests.stream.stream_rig import Rig, open_rig, say
from tests.stream.test_sockets import UPGRADE

# One frame, the write buffer of asyncio, and their headers.
MAX_WAITING_BYTES = MAX_FRAME_BYTES + 64 * 1024 + 1024
PIECE = "x" * 50_000


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_rig(database_url, send_seconds=2.0) as opened:
        yield opened


class Server:
    """Serves the streams of a site, and reports the unsent data in its sockets."""

    def __init__(self) -> None:
        self._connections: list[WebSocketsSansIOProtocol | TimedHttpProtocol] = []

    def websocket(self, *args: Any, **options: Any) -> WebSocketsSansIOProtocol:
        made = WebSocketsSansIOProtocol(*args, **options)
        self._connections.append(made)
        return made

    def http(self, *args: Any, **options: Any) -> TimedHttpProtocol:
        made = TimedHttpProtocol(*args, **options)
        self._connections.append(made)
        return made

    def waiting_bytes(self) -> int:
        return max(each.transport.get_write_buffer_size() for each in self._connections)


@pytest.mark.parametrize("upgrade", [UPGRADE, ""], ids=["websocket", "sse"])
async def test_data_for_a_client_that_never_reads_is_bounded(rig: Rig, tmp_path: Path, upgrade: str) -> None:
    """Of eight megabytes of parts and messages, the server holds one frame."""
    chat_id, chat = await rig.running(worker=rig.site.id)
    server, waited = Server(), [0]
    fast = await rig.site.view(chat_id)
    with unix_socket(tmp_path / "door") as listening:
        async with serving(SocketServer(rig.site.streams), listening, ws=server.websocket, http=server.http):
            _, writer = await asyncio.open_unix_connection(tmp_path / "door", limit=1024)
            head = f"GET /chats/{chat_id}/stream?tail=1000 HTTP/1.1\r\nHost: x\r\nX-User: {uuid4()}\r\n"
            writer.write(f"{head}{upgrade}\r\n".encode())
            await until(lambda: len(rig.site.streams.sessions) == 2)

            episode = rig.site.episode(chat)
            for _ in range(80):
                say(episode, PIECE)
                await asyncio.sleep(0)
                waited.append(server.waiting_bytes())
            for _ in range(80):
                await rig.chats.commit(chat_id, assistant(PIECE))
                waited.append(server.waiting_bytes())
            await fast.until("message", 81)
            await until(lambda: len(rig.site.streams.sessions) == 1)
            writer.transport.abort()

    assert 32 * 1024 < max(waited) <= MAX_WAITING_BYTES
    assert rig.site.streams.sessions.stats.slow == 1
