"""The aiohttp protocol for connections to workspace agents, with limits on the bytes and the time of their parsing.

aiohttp parses all received bytes at once, and accepts any number of interim responses. An agent that sends `100
Continue` without end, or its body in chunks of one byte, would block the event loop. This protocol parses bytes in
small pieces, limits the event loop time of each workspace, and cuts off agents that break the protocol.
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

# Chosen: the head of an agent's response has a few hundred bytes.
MAX_HEAD_BYTES = 64 * 1024
# The time limit from the first byte of a head to its last. The request limits the wait for the first byte.
HEAD_SECONDS = 10.0
# Chosen: in the worst case, chunks of one byte, a piece takes about 3 ms.
PIECE_BYTES = 16 * 1024
# A workspace may use a tenth of the event loop's time, and at most BURST_SECONDS at once.
SHARE = 0.1
BURST_SECONDS = 0.05
# The cost of a piece besides its parsing.
PIECE_SECONDS = 0.00005


class ProtocolBroken(Exception):
    """Raised when an agent breaks the protocol. The message is the reason."""


class LoopShare:
    """The share of event loop time of one workspace. A workspace above its share has to pause."""

    __slots__ = ("_at", "_left", "_now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at = now()
        self._left = BURST_SECONDS

    def spend(self, seconds: float) -> None:
        self._refill()
        self._left -= seconds

    def pause(self) -> float:
        """Return the time to wait before more bytes of this workspace are parsed; 0 if it is within its share."""
        self._refill()
        return max(0.0, -self._left / SHARE)

    def _refill(self) -> None:
        now = self._now()
        self._left = min(BURST_SECONDS, self._left + (now - self._at) * SHARE)
        self._at = now


class AgentLimits:
    """The limits of one boot, shared by its connections. `reason` is set when its agent was cut off."""

    __slots__ = ("__weakref__", "_on_cut_off", "reason", "share")

    def __init__(self, on_cut_off: Callable[[str], None] | None = None) -> None:
        self.share = LoopShare()
        self.reason: str | None = None
        self._on_cut_off = on_cut_off

    def check(self) -> None:
        """Raise `ProtocolBroken` if the agent was cut off."""
        if self.reason is not None:
            raise ProtocolBroken(self.reason)

    def cut_off(self, reason: str) -> None:
        """Cut off this agent: no further requests are sent until its workspace is started again."""
        if self.reason is None:
            self.reason = reason
            if self._on_cut_off is not None:
                self._on_cut_off(reason)


class AgentProtocol(ResponseHandler):
    """One connection. The socket is not read while received bytes wait for their parsing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: AgentLimits) -> None:
        super().__init__(loop)
        self._limits = limits
        self._unparsed = b""
        self._parse_later: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if not data:
            # The library resumes its parser with empty data.
            self._parse(b"")
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        if self._parse_later is None:
            self._parse_some()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Reset the limits of a head. The library calls this when it has parsed one."""
        if data[0].code >= 200:
            self._head_bytes = 0
            self._stop_head_timer()
        super().feed_data(data, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        # The library calls this after every read, even if reading was not paused.
        if self._reading_paused:
            super().resume_reading(resume_parser)
            # The pause of the share may have ended meanwhile, so parsing must be scheduled here.
            if self._parse_later is None and (self._unparsed or self._buffer_paused):
                self._parse_soon(0.0)

    @property
    def should_close(self) -> bool:
        """Return whether the connection must not be reused, for example because of bytes after a response."""
        return super().should_close or bool(self._unparsed)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        if self._parse_later is not None:
            self._parse_later.cancel()
            self._parse_later = None
        rest, self._unparsed = self._unparsed, b""
        if rest and exc is None and self._payload is not None:
            # The end of a response arrived together with the end of the connection.
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
        """Count the bytes that arrive outside a response body, and cut the agent off above the limit.

        The first bytes start the timer for the head.
        """
        if self._payload is not None and not self._payload.is_eof():
            return  # bytes of a body, which its reader limits
        self._head_bytes += len(piece)
        if self._head_bytes > MAX_HEAD_BYTES:
            reason = f"its agent sent more than {MAX_HEAD_BYTES // 1024} KiB before a response"
            self._limits.cut_off(reason)
            self._break(reason)
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        # The agent is not cut off for this, because a tunnel to another machine may stall for that long.
        self._head_timer = None
        self._break(f"its agent did not complete the head of a response within {HEAD_SECONDS:g} s")

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
    """Connections to the Unix socket of an agent, with the limits of `AgentProtocol`."""

    def __init__(self, path: str, limits: AgentLimits, **options: Any) -> None:
        super().__init__(path, **options)
        # The library has no other way to set the protocol class.
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]


class AgentTcpConnector(aiohttp.TCPConnector):
    """Connections to a replica that relays to an agent, with the limits of `AgentProtocol`."""

    def __init__(self, limits: AgentLimits, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]
