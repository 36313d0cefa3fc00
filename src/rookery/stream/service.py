"""The stream service of one replica: admission, the opening of streams, and shutdown.

The API authenticates, asks for a stream, and hands over its socket:

    opened = await streams.open_chat(grant, params)   # raises refusals before any response is sent
    await opened.serve(scope, receive, send)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from uuid import UUID

import asyncpg
from starlette.types import Receive, Scope, Send

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.runtime.clock import Clock
from rookery.store.chats import read_cursors
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.pubsub import Bus
from rookery.store.machine import Machine
from rookery.stream import follow, sse, ws
from rookery.stream.access_monitor import AccessMonitor, Grant, RightsCheck
from rookery.stream.follow import PartSources, StreamContext
from rookery.stream.hint_inbox import Registry
from rookery.stream.poller import Poller
from rookery.stream.query_parameters import StreamParams
from rookery.stream.session import SEND_SECONDS, Session, Sessions, Slot, Source, Transport
from rookery.stream.snapshots import Reader
from rookery.stream.viewer import ViewStats
from rookery.stream.watch import WatchHub
from rookery.telemetry.log import bind, get_logger

log = get_logger("stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamServices:
    """The services that streams need. `on_read` is called when a read cursor moved, to notify the user's other tabs."""

    replica_id: UUID
    machine: Machine
    pool: asyncpg.Pool
    bus: Bus
    sources: PartSources
    check: RightsCheck
    clock: Clock
    rng: Random
    is_deaf: Callable[[], bool] = lambda: False
    on_read: Callable[[UUID, ChatId], None] = lambda user_id, chat_id: None
    send_seconds: float = SEND_SECONDS
    per_user: int = 64
    per_replica: int = 20_000


class Opened:
    """A stream that was admitted and read once, but has no socket yet. Call `serve` or `close`."""

    __slots__ = ("_grant", "_since", "_slot", "_source", "_streams")

    def __init__(self, streams: Streams, slot: Slot, source: Source, *, grant: Grant, since: int) -> None:
        self._streams = streams
        self._slot = slot
        self._source = source
        self._grant = grant
        self._since = since

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept the WebSocket or begin the event stream, and serve the client until the stream ends."""
        try:
            transport: Transport
            if scope["type"] == "websocket":
                transport = await ws.accept(scope, receive, send)
            else:
                transport = await sse.start(receive, send)
        except OSError:
            await self.close()  # the client disconnected before the response
            return
        except BaseException:
            await self.close()
            raise
        await self.run(transport)

    async def run(self, transport: Transport) -> None:
        """Serve the client until either side ends the stream."""
        streams = self._streams
        session = Session(
            transport,
            self._source,
            clock=streams.services.clock,
            stats=streams.sessions.stats,
            send_seconds=streams.services.send_seconds,
        )
        streams.sessions.begin(self._slot, session)
        try:
            try:
                await streams.access.hold(session, self._grant, since=self._since)
            except BaseException:
                await self._source.close()  # the session would have closed it
                raise
            with bind(chat_id=self._grant.chat_id) if self._grant.chat_id else contextlib.nullcontext():
                await session.run()
        finally:
            streams.access.release(session)
            self._slot.release()

    async def close(self) -> None:
        """Release the stream before it ran."""
        self._slot.release()
        await self._source.close()


class Streams:
    """All streams of a replica. `running` runs the background loops that they need."""

    def __init__(self, services: StreamServices) -> None:
        self.services = services
        self.sessions = Sessions(
            clock=services.clock, rng=services.rng, per_user=services.per_user, per_replica=services.per_replica
        )
        self.registry = Registry(services.bus)
        self.reader = Reader(services.machine)
        self.loop_stats = ViewStats()
        self.access = AccessMonitor(services.bus, services.check)
        self.watch = WatchHub(services.pool, services.bus, clock=services.clock)
        self.poller = Poller(
            services.pool,
            self.registry,
            clock=services.clock,
            rng=services.rng,
            recheck=self.access.recheck,
            is_deaf=services.is_deaf,
        )
        self._context = StreamContext(
            replica_id=services.replica_id,
            reader=self.reader,
            registry=self.registry,
            sources=services.sources,
            bus=services.bus,
            clock=services.clock,
            stats=self.loop_stats,
        )

    async def open_chat(self, grant: Grant, params: StreamParams, *, since: int | None = None) -> Opened:
        """Open a stream of one chat.

        The caller has checked that the user may read it; `since` is the value of `access.changes` before the credential
        was first checked. Raises `StreamRefused`, `ChatNotFound`, or an exception of the store when the database does
        not answer.
        """
        assert grant.chat_id is not None, "the stream of a chat needs a chat"
        since = self.access.changes if since is None else since
        slot = self.sessions.admit(grant.user_id)
        try:
            source = await follow.open_chat(
                self._context, ChatId(grant.chat_id), params, mark_read=_Marker(self.services, grant)
            )
        except BaseException:
            slot.release()
            raise
        return Opened(self, slot, source, grant=grant, since=since)

    def open_watch(self, grant: Grant, *, since: int | None = None) -> Opened:
        """Open a stream of all changes in the user's chat list. `since` is as in `open_chat`."""
        since = self.access.changes if since is None else since
        slot = self.sessions.admit(grant.user_id)
        return Opened(self, slot, self.watch.join(grant.user_id), grant=grant, since=since)

    def open_source(self, grant: Grant, source: Source, *, since: int | None = None) -> Opened:
        """Open a stream of another source, with the same admission and monitoring. `since` is as in `open_chat`."""
        since = self.access.changes if since is None else since
        return Opened(self, self.sessions.admit(grant.user_id), source, grant=grant, since=since)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the poller, the access monitor and the watch hub.

        At the end, all clients are asked to reconnect to another replica.
        """
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self.poller.run(), name="stream-poller"),
                group.create_task(self.access.run(), name="stream-access"),
                group.create_task(self.watch.run(), name="stream-watch"),
            ]
            try:
                yield
            finally:
                await self.sessions.goodbye()
                for loop in loops:
                    loop.cancel()
                self.registry.close()
                self.access.close()
                self.watch.close()
                await self.reader.close()


class _Marker:
    """Moves the read cursor of one user. Does nothing for a user who has no cursor in the chat."""

    __slots__ = ("_is_allowed", "_services", "_user_id")

    def __init__(self, services: StreamServices, grant: Grant) -> None:
        self._services = services
        self._user_id = grant.user_id
        self._is_allowed = grant.marks

    async def __call__(self, chat_id: ChatId, message_id: int | None) -> None:
        if not self._is_allowed:
            return
        try:
            async with self._services.pool.acquire() as conn:
                target = None if message_id is None else MessageId(message_id)
                await read_cursors.mark_read(conn, chat_id, user_id=self._user_id, message_id=target)
        except ChatNotFound:
            return
        except DATABASE_ERRORS as error:
            # The next frame or the next visit moves the cursor to the same position.
            log.warning("mark_read_failed", chat_id=chat_id, error=str(error) or type(error).__name__)
            return
        self._services.on_read(self._user_id, chat_id)
