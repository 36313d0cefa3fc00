"""A small HTTP/1.1 server whose framing a test can break: reset, cut at any byte, stall.

It supports Content-Length and chunked request bodies and keep-alive connections, without pipelining. It writes exactly
the given bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """A complete request."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes


class _Reader(asyncio.StreamReader):
    """A reader that notices immediately when the peer disconnects, even if no task reads from it."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_HEAD_BYTES)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # the stubs are stricter than asyncio
        self.gone.set()


class Connection:
    """One client's connection. `gone` is set when the client closes it or it breaks."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.gone = reader.gone
        self._reader = reader
        self._writer = writer
        self._chunked = False

    async def read_request(self) -> Head | None:
        """Return the next request, or None if the client has no more."""
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request_line, *lines = text.rstrip("\r\n").split("\r\n")
            method, target, _ = request_line.split(" ")
            headers = [(name.strip().lower(), value.strip()) for name, _, value in (x.partition(":") for x in lines)]
            return Head(method, target, headers, await self._read_body(dict(headers)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def start_response(self, status: int, headers: Mapping[str, str], *, length: int | None) -> None:
        """Send the status line and headers. Without a length the body is chunked, one chunk for each `send_body`."""
        self._chunked = length is None
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{k}: {v}" for k, v in headers.items()), framing, "", ""]
        await self._write("\r\n".join(lines).encode("latin-1"))

    async def send_body(self, data: bytes) -> None:
        await self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def end_response(self) -> None:
        if self._chunked:
            await self._write(b"0\r\n\r\n")

    def reset(self) -> None:
        """Reset the connection. With a linger time of zero, the kernel sends RST instead of FIN."""
        peer = self._writer.get_extra_info("socket")
        with suppress(OSError):  # the client closed it meanwhile
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        body = bytearray()
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await self._reader.readexactly(size + 2)
            if size == 0:
                return bytes(body)
            body += data[:-2]


@asynccontextmanager
async def serve(handle: Callable[[Connection], Awaitable[None]], *, port: int = 0) -> AsyncIterator[int]:
    """Listen on a loopback port, by default a free one, and call `handle` for every connection.

    All connections end with the block. Exceptions of a handler are raised at the end, because a test must not pass if
    its server failed.
    """
    tasks: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            failures.append(error)

    async def run(reader: _Reader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            await handle(connection)
            await connection.close()
        except BaseException:
            # Aborted, because a close would wait forever for a client that does not read.
            connection.reset()
            raise

    def protocol() -> asyncio.StreamReaderProtocol:
        reader = _Reader()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(run(reader, writer))
            tasks.add(task)
            task.add_done_callback(done)

        return asyncio.StreamReaderProtocol(reader, connected)

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        running = list(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
    if failures:
        raise failures[0]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"  # a non-standard status, such as 529
