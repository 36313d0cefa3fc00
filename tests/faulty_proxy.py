"""Proxies between clients and a server, which tests can cut, stall or redirect."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit


class Line(ABC):
    """Forwards every connection from `url` to `target`. While `is_down`, new connections are closed immediately."""

    def __init__(self, target: str) -> None:
        self.url = ""
        self.target = target
        self.is_down = False
        self._visits: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _pumps(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the tasks that forward one connection. It ends with the first of them."""

    async def _start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            writer.transport.abort()
            return
        visit = asyncio.ensure_future(self._carry(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        try:
            server, to_server = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            to_client.transport.abort()
            return
        except asyncio.CancelledError:
            to_client.transport.abort()
            raise
        pumps = [asyncio.ensure_future(pump) for pump in self._pumps(client, to_client, server, to_server)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            to_client.close()  # data that was forwarded still arrives
        except asyncio.CancelledError:
            to_client.transport.abort()
            raise
        finally:
            to_server.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class FaultyProxy(Line):
    """Clients connect to `url`; every new connection is forwarded to `target`.

    `cut` closes every connection. `cut_after` forwards this many more bytes of the server first, so that the cut is
    inside a frame, between two frames, or in a handshake. While `is_down`, new connections are closed immediately.
    Between `hang` and `flow` no data is forwarded.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.connections = 0
        self.requests = bytearray()
        self._flows = asyncio.Event()
        self._flows.set()
        self._allowance: int | None = None

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[FaultyProxy]:
        server = await self._start()
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

    def cut_after(self, count: int) -> None:
        self._allowance = count

    def hang(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        """Forward data again, and cancel a pending cut."""
        self._allowance = None
        self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        super()._accept(reader, writer)

    def _pumps(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> Sequence[Coroutine[Any, Any, None]]:
        return self._ask(client, to_server), self._answer(server, to_client)

    async def _ask(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            self.requests += data
            await self._flows.wait()
            to_server.write(data)
            await to_server.drain()

    async def _answer(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            await self._flows.wait()
            if self._allowance is not None:
                data = data[: self._allowance]
                self._allowance -= len(data)
            to_client.write(data)
            if self._allowance == 0:
                self._allowance = None
                return
            await to_client.drain()
