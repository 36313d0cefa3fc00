"""Bounded copying of bytes between two sockets: data that one side does not read stops the other from sending."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable

# A reader holds twice its limit, a writer its mark and one piece more: about 200 KiB for each direction at most.
READ_BYTES = 32 * 1024
WRITE_BYTES = 64 * 1024
LINGER_BYTES = 1024 * 1024
MAX_CHUNK_LINE = 256
MAX_TRAILER_BYTES = 8 * 1024
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_LONE_NEWLINE = re.compile(rb"(?<!\r)\n")

# Called with the number of bytes that were forwarded.
Moved = Callable[[int], None]


class TooLong(Exception):
    """Raised when a head exceeds its limit."""


class Broken(Exception):
    """Raised when a body is not framed as its head announced, or ends too early."""


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        writer.transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._unread = bytearray()

    @classmethod
    async def over(cls, made: socket.socket) -> Wire:
        """Wrap a connected socket and take ownership of it."""
        try:
            if made.family == socket.AF_UNIX:
                return cls(*await asyncio.open_unix_connection(sock=made, limit=READ_BYTES))
            return cls(*await asyncio.open_connection(sock=made, limit=READ_BYTES))
        except BaseException:
            made.close()
            raise

    async def read(self, most: int = READ_BYTES) -> bytes:
        """Return received bytes, empty at the end."""
        return self._take(most) if self._unread else await self.reader.read(most)

    def _take(self, count: int) -> bytes:
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    async def peek(self) -> bytes:
        """Return the first unread byte without consuming it; empty at the end."""
        if not self._unread:
            self._unread += await self.reader.read(READ_BYTES)
        return bytes(self._unread[:1])

    async def read_exactly(self, count: int) -> bytes:
        """Return this many bytes; raise `Broken` when the connection ends before that."""
        while len(self._unread) < count:
            data = await self.reader.read(READ_BYTES)
            if not data:
                raise Broken
            self._unread += data
        return self._take(count)

    async def read_head(self, most: int) -> bytes:
        """Return the bytes up to an empty line, without it; empty at the end of the connection. Raises `Broken` when it
        ends inside a head.
        """
        found = self._unread
        seen = 0  # avoids searching from the beginning after each received byte
        while (end := found.find(b"\r\n\r\n", max(0, seen - 3), most + 4)) < 0:
            if len(found) > most:
                raise TooLong
            # Otherwise a head with other line endings would be awaited until the timeout.
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

    def end(self) -> None:
        """Close the sending direction; the other stays open."""
        with contextlib.suppress(OSError, RuntimeError):
            if self.writer.can_write_eof():
                self.writer.write_eof()

    async def linger(self, seconds: float) -> None:
        """Read for a moment: closing with unread bytes would discard the response before the client reads it."""
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while left > 0 and (data := await self.reader.read(READ_BYTES)):
                    left -= len(data)

    async def close(self, seconds: float) -> None:
        """Close after sending what is buffered; give up when it is not read within this time."""
        try:
            async with asyncio.timeout(seconds):
                self.writer.close()
                await self.writer.wait_closed()
        except (TimeoutError, OSError):
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """Close immediately."""
        self.writer.transport.abort()


async def copy(source: Wire, target: Wire, moved: Moved) -> None:
    """Copy until the source ends, then close the sending direction of the target."""
    while data := await source.read():
        await target.write(data)
        moved(len(data))
    target.end()


async def copy_exactly(source: Wire, target: Wire, length: int, moved: Moved) -> None:
    while length > 0:
        data = await source.read(min(READ_BYTES, length))
        if not data:
            raise Broken
        await target.write(data)
        moved(len(data))
        length -= len(data)


async def copy_chunks(source: Wire, target: Wire, moved: Moved) -> None:
    """Copy a chunked body and frame it again; extensions and trailers are dropped."""
    while size := await _chunk_size(source):
        target.writer.write(b"%x\r\n" % size)
        await copy_exactly(source, target, size, moved)
        if await source.read_line() != b"":
            raise Broken
        await target.write(b"\r\n")
        # Thousands of tiny chunks may have arrived together; let other tasks run.
        await asyncio.sleep(0)
    left = MAX_TRAILER_BYTES
    while line := await source.read_line():
        left -= len(line)
        if left < 0:
            raise Broken
    await target.write(b"0\r\n\r\n")


async def _chunk_size(source: Wire) -> int:
    match = _CHUNK.fullmatch(await source.read_line())
    if match is None:
        raise Broken
    return int(match[1], 16)
