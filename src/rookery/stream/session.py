"""One connection: sends the frames of its source and heartbeats, receives frames of the client, and closes.

A transport only has to send bytes, so this module needs no socket. The writer pulls frames from the source. While a
slow client delays a send, no frame is pulled, and the pending data waits in bounded buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol
from uuid import UUID

import msgspec

from rookery.runtime.clock import Clock
from rookery.runtime.waits import WithTimeout
from rookery.stream import events
from rookery.stream.errors import CloseCode, ReplicaDraining, StreamEnded, TooManyStreams
from rookery.stream.events import Goodbye, Heartbeat, Pong
from rookery.stream.outbox import Frame
from rookery.telemetry.log import get_logger

log = get_logger("stream.session")

SEND_SECONDS = 10.0
CLOSE_SECONDS = 1.0
MAX_INBOUND_BYTES = 64 * 1024
MAX_INBOUND_FRAMES, INBOUND_WINDOW_SECONDS = 20, 10.0
STREAMS_PER_USER, STREAMS_PER_REPLICA = 64, 20_000
GOODBYE_SPREAD_SECONDS = 2.0


class Transport(Protocol):
    """A connection to one client. `send` waits while the client is slow, and raises `OSError` if the client has
    disconnected.

    `cursor` marks the end of a synchronization. `beat` sends a heartbeat in the form of the transport. `receive`
    returns a frame of the client, or None after it has disconnected. `write_now` sends a frame with one event without
    waiting, and returns its size; 0 if nothing was sent, because the client is slow.
    """

    @property
    def heartbeat_seconds(self) -> float: ...

    def write_now(self, event: bytes) -> int: ...

    async def send(self, data: bytes, cursor: int | None = None) -> None: ...

    async def beat(self, event: bytes) -> None: ...

    async def receive(self) -> bytes | None: ...

    async def close(self, code: int, reason: str) -> None: ...


class Inbound(msgspec.Struct, frozen=True):
    """A frame of a client. Unknown types and malformed frames are ignored."""

    type: str = ""
    message_id: int | None = None
    id: Any = None


# Sends an event in a frame of its own, without waiting. Returns False if that is not possible now.
SendNow = Callable[[bytes], bool]


class Source(Protocol):
    """The source of a session. `take` returns the next frame, None if there is none now, or raises `StreamEnded`.

    When it has a new frame, it calls the `wake` function that it was attached with. If it has nothing else, it can send
    an event with `send_now`, which saves waking a task.
    """

    def attach(self, wake: Callable[[], None], send_now: SendNow | None = None) -> None: ...

    def take(self) -> Frame | None: ...

    async def handle(self, frame: Inbound) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class SessionStats:
    """Counters of sessions. `slow` counts clients that were disconnected because a send took too long."""

    sent_frames: int = 0
    sent_bytes: int = 0
    slow: int = 0
    closed: Counter[int] = field(default_factory=Counter)


_inbound = msgspec.json.Decoder(Inbound)


class Session:
    """Runs one connection until either side ends it."""

    __slots__ = (
        "_beats",
        "_clock",
        "_end",
        "_heard_at",
        "_is_gone",
        "_is_resting",
        "_last",
        "_replies",
        "_send_seconds",
        "_sent_at",
        "_source",
        "_stats",
        "_transport",
        "_wake",
    )

    def __init__(
        self,
        transport: Transport,
        source: Source,
        *,
        clock: Clock,
        stats: SessionStats,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self._transport = transport
        self._source = source
        self._clock = clock
        self._stats = stats
        self._send_seconds = send_seconds
        self._wake = asyncio.Event()
        self._sent_at = clock.monotonic()
        self._beats = False
        self._is_gone = False
        # True while the writer waits to be woken, so that everything before was sent.
        self._is_resting = False
        self._end: StreamEnded | None = None
        self._last: bytes | None = None
        self._replies: list[bytes] = []
        self._heard_at: deque[float] | None = None

    def end(self, code: CloseCode, reason: str, *, last: bytes | None = None) -> None:
        """End the connection soon, with an optional last event. Only the first call has an effect."""
        if self._end is None:
            self._end = StreamEnded(code, reason)
            self._last = last
            self._wake.set()

    async def run(self) -> None:
        """Serve the connection. Return when it has ended and its source is closed. The caller closes the socket."""
        self._source.attach(self._wake.set, self._send_now)
        helpers = [
            asyncio.create_task(self._receive(), name="stream-receive"),
            asyncio.create_task(self._request_heartbeats(), name="stream-tend"),
        ]
        try:
            await self._write()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._source.close()

    async def _write(self) -> None:
        try:
            await self._write_frames()
        except StreamEnded as end:
            await self._close(end)
        except TimeoutError:
            self._stats.slow += 1
            await self._close(StreamEnded(CloseCode.TOO_SLOW, "The client reads too slowly."))
        except OSError:
            self._is_gone = True
        except Exception as error:
            log.exception("stream_failed", error)
            await self._close(StreamEnded(CloseCode.INTERNAL, "The server failed. Connect again."))

    async def _write_frames(self) -> None:
        source, wake = self._source, self._wake
        while not self._is_gone:
            wake.clear()
            if self._end is not None:
                await self._send_last()
                raise self._end
            if self._replies:
                replies, self._replies = self._replies, []
                await self._send(Frame(events.frame(replies)))
            elif (frame := source.take()) is not None:
                await self._send(frame)
                if frame.is_all:
                    await self._rest()
            elif self._beats:
                await self._beat()
            else:
                await self._rest()

    async def _rest(self) -> None:
        self._is_resting = True
        try:
            await self._wake.wait()
        finally:
            self._is_resting = False

    def _send_now(self, event: bytes) -> bool:
        """Implement `SendNow`. The caller is not a task of this session, so no error of it may get there."""
        if not self._is_resting or self._wake.is_set():
            return False
        try:
            size = self._transport.write_now(event)
        except Exception:
            return False  # the writer finds the same error
        if not size:
            return False
        self._beats = False
        self._count(size)
        return True

    async def _send(self, frame: Frame) -> None:
        data = frame.data
        self._beats = False
        # A timer is set only if the client is slow, because this code runs for every token.
        await WithTimeout(self._send_seconds, self._transport.send(data, frame.cursor).__await__())
        self._count(len(data))

    def _count(self, size: int) -> None:
        self._sent_at = self._clock.monotonic()
        self._stats.sent_frames += 1
        self._stats.sent_bytes += size

    async def _beat(self) -> None:
        self._beats = False
        event = events.encode(Heartbeat(self._clock.now()))
        await WithTimeout(self._send_seconds, self._transport.beat(event).__await__())
        self._sent_at = self._clock.monotonic()

    async def _send_last(self) -> None:
        if self._last is not None:
            await self._send(Frame(events.frame([self._last])))

    async def _close(self, end: StreamEnded) -> None:
        self._stats.closed[int(end.code)] += 1
        # A client that stopped reading cannot be notified. The kernel's timeout frees its socket.
        with contextlib.suppress(OSError, TimeoutError):
            await WithTimeout(CLOSE_SECONDS, self._transport.close(int(end.code), end.reason).__await__())

    async def _request_heartbeats(self) -> None:
        """Request a heartbeat when nothing was sent for a while."""
        beat = self._transport.heartbeat_seconds
        while True:
            due = self._sent_at + beat
            now = self._clock.monotonic()
            if due <= now:
                self._beats = True
                self._wake.set()
                due = now + beat
            await self._clock.sleep(due - now, "stream-heartbeat")

    async def _receive(self) -> None:
        """Receive frames without a pause.

        Until a frame is received, the server reads nothing more from the connection, not even pongs.
        """
        try:
            while (data := await self._transport.receive()) is not None:
                self._check_inbound(data)
                await self._handle(data)
        except StreamEnded as end:
            self.end(end.code, end.reason)
            return
        except OSError:
            pass
        except Exception as error:
            log.exception("stream_receive_failed", error)
            self.end(CloseCode.INTERNAL, "The server failed. Connect again.")
            return
        self._is_gone = True
        self._wake.set()

    def _check_inbound(self, data: bytes) -> None:
        if len(data) > MAX_INBOUND_BYTES:
            raise StreamEnded(CloseCode.TOO_LARGE, f"A frame may have at most {MAX_INBOUND_BYTES} bytes.")
        now = self._clock.monotonic()
        if self._heard_at is None:
            self._heard_at = deque(maxlen=MAX_INBOUND_FRAMES)
        is_full = len(self._heard_at) == MAX_INBOUND_FRAMES
        if is_full and now - self._heard_at[0] < INBOUND_WINDOW_SECONDS:
            raise StreamEnded(
                CloseCode.ABUSE, f"At most {MAX_INBOUND_FRAMES} frames in {INBOUND_WINDOW_SECONDS:g} s are accepted."
            )
        self._heard_at.append(now)

    async def _handle(self, data: bytes) -> None:
        try:
            frame = _inbound.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if frame.type == "ping":
            self._replies.append(events.encode(Pong(frame.id)))
            self._wake.set()
        else:
            await self._source.handle(frame)


class Slot:
    """One of the limited places for open streams.

    It is taken before the stream's first read and released when the stream ends.
    """

    __slots__ = ("_sessions", "session", "user_id")

    def __init__(self, sessions: Sessions, user_id: UUID) -> None:
        self._sessions = sessions
        self.user_id = user_id
        self.session: Session | None = None

    def release(self) -> None:
        """Release the slot. May be called more than once."""
        self._sessions._release(self)


class Sessions:
    """All open streams of this process: their admission and their shutdown."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: Random,
        per_user: int = STREAMS_PER_USER,
        per_replica: int = STREAMS_PER_REPLICA,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._per_user = per_user
        self._per_replica = per_replica
        self._slots: dict[Slot, None] = {}
        self._by_user: Counter[UUID] = Counter()
        self._is_draining = False
        self._has_said_goodbye = False
        self._empty = asyncio.Event()
        self._empty.set()
        self.stats = SessionStats()

    def __len__(self) -> int:
        return len(self._slots)

    def admit(self, user_id: UUID) -> Slot:
        """Take a slot for a new stream, or refuse it."""
        if self._is_draining:
            raise ReplicaDraining
        if len(self._slots) >= self._per_replica:
            raise TooManyStreams(self._per_replica)
        if self._by_user[user_id] >= self._per_user:
            raise TooManyStreams(self._per_user)
        slot = Slot(self, user_id)
        self._slots[slot] = None
        self._by_user[user_id] += 1
        self._empty.clear()
        return slot

    def begin(self, slot: Slot, session: Session) -> None:
        """Register the running stream of this slot.

        A stream that was admitted just before the shutdown is closed like the others.
        """
        slot.session = session
        if self._has_said_goodbye:
            self._send_goodbye(session)

    def stop_admitting(self) -> None:
        """Refuse new streams from now on; open ones stay."""
        self._is_draining = True

    async def goodbye(self) -> None:
        """Ask every client to reconnect to another replica.

        The requests are spread over two seconds to limit the load.
        """
        self.stop_admitting()
        self._has_said_goodbye = True
        slots = self._shuffled()
        for index, slot in enumerate(slots):
            if slot.session is not None:
                self._send_goodbye(slot.session)
            if index % 16 == 15:
                await self._clock.sleep(GOODBYE_SPREAD_SECONDS * 16 / len(slots), "stream-goodbye")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SPREAD_SECONDS):
                await self._empty.wait()

    def _shuffled(self) -> list[Slot]:
        slots = list(self._slots)
        self._rng.shuffle(slots)
        return slots

    def _send_goodbye(self, session: Session) -> None:
        retry_after_ms = self._rng.randrange(2001)
        session.end(CloseCode.SHUTDOWN, "This server is about to stop.", last=events.encode(Goodbye(retry_after_ms)))

    def _release(self, slot: Slot) -> None:
        if self._slots.pop(slot, slot) is slot:
            return
        self._by_user[slot.user_id] -= 1
        if not self._by_user[slot.user_id]:
            del self._by_user[slot.user_id]
        if not self._slots:
            self._empty.set()
