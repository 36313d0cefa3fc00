"""The listener of the server, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import unix_connect

from rookery.server import listener
from rookery.server.websocket_frames import text_frame
from tests.certificates import make_certificate


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_connections_that_never_finish_the_tls_handshake_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 1.0)
    pem = make_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        address = bound.getsockname()
        async with listener.serving(answer, bound, ssl_certfile=pem, ssl_keyfile=pem), asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=pem))
            silent = [await asyncio.open_connection(*address) for _ in range(5)]
            silent[0][1].write(b"\x16\x03\x01")  # the beginning of a handshake

            assert [await each.read() for each, _ in silent] == [b""] * 5

            with closing(writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for _, each in silent:
                each.close()


async def test_frames_written_without_waiting_are_read_like_all_others(tmp_path: Path) -> None:
    texts = ["", "a", "ö" * 62, "b" * 125, "c" * 126, "d" * 65_535, "e" * 65_536]

    async def write(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        direct = scope["rookery.socket"]
        for text in texts:
            while not direct.try_write(text_frame(text.encode())):
                await send({"type": "websocket.send", "text": "waited"})
        await send({"type": "websocket.send", "text": "last"})
        await send({"type": "websocket.close", "code": 1000})
        assert not direct.try_write(text_frame(b"too late"))

    with listener.unix_socket(tmp_path / "s") as bound:
        async with (
            listener.serving(write, bound),
            asyncio.timeout(20),
            unix_connect(str(tmp_path / "s"), "ws://localhost/", compression=None) as connection,
        ):
            read = [frame async for frame in connection]

    assert [frame for frame in read if frame != "waited"] == [*texts, "last"]


@pytest.mark.parametrize("compressed", [True, False])
async def test_connection_takes_direct_frames_until_its_client_stops_reading(tmp_path: Path, compressed: bool) -> None:
    found: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

    async def write(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        direct = scope["rookery.socket"]
        frame = text_frame(b"x" * 60_000)
        written = [direct.try_write(frame)]
        await send({"type": "websocket.accept"})
        written.append(direct.try_write(frame))
        for _ in range(1000):
            written.append(direct.try_write(frame))
            await asyncio.sleep(0)
        found.set_result([*written[:2], written[-1]])

    with listener.unix_socket(tmp_path / "s") as bound:
        async with listener.serving(write, bound, ws_per_message_deflate=compressed), asyncio.timeout(20):
            _reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1024)
            extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n" if compressed else ""
            writer.write(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                + extension.encode()
                + b"\r\n"
            )
            assert await found == [False, not compressed, False]
            writer.transport.abort()
