"""Bytes between two sockets, with bounds: what one side does not read, the other may not send."""

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

# Told how many bytes went on.
Moved = Callable[[int], None]


class TooLong(Exception):
    """A head is longer than it may be."""


class Broken(Exception):
    """A body is not framed as its head said, or ends too early."""


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        writer.transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._unread = bytearray()

    @classmethod
    async def over(cls, made: socket.socket) -> Wire:
        """Of a connected socket, which it owns from now on."""
        try:
            if made.family == socket.AF_UNIX:
                return cls(*await asyncio.open_unix_connection(sock=made, limit=READ_BYTES))
            return cls(*await asyncio.open_connection(sock=made, limit=READ_BYTES))
        except BaseException:
            made.close()
            raise

    async def read(self, most: int = READ_BYTES) -> bytes:
        """What has come, empty at the end."""
        return self._take(most) if self._unread else await self.reader.read(most)

    def _take(self, count: int) -> bytes:
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    async def peek(self) -> bytes:
        """The first byte that has not been read, which stays; empty at the end."""
        if not self._unread:
            self._unread += await self.reader.read(READ_BYTES)
        return bytes(self._unread[:1])

    async def read_exactly(self, count: int) -> bytes:
        """So many bytes; `Broken` when it ends before that."""
        while len(self._unread) < count:
            data = await self.reader.read(READ_BYTES)
            if not data:
                raise Broken
            self._unread += data
        return self._take(count)

    async def read_head(self, most: int) -> bytes:
        """Up to an empty line, without it. Empty when nothing came at all; `Broken` when it ends before that."""
        found = self._unread
        seen = 0  # what came byte by byte is not searched from its beginning each time
        while (end := found.find(b"\r\n\r\n", max(0, seen - 3), most + 4)) < 0:
            if len(found) > most:
                raise TooLong
            # Lines that end otherwise would be waited for until the time is up.
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
        """Of a chunked body, without its end."""
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
        """Say that nothing more comes; the other direction stays open."""
        with contextlib.suppress(OSError, RuntimeError):
            if self.writer.can_write_eof():
                self.writer.write_eof()

    async def linger(self, seconds: float) -> None:
        """Read on for a moment: closing on unread bytes would take the answer away from whoever reads it."""
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while left > 0 and (data := await self.reader.read(READ_BYTES)):
                    left -= len(data)

    async def close(self, seconds: float) -> None:
        """With what is still to be sent; what is not read within this time is given up."""
        try:
            async with asyncio.timeout(seconds):
                self.writer.close()
                await self.writer.wait_closed()
        except (TimeoutError, OSError):
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """At once."""
        self.writer.transport.abort()


async def copy(source: Wire, target: Wire, moved: Moved) -> None:
    """Until the source ends, which the target is told."""
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
    """A chunked body, framed anew: extensions and trailers stay behind."""
    while size := await _chunk_size(source):
        target.writer.write(b"%x\r\n" % size)
        await copy_exactly(source, target, size, moved)
        if await source.read_line() != b"":
            raise Broken
        await target.write(b"\r\n")
        # Thousands of tiny chunks may have come at once, and everybody else would wait for them.
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
