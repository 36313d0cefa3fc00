"""The connection to a possibly hostile workspace agent: limits on the bytes it sends and on the time they take to
parse.

aiohttp parses everything a socket received in one go, and waits for a final head through any number of interim ones. An
agent that sends `100 Continue` without end, or its body in chunks of one byte, would block the event loop. Here bytes
are parsed in small pieces, each workspace has a share of the loop's time, and an agent that breaks the protocol is cut
off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

# Chosen: an agent's head has a few hundred bytes; this is more than the library accepts as one head.
MAX_HEAD_BYTES = 64 * 1024
# From the first byte of a head to its last. The request limits the wait for the first byte.
HEAD_SECONDS = 10.0
# Chosen: the worst content of one piece, chunks of one byte, takes about 3 ms.
PIECE_BYTES = 16 * 1024
# A workspace may use a tenth of the loop's time, and at most this much in one burst.
SHARE = 0.1
BURST_SECONDS = 0.05
# Cost of a piece besides parsing: the event and waking the reader.
PIECE_SECONDS = 0.00005


class ProtocolBroken(Exception):
    """Raised when the agent sends bytes that no genuine agent sends. The message names the violation."""


class LoopShare:
    """The event loop time of one workspace. A workspace that has used up its share pauses."""

    __slots__ = ("_at", "_left", "_now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at = now()
        self._left = BURST_SECONDS

    def spend(self, seconds: float) -> None:
        self._refill()
        self._left -= seconds

    def pause(self) -> float:
        """Return how long to wait before doing more for this workspace; 0 when it is within its share."""
        self._refill()
        return max(0.0, -self._left / SHARE)

    def _refill(self) -> None:
        now = self._now()
        self._left = min(BURST_SECONDS, self._left + (now - self._at) * SHARE)
        self._at = now


class AgentLimits:
    """The usage of one boot of one workspace, shared by its connections, and whether its agent was cut off."""

    __slots__ = ("__weakref__", "_on_cut_off", "reason", "share")

    def __init__(self, on_cut_off: Callable[[str], None] | None = None) -> None:
        self.share = LoopShare()
        self.reason: str | None = None
        self._on_cut_off = on_cut_off

    def check(self) -> None:
        """Raise if the agent was cut off."""
        if self.reason is not None:
            raise ProtocolBroken(self.reason)

    def cut_off(self, reason: str) -> None:
        """Stop talking to this agent until its workspace is started again."""
        if self.reason is None:
            self.reason = reason
            if self._on_cut_off is not None:
                self._on_cut_off(reason)


class AgentProtocol(ResponseHandler):
    """One connection. The socket is not read while received bytes wait here to be parsed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: AgentLimits) -> None:
        super().__init__(loop)
        self._limits = limits
        self._unparsed = b""
        self._parse_later: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if not data:
            # The library continues where it paused.
            self._parse(b"")
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        if self._parse_later is None:
            self._parse_some()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Called by the library when it has parsed a head."""
        if data[0].code >= 200:
            self._head_bytes = 0
            self._stop_head_timer()
        super().feed_data(data, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        # The library calls this after every read; there is nothing to resume unless reading was paused.
        if self._reading_paused:
            super().resume_reading(resume_parser)
            # A pause of the share may have ended meanwhile and left resuming the socket to this call.
            if self._parse_later is None and (self._unparsed or self._buffer_paused):
                self._parse_soon(0.0)

    @property
    def should_close(self) -> bool:
        """Return whether the connection must not be reused, which includes bytes after a response."""
        return super().should_close or bool(self._unparsed)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        if self._parse_later is not None:
            self._parse_later.cancel()
            self._parse_later = None
        rest, self._unparsed = self._unparsed, b""
        if rest and exc is None and self._payload is not None:
            # The end of a response arrived before the end of the connection. It is at most one read of the socket.
            self._parse(rest)
        super().connection_lost(exc)

    def _parse_some(self) -> None:
        self._parse_later = None
        if self._reading_paused:
            return  # `resume_reading` continues
        pause = self._limits.share.pause()
        if not pause and self._unparsed:
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._count_head(piece)
            if self.transport is None or self.transport.is_closing():
                return
            self._parse(piece)
            pause = self._limits.share.pause()
        if self._unparsed or pause:
            self._parse_soon(pause)
        elif self._buffer_paused:
            self._resume_reading_for_buffer()

    def _parse_soon(self, pause: float) -> None:
        if not self._buffer_paused:
            self._pause_reading_for_buffer()
        self._parse_later = self._loop.call_later(pause, self._parse_some)

    def _parse(self, piece: bytes) -> None:
        began = time.perf_counter()
        super().data_received(piece)
        self._limits.share.spend(time.perf_counter() - began + PIECE_SECONDS)

    def _count_head(self, piece: bytes) -> None:
        """Count the bytes before a final head, and note when the first of them arrived."""
        if self._payload is not None and not self._payload.is_eof():
            return  # a body, which its reader limits
        self._head_bytes += len(piece)
        if self._head_bytes > MAX_HEAD_BYTES:
            reason = f"its agent sent more than {MAX_HEAD_BYTES // 1024} KiB before an answer"
            self._limits.cut_off(reason)
            self._break(reason)
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        # Not cut off permanently: a tunnel to another machine may stall for that long.
        self._head_timer = None
        self._break(f"its agent did not end the head of an answer within {HEAD_SECONDS:g} s")

    def _break(self, reason: str) -> None:
        self._stop_head_timer()
        self._unparsed = b""
        transport = self.transport
        self.set_exception(ProtocolBroken(reason))
        if transport is not None:
            transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class AgentUnixConnector(aiohttp.UnixConnector):
    """Connections to the Unix socket of an agent, within its limits."""

    def __init__(self, path: str, limits: AgentLimits, **options: Any) -> None:
        super().__init__(path, **options)
        # The library has no other hook for the protocol class.
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]


class AgentTcpConnector(aiohttp.TCPConnector):
    """Connections to a replica that relays to an agent. The bytes are the agent's, so its limits apply."""

    def __init__(self, limits: AgentLimits, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]
