"""Streams over server-sent events: the same batches as over WebSocket, for clients that only read.

A batch that ends a synchronization has its cursor as event id; browsers send it back as `Last-Event-ID`.
"""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Send

from rookery.stream.errors import CloseCode

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

# JSON has raw line ends only between its tokens, where a space is equivalent. In an event stream, each line end would
# begin another field.
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


class EventStreamTransport:
    """A response that has begun."""

    __slots__ = ("_receive", "_send")

    heartbeat_seconds = HEARTBEAT_SECONDS

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    def write_now(self, event: bytes) -> int:
        return 0

    async def send(self, data: bytes, cursor: int | None = None) -> None:
        mark = b"" if cursor is None else b"id: %d\n" % cursor
        await self._write(b"event: batch\n" + mark + b"data: " + data.translate(_LINE_ENDS) + b"\n\n")

    async def beat(self, event: bytes) -> None:
        await self._write(b": hb\n\n")

    async def receive(self) -> bytes | None:
        """Return None when the client has disconnected. A client of an event stream never sends anything."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return None

    async def close(self, code: int, reason: str) -> None:
        kind = "reconnect" if CloseCode(code).asks_to_reconnect else "close"
        data = msgspec.json.encode({"code": code, "reason": reason})
        body = f"event: {kind}\ndata: ".encode() + data + b"\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


async def start(receive: Receive, send: Send) -> EventStreamTransport:
    """Begin the response."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    transport = EventStreamTransport(receive, send)
    await transport._write(b"retry: %d\n\n" % RETRY_MS)
    return transport
