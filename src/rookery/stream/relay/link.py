"""The viewers' end of a link: dials one other replica and mirrors the episodes that have viewers here.

A lost link only pauses previews. Mirrors keep their parts; after the link is restored, each mirror continues after its
last part. A failure of a link never becomes an error of a chat or of a stream.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rookery import __version__
from rookery.live.feeds import EndReason, Feed, Subscription, Take
from rookery.live.part_buffer import EpisodeKey
from rookery.runtime.clock import Clock
from rookery.server.listener import INTERNAL_MAX_BYTES, PING_SECONDS
from rookery.store.db.errors import StoreError
from rookery.store.db.replica_presence import Replica
from rookery.stream.relay import dial_tokens, frames
from rookery.stream.relay.frames import Batch, Drop, End, FromViewer, Hello, Parts, Select
from rookery.telemetry.log import get_logger
from rookery.telemetry.tracing import names, spans
from rookery.telemetry.tracing.spans import Kind

log = get_logger("stream.relay")

FIRST_REDIAL_SECONDS, LAST_REDIAL_SECONDS = 0.1, 5.0
REDIAL_JITTER = 0.2
REFUSED_REDIAL_SECONDS = 30.0
RESELECT_SECONDS = 0.25
OPEN_SECONDS = 5.0

# Looks up a replica. Returns None if it has no row.
FindReplica = Callable[[UUID], Awaitable[Replica | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """The parameters for dialing: the id of this replica, the key that all replicas share, and the address lookup."""

    replica_id: UUID
    host_id: str
    key: bytes
    find: FindReplica
    clock: Clock
    rng: Random
    tls: ssl.SSLContext | None = None
    protocol: int = frames.PROTOCOL


@dataclass(slots=True)
class RelayStats:
    dials: int = 0
    failed: int = 0
    refused: int = 0
    protocol_mismatches: int = 0
    received_bytes: int = 0


class ReplicaUnreachable(Exception):
    """Raised if the replica has no address that can be dialed from here. The message is for the log."""


class NoAddress(ReplicaUnreachable):
    """Raised if the replica runs, but has no address that can be dialed from here. An administrator has to set one."""


class _ProtocolMismatch(Exception):
    """Raised if the other replica uses another relay protocol, so that no link to it is possible."""


class Mirror:
    """A copy of another replica's episode for the viewers here. `sid` names it on the link."""

    __slots__ = ("feed", "generation", "idle_since", "key", "sid")

    def __init__(self, key: EpisodeKey, sid: int, clock: Clock) -> None:
        self.key = key
        self.sid = sid
        self.generation = 0
        self.idle_since: float | None = clock.monotonic()
        self.feed = Feed(clock, lambda: self._left(clock))

    def subscribe(self, from_seq: int, wake: Callable[[], None] | None, take: Take | None) -> Subscription:
        subscription = self.feed.subscribe(from_seq, wake=wake, take=take)
        if self.feed.subscriber_count:
            self.idle_since = None
        return subscription

    def _left(self, clock: Clock) -> None:
        self.idle_since = clock.monotonic()


