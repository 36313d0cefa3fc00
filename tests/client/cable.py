"""A cable between a client and a server that can be cut, and one that lets nothing through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Cable:
    """`cut` breaks every connection; while `is_down`, new ones break at once; while `hangs`, no byte gets through."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._visits: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.url = ""
        self.is_down = False
        self.connections = 0
        self.requests = bytearray()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Cable]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._visits, return_exceptions=True)

    @property
    def is_used(self) -> bool:
        return bool(self._visits)

    def cut(self) -> None:
        for visit in self._visits:
            visit.cancel()

    def hang(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.is_down:
            writer.transport.abort()
            return
        visit = asyncio.ensure_future(self._carry(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection(*self._target)
        except BaseException:
            to_client.transport.abort()
            raise
        pumps = [
            asyncio.ensure_future(self._pump(client, to_server, self.requests)),
            asyncio.ensure_future(self._pump(server, to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for writer in (to_client, to_server):
                writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray | None = None
    ) -> None:
        while data := await source.read(65536):
            if kept is not None:
                kept += data
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
