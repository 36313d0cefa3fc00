"""The listener of the server, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from rookery.server import listener
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
