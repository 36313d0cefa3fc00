"""One connection of a stream, over WebSocket or server-sent events: frames of events until it ends.

The connection ends normally (`EndOfStream`), permanently (an error of `client.errors`), or by a loss after which
another connection can continue (`Lost`). A wire never reconnects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.typing import Origin, Subprotocol

from rookery.client import errors
from rookery.client import http as requests
from rookery.client.errors import UnexpectedAnswer, Unreachable
from rookery.client.http import Answer, Http
from rookery.client.reducer import Event

SUBPROTOCOL = Subprotocol("rookery.v1")
CLOSE_SECONDS = 2.0
# A frame has at most 256 KiB, or it has one larger event: a message with all its tool results.
MAX_FRAME_BYTES = 64 * 1024 * 1024

NORMAL = 1000
ABNORMAL = 1006
# Codes after which a new connection may succeed. 1006 is never sent; it means that the connection was cut.
RECONNECT = frozenset({1001, 1005, ABNORMAL, 1011, 1012, 1013, 4408})

_decoder = msgspec.json.Decoder(list[dict[str, Any]])
_OF_THE_HANDSHAKE = frozenset({"host", "connection", "accept", "accept-encoding", "user-agent", "origin"})


class Lost(Exception):
    """Raised when the connection is lost before the end of the stream."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class EndOfStream(Exception):
    """Raised when the server ended the stream normally."""


class NoUpgrade(Exception):
    """Raised when a proxy does not forward WebSockets."""


class Wire(Protocol):
    async def receive(self) -> Sequence[Event]:
        """Return the next frame. An empty one is a heartbeat."""
        ...

    async def close(self) -> None: ...

    async def drop(self) -> None:
        """Close without waiting for the other side, which does not answer."""
        ...


class _Connect(connect):
    """Refuses redirects like any other response, because the token is for one server only."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketWire:
    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def receive(self) -> Sequence[Event]:
        try:
            data = await self._connection.recv()
        except ConnectionClosed as closed:
            frame = closed.rcvd or closed.sent
            code, reason = (frame.code, frame.reason) if frame is not None else (ABNORMAL, "")
            raise ending(int(code), reason) from None
        return decode(data, self._url)

    async def close(self) -> None:
        await self._connection.close()

    async def drop(self) -> None:
        self._connection.transport.abort()


class EventStreamWire:
    def __init__(self, response: httpx2.Response, url: str) -> None:
        self._response = response
        self._url = url
        self._lines = _lines(response)

    async def receive(self) -> Sequence[Event]:
        fields: dict[str, str] = {}
        try:
            async for line in self._lines:
                if not line and fields:
                    return self._event(fields)
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
        except httpx2.HTTPError as error:
            raise Lost(requests.reason_of(error)) from None
        raise Lost("the connection ended")

    def _event(self, fields: dict[str, str]) -> Sequence[Event]:
        if "data" not in fields:
            return ()
        if fields.get("event") == "batch":
            return decode(fields["data"], self._url)
        told = decode(f"[{fields['data']}]", self._url)[0]
        raise ending(int(told.get("code", ABNORMAL)), str(told.get("reason", "")))

    async def close(self) -> None:
        await self._response.aclose()

    async def drop(self) -> None:
        await self._response.aclose()


async def open_websocket(http: Http, path: str, query: requests.Query) -> Wire:
    """Open a WebSocket. Raise `NoUpgrade` if it cannot be opened, else the error of the server or the network."""
    request = http.stream_request(path, query)
    url = str(request.url)
    own = {name: value for name, value in request.headers.items() if name.lower() not in _OF_THE_HANDSHAKE}
    unix_socket = http.config.unix_socket
    is_direct = unix_socket is not None or requests.is_loopback(url)
    place: dict[str, Any] = {} if unix_socket is None else {"unix": True, "path": unix_socket}
    try:
        connection = await _Connect(
            url.replace("http", "ws", 1),
            origin=Origin(request.headers["origin"]) if "origin" in request.headers else None,
            subprotocols=[SUBPROTOCOL],
            additional_headers=own,
            user_agent_header=requests.USER_AGENT,
            compression=None,
            proxy=None if is_direct else True,
            open_timeout=None,  # the caller's deadline applies instead
            ping_interval=None,  # the reader detects silence
            close_timeout=CLOSE_SECONDS,
            max_size=MAX_FRAME_BYTES,
            **place,
        )
    except InvalidStatus as error:
        response = error.response
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        raise _refused(http, Answer(response.status_code, headers, bytes(response.body))) from None
    except (InvalidMessage, OSError, EOFError) as error:
        raise Unreachable(http.base_url, requests.reason_of(error)) from error
    except InvalidHandshake as error:
        raise NoUpgrade(str(error)) from error
    return WebSocketWire(connection, http.base_url)


async def open_event_stream(http: Http, path: str, query: requests.Query) -> Wire:
    request = http.stream_request(path, query)
    request.headers["Accept"] = "text/event-stream"
    try:
        response = await http.send_stream(request)
        if response.status_code != 200:
            try:
                answer = Answer(response.status_code, response.headers, await response.aread())
            finally:
                await response.aclose()
            raise http.refusal(answer)
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise Unreachable(http.base_url, requests.reason_of(error)) from error
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        await response.aclose()
        raise UnexpectedAnswer(http.base_url, "it does not answer with a stream")
    return EventStreamWire(response, http.base_url)


def ending(code: int, reason: str) -> Exception:
    """Return the exception for a close code."""
    if code == NORMAL:
        return EndOfStream()
    if code in RECONNECT:
        return Lost(reason or "the connection was cut")
    return errors.stream_ended(code, reason)


def decode(data: str | bytes, url: str) -> list[dict[str, Any]]:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UnexpectedAnswer(url, str(error)) from error


def _refused(http: Http, answer: Answer) -> Exception:
    """Return the error of a refusal by the server. Any other response comes from a proxy."""
    error = http.refusal(answer)
    return NoUpgrade(str(error)) if isinstance(error, UnexpectedAnswer) else error


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield lines as server-sent events define them. Other line ends that Python knows are part of the text."""
    pending = bytearray()
    async for chunk in response.aiter_bytes():
        pending += chunk
        *complete, rest = pending.split(b"\n") if b"\n" in chunk else [pending]
        pending = rest
        for line in complete:
            yield line.decode("utf-8", "replace").removesuffix("\r")
