"""A proxy before PostgreSQL that loses a request, its answer, or for some time both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from urllib.parse import parse_qs, urlsplit

COMMIT = b"COMMIT\x00"


class Fault(Enum):
    LOSE_REQUEST = "the connection breaks before the server reads the statement"
    LOSE_ANSWER = "the server commits and the connection breaks before it can say so"
    HOLD_ANSWER = "the server commits and its answer stays on the way until it is let go"


class Proxy:
    """Forwards bytes. If `fault` is set, the next `statement` (a COMMIT) and no other is affected."""

    def __init__(self, database_url: str) -> None:
        parts = urlsplit(database_url)
        query = parse_qs(parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._name = f"{parts.username}@", parts.path
        self._handlers: set[asyncio.Task[None]] = set()
        self._port = 0
        self.fault: Fault | None = None
        self.statement = COMMIT
        self.committed = asyncio.Event()
        self.let_go = asyncio.Event()
        self.break_off = False

    @property
    def url(self) -> str:
        user, database = self._name
        return f"postgresql://{user}127.0.0.1:{self._port}{database}?sslmode=disable"

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.let_go.set()
            server.close()
            for handler in self._handlers:
                handler.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.ensure_future(self._serve(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_unix_connection(self._socket)
        door = _Door(self)
        pumps = [
            asyncio.ensure_future(door.requests(client, to_server)),
            asyncio.ensure_future(door.answers(server, to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for writer in (to_client, to_server):
                writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class _Door:
    """One connection. If one direction ends, the connection is closed."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._met: Fault | None = None

    async def requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if self._proxy.statement in data and self._proxy.fault is not None:
                self._met, self._proxy.fault = self._proxy.fault, None
                if self._met is Fault.LOSE_REQUEST:
                    return
            sink.write(data)
            await sink.drain()

    async def answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if self._met is not None:
                self._proxy.committed.set()
                if self._met is Fault.LOSE_ANSWER:
                    return
                await self._proxy.let_go.wait()
                if self._proxy.break_off:
                    return
            sink.write(data)
            await sink.drain()
