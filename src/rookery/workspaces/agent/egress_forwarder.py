"""The egress forwarder: a loopback port in the workspace that forwards connections to the server's proxy.

The bytes are forwarded unchanged to a Unix socket that the server provides in the workspace. The proxy at the other end
makes all checks. A check here would be useless, because any process of the workspace could bypass it.
"""

from __future__ import annotations

import asyncio
import contextlib

from rookery.workspaces.agent.config import Egress
from rookery.workspaces.agent.log import Log

MAX_CONNECTIONS = 128
READ_BYTES = 32 * 1024
WRITE_BYTES = 64 * 1024
# Chosen: a server restarts within this time. Connections wait for it.
CONNECT_S = 20.0
PAUSE_S = 0.1
# Time limit after the server has closed its direction.
HALF_S = 60.0
LINGER_S = 2.0
BACKLOG = 128

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Forwarder:
    """The forwarder of one workspace. `listen` starts it, and `close` ends it with all connections."""

    def __init__(self, settings: Egress, log: Log, *, connect_s: float = CONNECT_S) -> None:
        self._settings = settings
        self._log = log
        self._connect_s = connect_s
        self._server: asyncio.AbstractServer | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self) -> int:
        """Listen and return the port."""
        server = await asyncio.start_server(
            self._accept, "127.0.0.1", self._settings.port, limit=READ_BYTES, backlog=BACKLOG
        )
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= 2 * MAX_CONNECTIONS:
            # No response is sent, because the agent needs its remaining file descriptors for requests of the server.
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._connections.add(task)

        def forget(_: object) -> None:
            self._connections.discard(task)
            writer.transport.abort()

        task.add_done_callback(forget)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                await _refuse(reader, writer, f"A workspace may have {MAX_CONNECTIONS} connections at the same time.")
                return
            far = await self._connect()
            if far is None:
                why = "The server that provides the network of this workspace does not answer. Try again in a minute."
                await _refuse(reader, writer, why)
                return
            try:
                await _forward((reader, writer), far)
            finally:
                far[1].transport.abort()
        except OSError:
            pass  # one side has disconnected
        except Exception as error:
            self._log(f"a connection to the network failed: {error!r}")

    async def _connect(self) -> Stream | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_s
        while True:
            try:
                return await asyncio.open_unix_connection(self._settings.socket, limit=READ_BYTES)
            except OSError:
                # The socket is busy, or has no listener. A server that starts creates a new socket at the same path.
                if loop.time() > deadline:
                    return None
            await asyncio.sleep(PAUSE_S)


async def _forward(near: Stream, far: Stream) -> None:
    for _, writer in (near, far):
        writer.transport.set_write_buffer_limits(high=WRITE_BYTES)
    out = asyncio.ensure_future(_copy(near[0], far[1]))
    back = asyncio.ensure_future(_copy(far[0], near[1]))
    try:
        await asyncio.wait({out, back}, return_when=asyncio.FIRST_COMPLETED)
        if not back.done() and out.exception() is None:
            # The request is complete. The response may take long; the server closes idle connections.
            await asyncio.wait({back})
        elif not out.done() and back.exception() is None:
            await asyncio.wait({out}, timeout=HALF_S)
    finally:
        for task in (out, back):
            task.cancel()
        await asyncio.gather(out, back, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        data = await reader.read(READ_BYTES)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    # The caller closes the connection afterwards, so wait until everything is sent.
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
    writer.write_eof()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str) -> None:
    body = f"{why}\n".encode()
    head = (
        "HTTP/1.1 503 The network of this workspace is not available\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.drain(), LINGER_S)
        writer.write_eof()
        # A close with unread bytes would discard the response.
        await asyncio.wait_for(_read_to_end(reader), LINGER_S)


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(READ_BYTES):
        pass
