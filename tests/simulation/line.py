"""A line between one client and a server: it leads to another server when told, is cut anywhere, and holds back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Line:
    """`url` is the client's end; every new connection goes to `target`.

    `cut` breaks what is connected; `cut_after` lets so many more bytes of the server pass first, so that the cut falls
    inside a frame, between two of them, or into a handshake. While it `hold`s, what the server says waits.
    """

    def __init__(self, target: str) -> None:
        self.url = ""
        self.target = target
        self._visits: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._allowance: int | None = None

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Line]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._visits, return_exceptions=True)

    def cut(self) -> None:
        for visit in self._visits:
            visit.cancel()

    def cut_after(self, count: int) -> None:
        self._allowance = count

    def hold(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        """Nothing is held back or cut any more."""
        self._allowance = None
        self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.ensure_future(self._carry(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        try:
            server, to_server = await asyncio.open_connection(parts.hostname, parts.port)
        except BaseException:
            to_client.transport.abort()
            raise
        pumps = [asyncio.ensure_future(_pump(client, to_server)), asyncio.ensure_future(self._pump(server, to_client))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            to_client.close()  # what was let through still arrives
        except asyncio.CancelledError:
            to_client.transport.abort()
            raise
        finally:
            to_server.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._flows.wait()
            if self._allowance is not None:
                data = data[: self._allowance]
                self._allowance -= len(data)
            sink.write(data)
            if self._allowance == 0:
                self._allowance = None
                return
            await sink.drain()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
