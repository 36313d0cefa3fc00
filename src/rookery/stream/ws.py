"""Streams over WebSocket: the ASGI side of a session's transport, and refusals before the upgrade.

This module relies on the behavior of the server (uvicorn, websockets-sansio). The server stops reading after each data
frame until the application receives the frame, so a session receives continuously. A slow client delays the *next*
send. A close waits behind unsent data, so only the kernel can drop a client that stopped reading (`server.listener`).
Until the server notices that a connection is broken, an accept does nothing, and a send raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from starlette.types import Message, Receive, Scope, Send

from rookery.server.websocket_frames import text_frame
from rookery.stream import events

SUBPROTOCOL = "rookery.v1"
BEARER = "rookery.bearer."
SESSION_KEY = "rookery.session."
HEARTBEAT_SECONDS = 20.0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A response in place of a stream, with the error body of the API."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = {}

    def body(self) -> bytes:
        return msgspec.json.encode({"code": self.code, "message": self.message})

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        fixed = {"content-type": "application/json", "cache-control": "no-store"}
        return [(name.lower().encode(), value.encode()) for name, value in {**fixed, **self.headers}.items()]


class Socket(Protocol):
    """The connection behind the application, as the server offers it in the scope."""

    def try_write(self, frame: bytes) -> bool:
        """Write an encoded frame if the connection is open and its client reads. Return whether it was written."""


class _SharedFrames:
    """Encodes an event to a frame. All viewers of a chat get the frame of the same event, one after the other."""

    __slots__ = ("_event", "_frame")

    def __init__(self) -> None:
        self._event = self._frame = b""

    def of(self, event: bytes) -> bytes:
        if event is not self._event:
            self._frame = text_frame(events.frame((event,)))
            self._event = event
        return self._frame


_shared_frames = _SharedFrames()


class WebSocketTransport:
    """An accepted connection. With the server's socket, it can also write without waiting."""

    __slots__ = ("_receive", "_send", "_socket")

    heartbeat_seconds = HEARTBEAT_SECONDS

    def __init__(self, receive: Receive, send: Send, socket: Socket | None = None) -> None:
        self._receive = receive
        self._send = send
        self._socket = socket

    def write_now(self, event: bytes) -> int:
        if self._socket is None:
            return 0
        frame = _shared_frames.of(event)
        return len(frame) if self._socket.try_write(frame) else 0

    async def send(self, data: bytes, cursor: int | None = None) -> None:
        await self._say({"type": "websocket.send", "text": data.decode()})

    async def beat(self, event: bytes) -> None:
        await self.send(b"[" + event + b"]")

    async def receive(self) -> bytes | None:
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return None
        text = message.get("text")
        return text.encode() if text is not None else bytes(message.get("bytes") or b"")

    async def close(self, code: int, reason: str) -> None:
        await self._say({"type": "websocket.close", "code": code, "reason": reason})

    async def _say(self, message: Message) -> None:
        try:
            await self._send(message)
        except RuntimeError as error:
            # Messages are always sent in the right order, so the cause is a broken connection.
            raise ConnectionError("The client is gone.") from error


async def accept(scope: Scope, receive: Receive, send: Send) -> WebSocketTransport:
    """Accept the upgrade. The response contains only our own subprotocol, because the other requested one is a
    secret.
    """
    await _connected(receive)
    offered: Sequence[str] = scope.get("subprotocols", ())
    await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
    return WebSocketTransport(receive, send, scope.get("rookery.socket"))


async def refuse(receive: Receive, send: Send, refusal: Refusal) -> None:
    """Answer the upgrade with an ordinary response, so that the client can read the error."""
    await _connected(receive)
    await send(
        {
            "type": "websocket.http.response.start",
            "status": refusal.status,
            "headers": refusal.raw_headers(),
        }
    )
    await send({"type": "websocket.http.response.body", "body": refusal.body()})


def bearer_token(scope: Scope) -> str | None:
    """Return the token that a browser on another origin sends as a subprotocol, because it cannot send headers."""
    return _secret(scope, BEARER)


def session_key(scope: Scope) -> str | None:
    """Return the session key, which the web application sends in the same way."""
    return _secret(scope, SESSION_KEY)


def _secret(scope: Scope, prefix: str) -> str | None:
    offered: Sequence[str] = scope.get("subprotocols", ())
    if SUBPROTOCOL not in offered:
        return None
    return next((each.removeprefix(prefix) for each in offered if each.startswith(prefix)), None)


async def _connected(receive: Receive) -> None:
    message = await receive()
    if message["type"] != "websocket.connect":
        raise ConnectionError("The client left before the upgrade.")