class Link:
    """The link to one other replica. `run` keeps it connected until canceled, even if the mirrors change."""

    def __init__(self, worker_id: UUID, dialer: Dialer, stats: RelayStats) -> None:
        self.worker_id = worker_id
        self.idle_since: float | None = dialer.clock.monotonic()
        self._dialer = dialer
        self._stats = stats
        self._clock = dialer.clock
        self._mirrors: dict[EpisodeKey, Mirror] = {}
        self._by_sid: dict[int, Mirror] = {}
        self._last_sid = 0
        self._outgoing: list[FromViewer] = []
        self._wake = asyncio.Event()
        self._reselecting: set[asyncio.Task[None]] = set()
        self._connection: ClientConnection | None = None
        self._redial_seconds = FIRST_REDIAL_SECONDS

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def mirror_count(self) -> int:
        return len(self._mirrors)

    def mirror(self, key: EpisodeKey) -> Mirror:
        """Return the mirror of an episode. It is created and selected for its first viewer."""
        found = self._mirrors.get(key)
        if found is not None:
            return found
        self._last_sid += 1
        made = Mirror(key, self._last_sid, self._clock)
        self._mirrors[key] = self._by_sid[made.sid] = made
        self.idle_since = None
        self._select(made)
        return made

    def sweep(self, *, stalled_before: float, idle_before: float) -> None:
        """End the subscriptions of stalled viewers, and drop mirrors without viewers."""
        for mirror in tuple(self._mirrors.values()):
            mirror.feed.evict_stalled(stalled_before)
            if mirror.idle_since is not None and mirror.idle_since <= idle_before:
                self._forget(mirror)
                self._tell(Drop(mirror.sid))

    async def run(self) -> None:
        rng = self._dialer.rng
        try:
            while True:
                try:
                    await self._serve()
                    wait = self._redial_seconds
                except _ProtocolMismatch:
                    self._stats.protocol_mismatches += 1
                    log.warning("relay_protocol_differs", worker_id=self.worker_id)
                    return
                except Exception as error:
                    wait = self._after_failure(error)
                await self._clock.sleep(wait * rng.uniform(1 - REDIAL_JITTER, 1 + REDIAL_JITTER), "relay-redial")
        finally:
            for task in self._reselecting:
                task.cancel()

    def cut(self) -> None:
        """End every subscription because this process stops."""
        for mirror in tuple(self._mirrors.values()):
            self._forget(mirror)
            mirror.feed.cut(EndReason.SHUTDOWN)

    def _after_failure(self, error: Exception) -> float:
        """Log the failure and return the delay before the next dial."""
        self._stats.failed += 1
        if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
            self._stats.refused += 1
            log.error("relay_refused", worker_id=self.worker_id, advice="All replicas must have the same secret_keys.")
            return REFUSED_REDIAL_SECONDS
        if isinstance(error, NoAddress):
            log.warning("relay_has_no_address", worker_id=self.worker_id, advice=str(error))
        elif isinstance(error, OSError | WebSocketException | ReplicaUnreachable | msgspec.DecodeError | StoreError):
            log.info("relay_lost", worker_id=self.worker_id, error=str(error) or type(error).__name__)
        else:
            log.exception("relay_failed", error, worker_id=self.worker_id)
        wait = self._redial_seconds
        self._redial_seconds = min(wait * 2, LAST_REDIAL_SECONDS)
        return wait

    async def _serve(self) -> None:
        """Serve one connection, from the dial to its loss."""
        with spans.span("relay dial", Kind.CLIENT, {names.REPLICA_ID: str(self.worker_id)}):
            connection = await self._dial()
        sender: asyncio.Task[None] | None = None
        try:
            await self._greet(connection)
            self._connection = connection
            self._redial_seconds = FIRST_REDIAL_SECONDS
            self._outgoing = []
            for mirror in self._mirrors.values():
                self._select(mirror)
            sender = asyncio.create_task(self._send_on(connection), name="relay-send")
            async for data in connection:
                if isinstance(data, bytes):
                    self._stats.received_bytes += len(data)
                    self._dispatch(frames.decode_from_owner(data))
        finally:
            self._connection = None
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            # `close` is not used, because it waits for the other side, which may be lost.
            connection.transport.abort()
            await connection.wait_closed()

    async def _dial(self) -> ClientConnection:
        dialer = self._dialer
        replica = await dialer.find(self.worker_id)
        if replica is None:
            raise ReplicaUnreachable("The replica has no row.")
        self._stats.dials += 1
        token = dial_tokens.mint(dialer.key, src=dialer.replica_id, dst=self.worker_id, clock=dialer.clock)
        options: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {token}"},
            "compression": None,
            "max_size": INTERNAL_MAX_BYTES,
            "open_timeout": OPEN_SECONDS,
            "ping_interval": PING_SECONDS,
            "ping_timeout": PING_SECONDS,
            "proxy": None,
        }
        if replica.relay_unix is not None and replica.host_id == dialer.host_id:
            return await unix_connect(replica.relay_unix, f"ws://localhost{frames.PATH}", **options)
        if replica.relay_url is None:
            raise NoAddress("The replica is on another machine and has no relay_url. Set relay_bind there.")
        check_url(replica.relay_url)
        context = dialer.tls if replica.relay_url.startswith("wss:") else None
        return await connect(replica.relay_url.rstrip("/") + frames.PATH, ssl=context, **options)

    async def _greet(self, connection: ClientConnection) -> None:
        dialer = self._dialer
        await connection.send(frames.encode(Hello(dialer.protocol, dialer.replica_id, __version__, reads_batches=True)))
        async with asyncio.timeout(OPEN_SECONDS):
            answer = await connection.recv()
        hello = frames.decode_from_owner(answer) if isinstance(answer, bytes) else None
        if not isinstance(hello, Hello) or hello.protocol != dialer.protocol:
            raise _ProtocolMismatch

    async def _send_on(self, connection: ClientConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            outgoing, self._outgoing = self._outgoing, []
            try:
                for frame in outgoing:
                    await connection.send(frames.encode(frame))
            except ConnectionClosed:
                return  # the reader notices the loss

    def _tell(self, frame: FromViewer) -> None:
        if self._connection is not None:
            self._outgoing.append(frame)
            self._wake.set()

    def _select(self, mirror: Mirror) -> None:
        if mirror.feed.end is not None:
            return
        mirror.generation += 1
        key = mirror.key
        self._tell(
            Select(
                mirror.sid,
                key.chat_id,
                key.history_version,
                key.generation_attempt,
                mirror.feed.last_seq + 1,
                mirror.generation,
            )
        )

    def _dispatch(self, frame: frames.FromOwner) -> None:
        match frame:
            case Batch(items):
                for item in items:
                    self._add(item)
            case Parts():
                self._add(frame)
            case End():
                if (mirror := self._mirror_of(frame)) is not None:
                    self._ended(mirror, frame)

    def _add(self, frame: Parts) -> None:
        mirror = self._mirror_of(frame)
        if mirror is None:
            return
        feed = mirror.feed
        for part in frame.parts:
            if part[0] > feed.last_seq and feed.end is None:
                feed.append(part)

    def _mirror_of(self, frame: Parts | End) -> Mirror | None:
        """Return the mirror that a frame is for; None if it is for an earlier selection."""
        mirror = self._by_sid.get(frame.sid)
        return mirror if mirror is not None and mirror.generation == frame.generation else None

    def _ended(self, mirror: Mirror, frame: End) -> None:
        match frame.reason:
            case "closed" | "truncated":
                mirror.feed.finish(EndReason(frame.reason))
            case "evicted":
                task = asyncio.create_task(self._reselect(mirror), name="relay-reselect")
                self._reselecting.add(task)
                task.add_done_callback(self._reselecting.discard)
            case _:
                # The owner stops. The next owner starts another attempt, and a hint announces it to viewers.
                self._forget(mirror)
                mirror.feed.cut(EndReason.SHUTDOWN)

    async def _reselect(self, mirror: Mirror) -> None:
        await self._clock.sleep(RESELECT_SECONDS, "relay-reselect")
        if self._by_sid.get(mirror.sid) is mirror:
            self._select(mirror)

    def _forget(self, mirror: Mirror) -> None:
        self._by_sid.pop(mirror.sid, None)
        if self._mirrors.get(mirror.key) is mirror:
            del self._mirrors[mirror.key]
        if not self._mirrors:
            self.idle_since = self._clock.monotonic()


def check_url(url: str) -> None:
    """Raise an error for unencrypted addresses of other machines, because parts contain texts of users and models."""
    parts = urlsplit(url)
    if parts.scheme == "wss":
        return
    if parts.scheme != "ws" or not _is_loopback(parts.hostname or ""):
        raise NoAddress(
            f"The relay address of a replica on another machine must begin with wss://, not {parts.scheme}://."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
