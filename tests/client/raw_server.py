"""A raw socket server that sends given bytes, cuts connections, or does not answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec


class Fault(Enum):
    CUT = "the connection breaks once the request was read"
    SILENCE = "the request is read and never answered"


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)
        head = [f"HTTP/1.1 {self.status} X", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*head, "", ""]).encode() + body


def refused(status: int, code: str, **headers: str) -> Reply:
    body = {"code": code, "message": "No.", "request_id": "r-1"}
    return Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RawServer:
    """Uses the next of `replies` for each request, and the last one for all further requests."""

    def __init__(self, *replies: Reply | Fault) -> None:
        self.replies = deque(replies)
        self.requests: list[Request] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.requests.append(await _read(reader))
                reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
                if reply is Fault.CUT:
                    return
                if isinstance(reply, Reply):
                    writer.write(reply.encoded())
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    pairs = [line.split(": ", 1) for line in head[1:] if line]
    headers = {name.lower(): value for name, value in pairs}
    return Request(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
