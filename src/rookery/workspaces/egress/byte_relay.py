"""Byte streams, and functions that copy between them with flow control and limited memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable

# A reader buffers at most twice its limit, and a writer its limit plus one piece: about 200 KiB per direction.
READ_BYTES = 32 * 1024
WRITE_BYTES = 64 * 1024
LINGER_BYTES = 1024 * 1024
MAX_CHUNK_LINE = 256
MAX_TRAILER_BYTES = 8 * 1024
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_LONE_NEWLINE = re.compile(rb"(?<!\r)\n")

# Called with the number of copied bytes.
OnBytes = Callable[[int], None]


class TooLong(Exception):
    """Raised when an HTTP head is too long."""


class Broken(Exception):
    """Raised when a message ends too early, or its framing is invalid."""


class ByteStream:
    """One connection, with methods that read HTTP and SOCKS messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        writer.transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._unread = bytearray()

    @classmethod
    async def from_socket(cls, sock: socket.socket) -> ByteStream:
        """Return the stream of a connected socket, and take ownership of the socket."""
        try:
            if sock.family == socket.AF_UNIX:
                return cls(*await asyncio.open_unix_connection(sock=sock, limit=READ_BYTES))
            return cls(*await asyncio.open_connection(sock=sock, limit=READ_BYTES))
        except BaseException:
            sock.close()
            raise

    async def read(self, most: int = READ_BYTES) -> bytes:
        """Return received bytes; empty at the end of the stream."""
        return self._take(most) if self._unread else await self.reader.read(most)

    def _take(self, count: int) -> bytes:
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    async def peek(self) -> bytes:
        """Return the next byte without consuming it; empty at the end of the stream."""
        if not self._unread:
            self._unread += await self.reader.read(READ_BYTES)
        return bytes(self._unread[:1])

    async def read_exactly(self, count: int) -> bytes:
        """Return exactly this many bytes. Raise `Broken` if the stream ends before."""
        while len(self._unread) < count:
            data = await self.reader.read(READ_BYTES)
            if not data:
                raise Broken
            self._unread += data
        return self._take(count)

    async def read_head(self, most: int) -> bytes:
        """Return the bytes up to an empty line, without it; empty at the end of the stream.

        Raise `Broken` if the stream ends inside of a head.
        """
        found = self._unread
        seen = 0  # the bytes that were searched already
        while (end := found.find(b"\r\n\r\n", max(0, seen - 3), most + 4)) < 0:
            if len(found) > most:
                raise TooLong
            # A head with other line endings is refused now, not at the timeout.
            if _LONE_NEWLINE.search(found, seen):
                raise Broken
            seen = len(found)
            data = await self.reader.read(READ_BYTES)
            if not data and found:
                raise Broken
            if not data:
                return b""
            found += data
        head = self._take(end)
        self._take(4)
        return head

    async def read_line(self) -> bytes:
        """Return a line of a chunked body, without its ending."""
        while (end := self._unread.find(b"\r\n", 0, MAX_CHUNK_LINE + 2)) < 0:
            if len(self._unread) > MAX_CHUNK_LINE:
                raise Broken
            data = await self.reader.read(READ_BYTES)
            if not data:
                raise Broken
            self._unread += data
        line = self._take(end)
        self._take(2)
        return line

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close_sending(self) -> None:
        """Close the sending direction. Receiving is still possible."""
        with contextlib.suppress(OSError, RuntimeError):
            if self.writer.can_write_eof():
                self.writer.write_eof()

    async def linger(self, seconds: float) -> None:
        """Read for a moment before a close. A close with unread bytes would discard the response."""
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while left > 0 and (data := await self.reader.read(READ_BYTES)):
                    left -= len(data)

    async def close(self, seconds: float) -> None:
        """Send the buffered bytes and close. Abort if this takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                self.writer.close()
                await self.writer.wait_closed()
        except (TimeoutError, OSError):
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Close immediately, and discard buffered bytes."""
        self.writer.transport.abort()


async def copy(source: ByteStream, target: ByteStream, on_bytes: OnBytes) -> None:
    """Copy to the end of the source, then close the sending direction of the target."""
    while data := await source.read():
        await target.write(data)
        on_bytes(len(data))
    target.close_sending()


async def copy_exactly(source: ByteStream, target: ByteStream, length: int, on_bytes: OnBytes) -> None:
    while length > 0:
        data = await source.read(min(READ_BYTES, length))
        if not data:
            raise Broken
        await target.write(data)
        on_bytes(len(data))
        length -= len(data)


async def copy_chunks(source: ByteStream, target: ByteStream, on_bytes: OnBytes) -> None:
    """Copy a chunked body with new framing. Extensions and trailers are dropped."""
    while size := await _chunk_size(source):
        target.writer.write(b"%x\r\n" % size)
        await copy_exactly(source, target, size, on_bytes)
        if await source.read_line() != b"":
            raise Broken
        await target.write(b"\r\n")
        # Thousands of small chunks may have arrived together. Let other tasks run.
        await asyncio.sleep(0)
    left = MAX_TRAILER_BYTES
    while line := await source.read_line():
        left -= len(line)
        if left < 0:
            raise Broken
    await target.write(b"0\r\n\r\n")


async def _chunk_size(source: ByteStream) -> int:
    match = _CHUNK.fullmatch(await source.read_line())
    if match is None:
        raise Broken
    return int(match[1], 16)
