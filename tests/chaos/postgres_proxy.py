"""A proxy between a replica and PostgreSQL that cuts connections, hangs, loses commits, and garbles notifications.

A message of PostgreSQL is a byte, a length and a body. On the listening connection, notifications (`A`) are dropped,
repeated or delayed; all other messages pass unchanged.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from random import Random
from urllib.parse import parse_qs, urlsplit

COMMIT = b"COMMIT\x00"
LISTENING = b":listen\x00"  # the suffix of the application name of a listening connection
NOTIFICATION = ord("A")
HELD_SECONDS = 0.3


class Commit(Enum):
    """The fault of a commit."""

    LOST = "the server never hears of it"
    DONE = "it happens, and nobody hears of it"


class PostgresProxy:
    """The proxy of one replica. With `rng=None`, notifications pass unchanged."""

    def __init__(self, database_url: Callable[[], str], rng: Random | None = None) -> None:
        self._database_url = database_url
        self._rng = rng
        self._port = 0
        self._visits: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._on_commit: tuple[Commit, Callable[[], None]] | None = None
        self.garbled = 0

    @property
    def url(self) -> str:
        parts = urlsplit(self._database_url())
        return f"postgresql://{parts.username}@127.0.0.1:{self._port}{parts.path}?sslmode=disable"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[PostgresProxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._visits, return_exceptions=True)

    def cut(self, share: float = 1.0, rng: Random | None = None) -> None:
        """Break all connections, or about this share of them."""
        for visit in tuple(self._visits):
            if rng is None or rng.random() < share:
                visit.cancel()

    def shut(self) -> None:
        """Block all connections silently until `open`."""
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def meet_commit(self, fate: Commit, then: Callable[[], None]) -> None:
        """Inject this fault into the next commit, whose connection breaks. `then` is called at that moment."""
        self._on_commit = (fate, then)

    def forget_commit(self) -> bool:
        """Cancel the fault. Return whether it was still pending."""
        waiting, self._on_commit = self._on_commit is not None, None
        return waiting

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.ensure_future(self._serve(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                first = await client.read(65536)
                server, to_server = await asyncio.open_unix_connection(_socket_of(self._database_url()))
                try:
                    to_server.write(first)
                    await self._pass_on(client, server, to_client=to_client, to_server=to_server, hello=first)
                finally:
                    to_server.transport.abort()
        finally:
            to_client.transport.abort()

    async def _pass_on(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamReader,
        *,
        to_client: asyncio.StreamWriter,
        to_server: asyncio.StreamWriter,
        hello: bytes,
    ) -> None:
        garbler = Garbler(self._rng) if self._rng is not None and LISTENING in hello else None
        pumps = [
            asyncio.ensure_future(self._requests(client, to_server)),
            asyncio.ensure_future(self._answers(server, to_client, garbler)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.garbled += garbler.garbled if garbler is not None else 0

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._open.wait()
            if self._on_commit is not None and COMMIT in data:
                (fate, then), self._on_commit = self._on_commit, None
                if fate is Commit.DONE:
                    sink.write(data)
                    await sink.drain()
                then()
                return
            sink.write(data)
            await sink.drain()

    async def _answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, garbler: Garbler | None) -> None:
        while data := await source.read(65536):
            await self._open.wait()
            if garbler is None:
                sink.write(data)
            else:
                for piece in garbler.feed(data):
                    sink.write(piece)
                if garbler.has_held:
                    # Limited, because the last notification would otherwise never arrive.
                    asyncio.get_running_loop().call_later(HELD_SECONDS, _release, garbler, sink)
            await sink.drain()


class Garbler:
    """Reads the messages of the server and returns them with garbled notifications."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._buffer = bytearray()
        self._held: list[bytes] = []
        self.garbled = 0

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while len(self._buffer) >= 5:
            end = 1 + struct.unpack_from("!I", self._buffer, 1)[0]
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield from self._garble(message) if message[0] == NOTIFICATION else (message,)

    def take_held(self) -> list[bytes]:
        """Return the delayed notifications. Call it only between two messages."""
        held, self._held = self._held, []
        return held

    def _garble(self, message: bytes) -> Iterator[bytes]:
        draw = self._rng.random()
        self.garbled += draw < 0.45
        if draw < 0.15:
            return  # dropped
        if draw < 0.30:
            self._held.append(message)
            return
        yield message
        if draw < 0.45:
            yield message
            yield from reversed(self.take_held())


def _release(garbler: Garbler, sink: asyncio.StreamWriter) -> None:
    if not sink.is_closing():
        for message in garbler.take_held():
            sink.write(message)


def _socket_of(database_url: str) -> str:
    query = parse_qs(urlsplit(database_url).query)
    return f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
