"""Limits on the time and size of an incoming request; uvicorn itself would wait forever.

Without them, a client that opens connections and sends a byte now and then could keep them all. Only time that the
client takes counts, not the time in which the application works or reads. `unauthenticated_connections` also limits the
number of connections per address. When a request is authenticated, the application calls `rookery.known` of its scope.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from rookery.server import unauthenticated_connections
from rookery.server.unauthenticated_connections import ConnectionLimits

# The time from the connection, or from the first byte after a response, until the end of the header block.
HEAD_SECONDS = 10.0
# The time from the end of the header block until the end of the body.
BODY_SECONDS = 30.0
# After this time, a body must arrive at least at this rate. It is chosen below the speed of any connection that users
# work on.
BYTES_PER_SECOND = 32 * 1024
MAX_HEAD_BYTES = 32 * 1024
# The head is processed in pieces of this size, which is also the precision of its length limit.
_SLICE_BYTES = 4 * 1024
_RETRY_SECONDS = 5

_TOO_LARGE = "The header block is longer than 32 KiB."
_MALFORMED = "This is not an HTTP request."
_TOO_SLOW = "The request took too long to arrive."
_TOO_MANY = "Too many connections from this address are open without a login. Close some, or try again in a moment."

# The connection limits by the state of their server. An entry ends with its server.
_GUESTS: WeakKeyDictionary[Any, ConnectionLimits] = WeakKeyDictionary()


class TimedHttpProtocol(H11Protocol):
    """The HTTP protocol of the public port. The option `h11_max_incomplete_event_size` limits its buffer."""

    _head_seconds = HEAD_SECONDS
    _body_seconds = BODY_SECONDS
    _max_unauthenticated = unauthenticated_connections.MAX_UNAUTHENTICATED
    _counted_key: str | None = None
    _is_upgraded = False
    _timer: asyncio.TimerHandle | None = None
    _is_for_head = True
    _since = 0.0
    _received = 0
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_admitted():
            self._expect()
        else:
            self._refuse(429, "rate_limited", _TOO_MANY, retry_after=_RETRY_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._stop_counting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._counted_key is not None and self.scope is not None:
            # The request runs in a task that has not started yet.
            self.scope["rookery.known"] = self._stop_counting  # type: ignore[typeddict-unknown-key]

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for the client: for a request, for the rest of a request, or for the client to read
        the response.

        A request whose body does not arrive counts as idle. Otherwise a hundred such requests would block all other
        clients.
        """
        if self._is_upgraded:
            return False
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or self.flow.write_paused:
            return True
        return self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused

    def evict(self) -> None:
        self._counted_key = None
        self._expect_nothing()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a close would wait until the client has read the rest
        else:
            self.transport.close()

    def _is_admitted(self) -> bool:
        """Count the connection. Return False if its address has too many connections and all of them are busy."""
        address, config = self.client[0] if self.client else None, self.config
        is_proxy = unauthenticated_connections.is_trusted(address, config.forwarded_allow_ips)
        if address is None or is_proxy:
            return True  # a unix socket or a trusted proxy
        known = _GUESTS.setdefault(self.server_state, ConnectionLimits(self._max_unauthenticated))
        key = unauthenticated_connections.address_key(address)
        if not known.admit(key, self):
            return False
        self._counted_key = key
        return True

    def _stop_counting(self) -> None:
        """Stop counting: a request was authenticated, or the connection is closed. May be called repeatedly."""
        key, self._counted_key = self._counted_key, None
        if key is not None:
            _GUESTS[self.server_state].leave(key, self)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        view = memoryview(data)
        while view and self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            piece, view = view[:_SLICE_BYTES], view[_SLICE_BYTES:]
            self._head_bytes += len(piece)
            super().data_received(bytes(piece))
        self._head_bytes = self._head_bytes if self.conn.their_state is h11.IDLE else 0
        if view and not self.transport.is_closing() and self.transport.get_protocol() is self:
            super().data_received(bytes(view))
        self._update_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._expect_nothing()
        self._is_upgraded = True
        super().handle_websocket_upgrade(event)
        if self._counted_key is None:
            return
        socket = self.transport.get_protocol()
        assert isinstance(socket, CountedWebSocketProtocol), "the option `ws` of the server names another protocol"
        # The connection is counted until its credential was accepted or it is closed. Its task has not started yet.
        socket.on_lost = self._stop_counting
        if socket.handshake_initiated and not socket.handshake_complete:
            socket.scope["rookery.known"] = self._stop_counting  # type: ignore[typeddict-unknown-key]

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, "headers_too_large", _TOO_LARGE)
        else:
            self._refuse(400, "malformed", _MALFORMED)

    def _update_timer(self) -> None:
        """Start or stop the timer. It runs while a part of a head or body is missing."""
        is_ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        if not is_ours or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._expect_nothing()
        elif self._timer is None:
            self._expect()
        elif self._is_for_head and not self._owes_head:
            self._expect(received=self._received)  # a part of the body came with its head

    @property
    def _owes_head(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _expect(self, *, received: int = 0) -> None:
        self._expect_nothing()
        self._since, self._received, self._is_for_head = self.loop.time(), received, self._owes_head
        self._timer = self.loop.call_later(self._seconds(), self._on_timeout)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _seconds(self) -> float:
        """Return the time limit for the expected data, given the size that has arrived. A head has a fixed limit."""
        if self._is_for_head:
            return self._head_seconds
        return self._body_seconds + self._received / BYTES_PER_SECOND

    def _on_timeout(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self.flow.read_paused:
            self._since = now  # the application is the slow side
        left = self._since + self._seconds() - now
        if left > 0:
            self._timer = self.loop.call_later(left, self._on_timeout)
        elif self.conn.our_state is h11.IDLE and self._head_bytes:
            self._refuse(408, "too_slow", _TOO_SLOW)
        else:
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str, *, retry_after: int | None = None) -> None:
        """Send an error in the format of the API. The request was not read, so the error gets a new request id."""
        self._expect_nothing()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        request_id = secrets.token_hex(8)
        body = msgspec.json.encode({"code": code, "message": message, "request_id": request_id})
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        headers.append(("x-request-id", request_id))
        if retry_after is not None:
            headers.append(("retry-after", str(retry_after)))
        for part in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


class CountedWebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of the public port. It was counted as an HTTP connection, and may still be counted.

    The application finds it in its scope as `rookery.socket`, and can write frames without waiting.
    """

    on_lost: Callable[[], None] | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            # The application runs in a task that has not started yet.
            self.scope["rookery.socket"] = self  # type: ignore[typeddict-unknown-key]

    def try_write(self, frame: bytes) -> bool:
        """Write an encoded frame if the connection is open and uncompressed, and its client reads.

        Return whether it was written.
        """
        conn = self.conn
        if conn.state is not State.OPEN or conn.extensions or not self.writable.is_set():
            return False
        if self.close_sent or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)
