"""A server that sends exactly the bytes of a test on a real socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RawRequest:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Connection:
    """The server's end of one connection. `lost` is set when the client has closed it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_request(self) -> RawRequest:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rows = head.strip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (row.partition(":") for row in rows)}
        return RawRequest(line, headers, await self.reader.readexactly(int(headers.get("content-length", "0"))))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def wait_until_lost(self) -> int:
        """Read until the client has closed the connection. Return the number of bytes that still arrived."""
        received = 0
        with suppress(ConnectionError):
            while data := await self.reader.read(65_536):
                received += len(data)
        self.lost.set()
        return received

    def reset(self) -> None:
        """End with a reset instead of a regular close."""
        self.writer.transport.abort()


Handler = Callable[[Connection], Awaitable[None]]


@dataclass
class RawServer:
    url: str
    requests: list[RawRequest]
    connections: list[Connection]


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Serve on loopback. `handler` is called for each connection."""
    connections: list[Connection] = []
    tasks: set[asyncio.Task[None]] = set()

    async def run(connection: Connection) -> None:
        try:
            await handler(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            connection.lost.set()
        connection.writer.close()
        with suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await connection.writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        connections.append(connection)
        tasks.add(asyncio.ensure_future(run(connection)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    scheme = "http" if tls is None else "https"
    host = "127.0.0.1" if tls is None else "localhost"
    try:
        yield RawServer(f"{scheme}://{host}:{port}", [], connections)
    finally:
        server.close()
        for connection in connections:
            connection.writer.transport.abort()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise failures[0]


def answer(body: bytes, *, status: str = "200 OK", content_type: str = "text/event-stream", extra: str = "") -> bytes:
    """Return a complete response with its length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def stream_head(*, content_type: str = "text/event-stream", extra: str = "") -> bytes:
    """Return the head of a response whose chunks follow."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n{extra}\r\n"
    return head.encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END = b"0\r\n\r\n"


def answering(*answers: bytes) -> Handler:
    """Answer all requests of a connection with the same bytes; each connection uses the next of `answers`."""
    left = list(answers)

    async def handle(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.send(left.pop(0) if len(left) > 1 else left[0])

    return handle
