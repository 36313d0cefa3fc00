"""Fake servers in place of a suitable PostgreSQL: connection poolers, old versions, other programs."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.database import Server

TERMINATE = b"X\0\0\0\4"  # how a client says goodbye

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """Run a server on a free port. It is closed with all its connections at the end."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await handler(reader, writer)
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the first message of the client. TLS is declined."""
    while True:
        (length,) = struct.unpack("!i", header := await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        if body != struct.pack("!i", 80877103):
            return header + body
        writer.write(b"N")


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the type and the whole message."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class TransactionPooler:
    """A pooler that gives each client two sessions of the real server, and alternates between them after each
    transaction.
    """

    def __init__(self, server: Server) -> None:
        self._path = f"{server.socket_dir}/.s.PGSQL.{server.port}"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await read_startup(reader, writer)
        sessions = [await asyncio.open_unix_connection(self._path) for _ in range(2)]
        active = 0

        async def pass_on(number: int, *, silent: bool) -> None:
            nonlocal active
            while True:
                kind, whole = await read_message(sessions[number][0])
                if not silent:
                    writer.write(whole)
                if kind == b"Z" and whole.endswith(b"I"):
                    active = 1 - number
                    silent = False

        async with asyncio.TaskGroup() as group:
            for number, (_, session) in enumerate(sessions):
                session.write(startup)
                group.create_task(pass_on(number, silent=number == 1))
            try:
                while True:
                    _, whole = await read_message(reader)
                    sessions[active][1].write(whole)
            finally:
                for _, session in sessions:
                    session.close()


async def old_server(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, heard: list[bytes] | None = None
) -> None:
    """Greet like PostgreSQL 14.9, and then never respond."""
    await read_startup(reader, writer)
    writer.write(message(b"R", struct.pack("!i", 0)))
    for name, value in (("server_version", "14.9"), ("client_encoding", "UTF8"), ("TimeZone", "UTC")):
        writer.write(message(b"S", f"{name}\0{value}\0".encode()))
    writer.write(message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I"))
    words = await reader.read()
    if heard is not None:
        heard.append(words)


async def stubborn_pooler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse unknown startup settings, with the error code of PgBouncer."""
    await read_startup(reader, writer)
    fields = {"S": "FATAL", "V": "FATAL", "C": "08P01", "M": "unsupported startup parameter: jit"}
    writer.write(message(b"E", b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0"))
    await writer.drain()


async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(8)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
