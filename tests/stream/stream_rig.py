"""Replicas that only serve streams, with a real database and clients that record everything they receive.

The test delivers hints from the machine to the replicas, and may lose, repeat or reverse them. Parts are added to the
buffers as by a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.domain.chat.chat import Chat, LastError, RetryState
from rookery.domain.chat.messages import ChatId, MessageId, NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.live.part_buffer import Episode, EpisodeKey, PartBuffer, PartLimits
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.shared_tick import SharedTick
from rookery.server.listener import INTERNAL_MAX_BYTES, serving, unix_socket
from rookery.store import machine
from rookery.store.db.hints import Hint
from rookery.store.db.pubsub import Bus
from rookery.store.db.replica_presence import Replica
from rookery.store.machine import Machine
from rookery.stream.access_monitor import Grant, Right
from rookery.stream.query_parameters import StreamParams
from rookery.stream.relay.dial_tokens import TokenCheck
from rookery.stream.relay.hub import RelayHub
from rookery.stream.relay.link import Dialer
from rookery.stream.relay.server import RelayEndpoint
from rookery.stream.service import Streams, StreamServices
from tests.eventually import until
from tests.store.machine.machine_rig import Rig as MachineRig
from tests.store.machine.machine_rig import make_rig
from tests.stream.socket_clients import Sockets

KEY = b"k" * 32
Event = dict[str, Any]


class Wire:
    """Delivers hints from the machine to the buses of all replicas. `is_cut` drops them; `keeps` delays them."""

    def __init__(self) -> None:
        self.buses: list[Bus] = []
        self.is_cut = False
        self.keeps = False
        self.kept: list[Hint] = []

    def publish(self, hints: Iterable[Hint]) -> None:
        if self.is_cut:
            return
        if self.keeps:
            self.kept.extend(hints)
            return
        self.deliver(hints)

    def deliver(self, hints: Iterable[Hint]) -> None:
        for hint in hints:
            for bus in self.buses:
                bus.dispatch(hint)


class MemoryTransport:
    """A client in memory. It reads as fast as it can unless `gate` is closed."""

    def __init__(self, *, heartbeat_seconds: float = 20.0) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.frames: list[list[Event]] = []
        self.sizes: list[int] = []
        self.cursors: list[int | None] = []
        self.closed: tuple[int, str] | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._inbound: asyncio.Queue[bytes | None] = asyncio.Queue()

    def write_now(self, event: bytes) -> int:
        if not self.gate.is_set():
            return 0
        frame = b"[" + event + b"]"
        self._take(frame, None)
        return len(frame)

    async def send(self, data: bytes, cursor: int | None = None) -> None:
        await self.gate.wait()
        self._take(data, cursor)

    def _take(self, data: bytes, cursor: int | None) -> None:
        self.frames.append(msgspec.json.decode(data))
        self.sizes.append(len(data))
        self.cursors.append(cursor)

    async def beat(self, event: bytes) -> None:
        await self.send(b"[" + event + b"]")

    async def receive(self) -> bytes | None:
        return await self._inbound.get()

    async def close(self, code: int, reason: str) -> None:
        await self.gate.wait()
        self.closed = (code, reason)

    def say(self, **frame: object) -> None:
        self._inbound.put_nowait(msgspec.json.encode(frame))

    def say_raw(self, data: bytes) -> None:
        self._inbound.put_nowait(data)

    def leave(self) -> None:
        self._inbound.put_nowait(None)


@dataclass
class Viewer:
    """A connected client."""

    transport: Any  # the client's transport
    task: asyncio.Task[None]
    seen: int = 0

    @property
    def events(self) -> list[Event]:
        return [event for frame in self.transport.frames for event in frame]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    async def until(self, kind: str, count: int = 1) -> Event:
        """Wait for this many events of a type in total. Return the last one."""
        await until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    async def synced(self, snapshot_version: int) -> None:
        await until(lambda: any(event["snapshot_version"] >= snapshot_version for event in self.of("synced")))

    def fresh(self) -> list[Event]:
        """Return the events since the last call."""
        events = self.events[self.seen :]
        self.seen += len(events)
        return events

    def texts(self) -> list[str]:
        return [event["message"]["content"][0]["text"] for event in self.of("message")]

    def preview(self) -> str:
        """Return the text of the parts since the last reset."""
        said = ""
        for event in self.events:
            if event["type"] == "preview_reset":
                said = ""
            elif event["type"] == "message_part":
                said += event["part"].get("text", "")
        return said

    async def close(self) -> None:
        self.transport.leave()
        await self.task

    async def ended(self) -> tuple[int, str]:
        async with asyncio.timeout(10):
            await self.task
        assert self.transport.closed is not None
        code, reason = self.transport.closed
        return code, reason


@dataclass(kw_only=True)
class Site:
    """The streams of one replica."""

    id: UUID
    bus: Bus
    buffer: PartBuffer
    hub: RelayHub
    endpoint: RelayEndpoint
    streams: Streams
    rights: dict[str, Right] = field(default_factory=dict)
    checks: list[Sequence[Grant]] = field(default_factory=list)
    viewers: list[Viewer] = field(default_factory=list)
    sockets: Sockets | None = None

    async def check(self, grants: Sequence[Grant]) -> Sequence[Right]:
        self.checks.append(grants)
        return [self.rights.get(grant.credential, Right.KEPT) for grant in grants]

    async def view(
        self, chat_id: ChatId, *, user: UUID | None = None, transport: MemoryTransport | None = None, **params: Any
    ) -> Viewer:
        """Connect a client to a chat: in memory, or over the sockets that were opened."""
        user = user or uuid4()
        if self.sockets is not None and transport is None:
            end = await self.sockets.connect(chat_id, params, user=user)
            viewer = Viewer(end, asyncio.ensure_future(end.run()))
            self.viewers.append(viewer)
            return viewer
        grant = Grant(user_id=user, credential=str(user), chat_id=chat_id, root_id=chat_id)
        opened = await self.streams.open_chat(grant, StreamParams(**params))
        return self._run(opened.run, transport)

    def watch(self, user: UUID, *, transport: MemoryTransport | None = None) -> Viewer:
        opened = self.streams.open_watch(Grant(user_id=user, credential=str(user)))
        return self._run(opened.run, transport)

    def _run(self, run: Callable[[MemoryTransport], Awaitable[None]], transport: MemoryTransport | None) -> Viewer:
        transport = transport or MemoryTransport()
        viewer = Viewer(transport, asyncio.ensure_future(run(transport)))
        self.viewers.append(viewer)
        return viewer

    def episode(self, chat: Chat) -> Episode:
        return self.buffer.create_episode(key_of(chat))


@dataclass(kw_only=True)
class Rig:
    """A deployment of one or more replicas over one database."""

    chats: MachineRig
    pool: asyncpg.Pool
    wire: Wire
    sites: list[Site] = field(default_factory=list)
    addresses: dict[UUID, Replica] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        """The replica of the clients."""
        return self.sites[0]

    @property
    def owner(self) -> Site:
        """The replica that runs chats: not that of the clients, if there are several."""
        return self.sites[min(1, len(self.sites) - 1)]

    # Acting on chats

    async def chat(self, *said: str) -> ChatId:
        """Create a waiting chat with these messages, alternately of user and assistant."""
        roles = (Role.USER, Role.ASSISTANT)
        messages = [NewMessage(role=roles[i % 2], content=(Text(words),)) for i, words in enumerate(said)]
        chat_id = await self.chats.create(*messages[:1])
        if messages[1:]:
            await self.chats.commit(chat_id, *messages[1:])
        await self.chats.run(chat_id, machine.finish_turn)
        return chat_id

    async def running(self, *, worker: UUID, said: str = "hello") -> tuple[ChatId, Chat]:
        """Create a chat in its first attempt, owned by a replica."""
        chat_id = await self.chats.create(NewMessage(role=Role.USER, content=(Text(said),)))
        return chat_id, await self.attempt(chat_id, worker=worker)

    async def attempt(self, chat_id: ChatId, *, worker: UUID) -> Chat:
        chat = await self.load(chat_id)
        if chat.worker_id != worker:
            await self.chats.run(chat_id, machine.acquire, worker_id=worker, runner_id=uuid4())
        await self.chats.run(chat_id, machine.record_generation_attempt)
        return await self.load(chat_id)

    async def load(self, chat_id: ChatId) -> Chat:
        return await self.chats.load(chat_id)

    async def fail(self, chat_id: ChatId, message: str = "It broke.") -> None:
        await self.chats.run(chat_id, machine.finish_error, LastError(message=message, retryable=True))

    async def retry_later(self, chat_id: ChatId) -> None:
        now = SystemClock().now()
        state = RetryState(attempt=1, delay_ms=1000, error="overloaded", retrying_at=now, kind="overloaded")
        await self.chats.run(chat_id, machine.record_retry_state, state)

    async def last_id(self, chat_id: ChatId) -> MessageId:
        return await self.chats.last_id(chat_id)


def key_of(chat: Chat) -> EpisodeKey:
    return EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)


def say(episode: Episode, *pieces: str) -> None:
    """Add live parts, each with its own number."""
    for piece in pieces:
        episode.add_part(Role.ASSISTANT, Text(piece))
        episode.flush()


@asynccontextmanager
async def internal_unix(application: Any, path: Path) -> AsyncIterator[None]:
    """Serve other replicas of this machine on a unix socket, as `stream.relay.service` does."""
    with unix_socket(path) as listening:
        async with serving(application, listening, ws_max_size=INTERNAL_MAX_BYTES):
            yield


@asynccontextmanager
async def open_rig(
    database_url: str,
    *,
    sites: int = 1,
    clock: Clock | None = None,
    keys: Sequence[bytes] = (),
    sockets: Path | None = None,
    limits: PartLimits | None = None,
    **options: Any,
) -> AsyncIterator[Rig]:
    """Start the replicas. `sockets` is the directory of the relay sockets; without it there is no relay."""
    async with AsyncExitStack() as stack:
        chats = await stack.enter_async_context(make_rig(database_url))
        wire = Wire()
        chats.machine = Machine(chats.pool, wire)
        rig = Rig(chats=chats, pool=chats.pool, wire=wire)
        for index in range(sites):
            key = keys[index] if index < len(keys) else KEY
            await _add_site(
                rig, stack, clock or SystemClock(), key=key, sockets=sockets, limits=limits, options=options
            )
        yield rig


async def _add_site(
    rig: Rig,
    stack: AsyncExitStack,
    clock: Clock,
    *,
    key: bytes,
    sockets: Path | None,
    limits: PartLimits | None,
    options: dict[str, Any],
) -> None:
    replica_id = uuid4()
    path = None if sockets is None else sockets / f"{len(rig.sites)}.sock"
    address = Replica(
        id=replica_id,
        host_id="here",
        hostname="here",
        pid=1,
        version="0",
        schema_version=1,
        relay_unix=None if path is None else str(path),
    )
    await rig.chats.sql(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version) VALUES ($1, 'h', 'h', 1, '0', 1)",
        replica_id,
    )
    rig.addresses[replica_id] = address

    async def find(worker_id: UUID) -> Replica | None:
        return rig.addresses.get(worker_id)

    async def is_live(worker_id: UUID) -> bool:
        return worker_id in rig.addresses

    bus = Bus()
    buffer = PartBuffer(clock, limits=limits, tick=SharedTick(0.001))
    dialer = Dialer(replica_id=replica_id, host_id="here", key=key, find=find, clock=clock, rng=Random(1))
    hub = RelayHub(replica_id, buffer, dialer if sockets is not None else None)
    endpoint = RelayEndpoint(replica_id, buffer, check=TokenCheck(key, me=replica_id, clock=clock, is_live=is_live))
    site: Site

    async def check(grants: Sequence[Grant]) -> Sequence[Right]:
        return await site.check(grants)

    defaults: dict[str, Any] = {"check": check}
    streams = Streams(
        StreamServices(
            replica_id=replica_id,
            machine=rig.chats.machine,
            pool=rig.pool,
            bus=bus,
            sources=hub,
            clock=clock,
            rng=Random(1),
            **{**defaults, **options},
        )
    )
    site = Site(id=replica_id, bus=bus, buffer=buffer, hub=hub, endpoint=endpoint, streams=streams)
    rig.sites.append(site)
    rig.wire.buses.append(bus)
    if path is not None:
        await stack.enter_async_context(internal_unix(endpoint, path))
    stack.push_async_callback(hub.close)
    stack.callback(buffer.close)
    await stack.enter_async_context(streams.running())
    stack.push_async_callback(leave, site)


async def leave(site: Site) -> None:
    """Disconnect all clients."""
    for viewer in site.viewers:
        viewer.transport.gate.set()
        viewer.transport.leave()
    await asyncio.gather(*(viewer.task for viewer in site.viewers))
