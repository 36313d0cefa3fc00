"""The frames of a stream across reconnects: WebSocket first, server-sent events if that fails.

A lost connection is reported immediately as a client-side event, `disconnected`. The delay before the next connection
follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from rookery.client import backoff, stream_connection
from rookery.client.errors import ApiError, RateLimited, TimedOut, Unavailable, Unreachable
from rookery.client.http import MAX_WAIT_SECONDS, Http, Query
from rookery.client.reducer import Event
from rookery.client.stream_connection import EndOfStream, Lost, NoUpgrade, Wire
from rookery.runtime.clock import DeadlineExceeded

# A server sends a frame at least every 20 s. A connection that is silent for longer than this is dead.
SILENCE_SECONDS = 50.0
# If a proxy drops the upgrade, a plain request remains, whose response is a stream without an end.
UPGRADE_SECONDS = 10.0

Transport: TypeAlias = Literal["auto", "websocket", "sse"]


class Frames:
    """The frames of one stream.

    `query` is called at every connection and returns the position from which to continue.
    """

    def __init__(self, http: Http, path: str, query: Callable[[], Query], *, transport: Transport) -> None:
        self._http = http
        self._path = path
        self._query = query
        self._transport = transport
        self._clock = http.config.clock
        self._rng = http.config.rng
        self._wire: Wire | None = None
        self._attempt = 0
        self._delay = 0.0
        self._goodbye_delay: float | None = None
        self._least_delay = 0.0
        self._is_over = False

    async def open(self) -> None:
        """Open the first connection, with the retries of any request. Refusals are raised."""
        for attempt in range(self._http.config.max_retries + 1):
            try:
                self._wire = await self._connect()
                return
            except (ApiError, Unreachable, TimedOut) as error:
                if attempt == self._http.config.max_retries or not _is_passing(error):
                    raise
                asked = _asked_wait(error)
                if asked > MAX_WAIT_SECONDS:
                    raise
                delay = max(asked, backoff.request_delay(attempt, self._rng))
            await self._clock.sleep(delay, "stream-retry")

    async def close(self) -> None:
        self._is_over = True
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    async def receive(self) -> Sequence[Event]:
        """Return the next frame. Raise `EndOfStream`, or the error that ended the stream permanently."""
        while True:
            if self._is_over:
                raise EndOfStream
            if self._wire is None:
                await self._clock.sleep(self._delay, "stream-retry")
                lost = await self._connect_again()
            else:
                frame_or_loss = await self._receive(self._wire)
                if not isinstance(frame_or_loss, Lost):
                    return self._noted(frame_or_loss)
                lost = frame_or_loss
            if lost is not None:
                return [self._disconnected(lost.reason)]

    async def _connect_again(self) -> Lost | None:
        try:
            self._wire = await self._connect()
        except (ApiError, Unreachable, TimedOut) as error:
            if not _is_passing(error):
                raise
            self._least_delay = min(_asked_wait(error), MAX_WAIT_SECONDS)
            return Lost(str(error).rstrip("."))
        self._attempt = 0
        return None

    async def _receive(self, wire: Wire) -> Sequence[Event] | Lost:
        try:
            async with self._clock.deadline(SILENCE_SECONDS, "stream-silence"):
                return await wire.receive()
        except DeadlineExceeded:
            await self._drop()
            return Lost(f"the server was silent for {SILENCE_SECONDS:g} s")
        except Lost as lost:
            await self._drop()
            return lost
        except EndOfStream:
            self._is_over = True
            await self._drop()
            raise

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.drop()

    def _noted(self, frame: Sequence[Event]) -> Sequence[Event]:
        for event in frame:
            if event["type"] == "goodbye":
                # The server spreads this delay over all its clients, so the client adds no jitter.
                self._goodbye_delay = min(event.get("retry_after_ms", 0) / 1000, MAX_WAIT_SECONDS)
        return frame

    def _disconnected(self, reason: str) -> Event:
        planned, self._goodbye_delay = self._goodbye_delay, None
        least, self._least_delay = self._least_delay, 0.0
        self._delay = planned if planned is not None else max(least, backoff.stream_delay(self._attempt, self._rng))
        self._attempt += 1
        return {"type": "disconnected", "reason": reason, "retry_in_seconds": self._delay}

    async def _connect(self) -> Wire:
        if self._transport != "sse":
            try:
                return await self._within(UPGRADE_SECONDS, stream_connection.open_websocket)
            except (NoUpgrade, TimedOut) as error:
                if self._transport == "websocket":
                    raise Unreachable(self._http.base_url, f"WebSockets are not forwarded ({error})") from error
        wire = await self._within(self._http.config.timeout_seconds, stream_connection.open_event_stream)
        # This applies to the whole stream, because the proxy will not change meanwhile.
        self._transport = "sse"
        return wire

    async def _within(self, seconds: float, open_wire: Callable[[Http, str, Query], Awaitable[Wire]]) -> Wire:
        try:
            async with self._clock.deadline(seconds, "stream-open"):
                return await open_wire(self._http, self._path, self._query())
        except DeadlineExceeded as error:
            raise TimedOut("The stream", seconds) from error


def _asked_wait(error: ApiError | Unreachable | TimedOut) -> float:
    return error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0


def _is_passing(error: ApiError | Unreachable | TimedOut) -> bool:
    """Return whether a stream that is refused with this error may be accepted a little later.

    This includes `TooManyStreams`, because the server may still count the connection that was just lost.
    """
    match error:
        case ApiError(code="setup_required"):
            return False
        case Unreachable() | TimedOut() | Unavailable() | RateLimited():
            return True
    return error.status >= 500
