"""Streams over WebSocket: the ASGI side of a session's transport, and refusals before the upgrade.

This module relies on the behavior of the server (uvicorn, websockets-sansio). The server stops reading after each data
frame until the application receives the frame, so a session receives continuously. A slow client delays the *next*
send. A close waits behind unsent data, so only the kernel can drop a client that stopped reading (`server.listener`).
Until the server notices that a connection is broken, an accept does nothing, and a send raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from starlette.types import Message, Receive, Scope, Send

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


class WebSocketTransport:
    """An accepted connection."""

    __slots__ = ("_receive", "_send")

    heartbeat_seconds = HEARTBEAT_SECONDS

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

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
    return WebSocketTransport(receive, send)


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
