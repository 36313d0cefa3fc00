"""A proxy between a browser and a server, which breaks connections, delays data, loses answers or refuses WebSockets.

The tests of this folder run on Playwright's event loop. Proxies and fake models run on another event loop, in a thread.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.faulty_proxy import Line

T = TypeVar("T")
# How often a frame of the server arrives, given its text: not at all, once, or several times.
Mangle = Callable[[bytes], int]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade: *websocket", re.IGNORECASE)
_EXTENSIONS = re.compile(rb"\r\nsec-websocket-extensions:[^\r]*", re.IGNORECASE)
_TEXT = 0x1
_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class EventLoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, act: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return act()

        return self.run(on_the_loop())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class FaultyConnection(Line):
    """`url` is the address for the browser. Every new connection goes to `target`.

    `sockets` counts the accepted WebSocket connections by the end of their path. With `forbids_sockets`, their requests
    are refused, as some proxies do. With `is_down`, new connections are closed immediately.
    """

    def __init__(self, backstage: EventLoopThread, target: str) -> None:
        super().__init__(target)
        self.sockets: list[str] = []
        self.forbids_sockets = False
        self.mangle: Mangle | None = None
        self._backstage = backstage
        self._losing: re.Pattern[str] | None = None

    @contextmanager
    def laid(self) -> Iterator[FaultyConnection]:
        server = self._backstage.run(self._start())
        try:
            yield self
        finally:
            self._backstage.run(self._end(server))

    def cut(self) -> None:
        """Break every connection."""
        self._backstage.run(self._cut())

    def go_down_with(self, request: str) -> None:
        """Deliver the next request of this kind ("POST /path") to the server, but lose its answer and everything after
        it.
        """
        self._losing = re.compile(request)

    async def _end(self, server: asyncio.Server) -> None:
        self.is_down = True
        server.close()
        await self._cut()

    async def _cut(self) -> None:
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)

    def _pumps(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> Sequence[Coroutine[Any, Any, None]]:
        visit = _Visit(self, client, to_client, server, to_server)
        return visit.ask(), visit.answer()

    def takes_away(self, request: str, *, own: asyncio.Task[Any] | None) -> bool:
        """Return whether the answer of this request is lost. The browser gets no other sign of it either."""
        if self._losing is None or not self._losing.match(request):
            return False
        self._losing = None
        self.is_down = True
        for visit in self._visits:
            if visit is not own:
                visit.cancel()
        return True


class _Visit:
    """One connection: requests are read one by one, and answers pass unchanged."""

    def __init__(
        self,
        connection: FaultyConnection,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self.connection = connection
        self.client, self.to_client = client, to_client
        self.server, self.to_server = server, to_server
        self.is_socket = False
        self.loses = False
        self._task = asyncio.current_task()

    async def ask(self) -> None:
        while not self.is_socket:
            try:
                head = await self.client.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            if _UPGRADE.search(head):
                if self.connection.forbids_sockets:
                    self.to_client.write(_FORBIDDEN)
                    return
                self.is_socket = True
                self.connection.sockets.append(urlsplit(target).path.rsplit("/", 1)[-1])
                head = _EXTENSIONS.sub(b"", head)  # frames that are not compressed can be told apart
            found = _LENGTH.search(head)
            body = await self.client.readexactly(int(found[1])) if found else b""
            if self.connection.takes_away(f"{method} {target}", own=self._task):
                self.loses = True
            await self._pass(self.to_server, head + body)
        while data := await self.client.read(65536):
            await self._pass(self.to_server, data)

    async def answer(self) -> None:
        frames = _Frames()
        while data := await self.server.read(65536):
            if self.loses:
                self.to_client.transport.abort()
                return
            if self.is_socket and (mangle := self.connection.mangle) is not None:
                data = b"".join(frames.mangled(data, mangle))
            await self._pass(self.to_client, data)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()


class _Frames:
    """Splits the WebSocket data of a server into frames. A connection is disturbed from its first frame or not at
    all.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._is_open = False

    def mangled(self, data: bytes, mangle: Mangle) -> Iterator[bytes]:
        self._buffer += data
        if not self._is_open:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            self._is_open, self._buffer = True, rest
            yield head + end
        while (size := self._size()) is not None:
            start, length = size
            frame, self._buffer = self._buffer[: start + length], self._buffer[start + length :]
            is_whole_text = frame[0] == 0x80 | _TEXT
            yield frame * (mangle(frame[start:]) if is_whole_text else 1)

    def _size(self) -> tuple[int, int] | None:
        """Return the offset and the length of the first frame's payload; None until the frame is complete."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(buffer[2:start], "big")
        return (start, length) if len(buffer) >= start + length else None
