"""The connection to a workspace agent, which may be hostile: how much it may send, and how much time that may take.

The HTTP library parses whatever a socket had in one go and waits for a final head however many interim ones come. An
agent that answers `100 Continue` without end, or sends its body in chunks of one byte, would keep the event loop busy
for everybody. Here bytes are parsed in small pieces, each workspace has a share of the loop's time, and an agent that
breaks the protocol is cut off.
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

# Chosen: an agent's head has a few hundred bytes; this is more than the library takes as one head.
MAX_HEAD_BYTES = 64 * 1024
# From the first byte of a head to its last. Waiting for the first byte is up to the request.
HEAD_SECONDS = 10.0
# Chosen: the worst that can be in one piece, chunks of one byte, takes about 3 ms.
PIECE_BYTES = 16 * 1024
# A workspace may take a tenth of the loop's time, and as much as this at once.
SHARE = 0.1
BURST_SECONDS = 0.05
# What a piece costs besides its parsing: the event, and waking up whoever reads.
PIECE_SECONDS = 0.00005


class ProtocolBroken(Exception):
    """The agent sent something that no agent of ours sends. The message says what."""


class LoopShare:
    """The time that one workspace may take of the event loop. Who has used it up has to pause."""

    __slots__ = ("_at", "_left", "_now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at = now()
        self._left = BURST_SECONDS

    def spend(self, seconds: float) -> None:
        self._refill()
        self._left -= seconds

    def pause(self) -> float:
        """How long to wait before more is done for this workspace; 0 when nothing is owed."""
        self._refill()
        return max(0.0, -self._left / SHARE)

    def _refill(self) -> None:
        now = self._now()
        self._left = min(BURST_SECONDS, self._left + (now - self._at) * SHARE)
        self._at = now


class AgentLimits:
    """What one start of one workspace has used, and whether its agent was cut off. All its connections share it."""

    __slots__ = ("__weakref__", "_on_cut_off", "reason", "share")

    def __init__(self, on_cut_off: Callable[[str], None] | None = None) -> None:
        self.share = LoopShare()
        self.reason: str | None = None
        self._on_cut_off = on_cut_off

    def check(self) -> None:
        """Refuse to talk to an agent that was cut off."""
        if self.reason is not None:
            raise ProtocolBroken(self.reason)

    def cut_off(self, reason: str) -> None:
        """Talk to this agent no more, until its workspace is started again."""
        if self.reason is None:
            self.reason = reason
            if self._on_cut_off is not None:
                self._on_cut_off(reason)


class AgentProtocol(ResponseHandler):
    """One connection. Bytes that are not parsed yet wait here, and the socket is not read while there are any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: AgentLimits) -> None:
        super().__init__(loop)
        self._limits = limits
        self._unparsed = b""
        self._parse_later: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if not data:
            # The library goes on where it paused.
            self._parse(b"")
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        if self._parse_later is None:
            self._parse_some()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """The library has parsed a head."""
        if data[0].code >= 200:
            self._head_bytes = 0
            self._stop_head_timer()
        super().feed_data(data, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        # The library says so after every read. Whoever was not paused has nothing to take up again.
        if self._reading_paused:
            super().resume_reading(resume_parser)
            # A pause of the share may have ended meanwhile, and left the socket to whoever resumes.
            if self._parse_later is None and (self._unparsed or self._buffer_paused):
                self._parse_soon(0.0)

    @property
    def should_close(self) -> bool:
        """Whether the connection must not be used again: also when bytes follow an answer."""
        return super().should_close or bool(self._unparsed)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        if self._parse_later is not None:
            self._parse_later.cancel()
            self._parse_later = None
        rest, self._unparsed = self._unparsed, b""
        if rest and exc is None and self._payload is not None:
            # The end of an answer arrived before the end of the connection. It is at most one read of the socket.
            self._parse(rest)
        super().connection_lost(exc)

    def _parse_some(self) -> None:
        self._parse_later = None
        if self._reading_paused:
            return  # `resume_reading` goes on
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
        """Count what comes before a final head, and when it began to come."""
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
        # Not cut off for good: a tunnel to another machine may stall for that long.
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
    """Connections to the socket of an agent, within its limits."""

    def __init__(self, path: str, limits: AgentLimits, **options: Any) -> None:
        super().__init__(path, **options)
        # The library has no other place for it.
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]


class AgentTcpConnector(aiohttp.TCPConnector):
    """Connections to a replica that passes requests on to an agent. What comes through is the agent's."""

    def __init__(self, limits: AgentLimits, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(AgentProtocol, asyncio.get_running_loop(), limits)  # type: ignore[assignment]
