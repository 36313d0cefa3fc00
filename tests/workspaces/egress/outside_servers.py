"""Servers that workspaces reach in tests, or do not: on the loopback, with names of a test resolver."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rookery.runtime.address_guard import Guard, Resolve
from tests.certificates import make_certificate

HERE = "127.0.0.1"

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Names:
    """A resolver. A name with several addresses returns the next one each time, as in DNS rebinding."""

    known: dict[str, list[list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    resolve: Resolve | None = None  # overrides the known names

    def set(self, name: str, *answers: Iterable[str]) -> None:
        self.known[name] = [list(each) for each in answers]

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.known.get(host)
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def guard(self, *allow: str) -> Guard:
        """Return a guard that treats the machine's first loopback address, and no other, as public."""
        return Guard(allow or (f"{HERE}/32",), resolve=self.resolve or self)


@dataclass
class Outside:
    """Servers, and the requests they received."""

    directory: Path
    heard: list[bytes] = field(default_factory=list)
    open: int = 0
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def serve(self, handle: Handle, *, tls: bool = False, host: str = HERE) -> int:
        """Listen and return the port."""
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(await asyncio.to_thread(make_certificate, self.directory))

        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.open += 1
            try:
                await handle(reader, writer)
            except (OSError, EOFError):
                pass
            finally:
                self.open -= 1
                writer.close()

        server = await asyncio.start_server(counted, host, 0, ssl=context)
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    async def web(self, text: str = "hello from outside", *, tls: bool = False, host: str = HERE) -> int:
        """Start a server that records requests with their bodies and responds to each with a text."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(head + await _body(head, reader))
            body = text.encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()

        return await self.serve(answer, tls=tls, host=host)

    async def close(self) -> None:
        await self._stack.aclose()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    if fields.get(b"transfer-encoding") == b"chunked":
        return await reader.readuntil(b"0\r\n\r\n")
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


@contextlib.asynccontextmanager
async def outside(directory: Path) -> AsyncIterator[Outside]:
    made = Outside(directory)
    try:
        yield made
    finally:
        await made.close()
