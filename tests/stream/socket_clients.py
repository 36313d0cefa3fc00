"""Clients on real sockets: a small ASGI application under uvicorn, and clients that record what they receive.

The application opens streams as the API does, without a login: a header names the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID, uuid4

import aiohttp
import msgspec
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed

from rookery.server.listener import serving, unix_socket
from rookery.stream import query_parameters
from rookery.stream.access_monitor import Grant
from rookery.stream.service import Streams

Event = dict[str, Any]


class SocketServer:
    """`/chats/{id}/stream` and `/chats/watch`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        user = UUID(headers["x-user"])
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        _, _, chat, *_ = scope["path"].split("/")
        if chat == "watch":
            opened = self._streams.open_watch(Grant(user_id=user, credential=str(user)))
        else:
            given = query_parameters.parse(query, last_event_id=headers.get("last-event-id"))
            grant = Grant(user_id=user, credential=str(user), chat_id=UUID(chat), root_id=UUID(chat))
            opened = await self._streams.open_chat(grant, given)
        await opened.serve(scope, receive, send)


class _End:
    def __init__(self) -> None:
        self.frames: list[list[Event]] = []
        self.cursors: list[int | None] = []
        self.closed: tuple[int, str] | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def take(self, frame: list[Event], cursor: int | None) -> None:
        self.frames.append(frame)
        self.cursors.append(cursor)


class WebSocketEnd(_End):
    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection = connection
        self._outgoing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                await self.gate.wait()
                self._take_text(await self.connection.recv())
        except ConnectionClosed:
            self.closed = (self.connection.close_code or 0, self.connection.close_reason or "")

    def _take_text(self, data: str | bytes) -> None:
        # Not in the loop above, where the last frame would count as memory of the stream.
        assert isinstance(data, str), "frames are text"
        frame = msgspec.json.decode(data)
        last = frame[-1]
        self.take(frame, last["last_message_id"] if last["type"] == "synced" else None)

    def say(self, **frame: object) -> None:
        self._do(self.connection.send(msgspec.json.encode(frame).decode()))

    def leave(self) -> None:
        self._do(self.connection.close())

    def _do(self, doing: Any) -> None:
        task = asyncio.ensure_future(doing)
        self._outgoing.add(task)
        task.add_done_callback(self._outgoing.discard)


class EventStreamEnd(_End):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__()
        self.response = response
        self.comments: list[str] = []
        self.retry: int | None = None
        self._left = False

    async def run(self) -> None:
        fields: dict[str, str] = {}
        try:
            while line := await self.response.content.readline():
                await self.gate.wait()
                text = line.decode().rstrip("\n")
                if text:
                    name, _, value = text.partition(": ")
                    fields[name] = value
                    continue
                self._event(fields)
                fields = {}
        except (aiohttp.ClientError, asyncio.CancelledError):
            if not self._left:
                raise

    def _event(self, fields: dict[str, str]) -> None:
        if "" in fields:
            self.comments.append(fields[""])
        if "retry" in fields:
            self.retry = int(fields["retry"])
        if "data" not in fields:
            return
        data = msgspec.json.decode(fields["data"])
        if fields["event"] == "batch":
            self.take(data, int(fields["id"]) if "id" in fields else None)
        else:
            self.closed = (data["code"], fields["event"])

    def say(self, **frame: object) -> None:
        raise AssertionError("An event stream only reads.")

    def leave(self) -> None:
        self._left = True
        self.response.close()


class Sockets:
    """Connects clients to one server."""

    def __init__(self, path: Path, kind: str, session: aiohttp.ClientSession) -> None:
        self.path = path
        self.kind = kind
        self.session = session

    async def connect(
        self, chat: object, query: dict[str, object], *, user: UUID | None = None, **headers: str
    ) -> WebSocketEnd | EventStreamEnd:
        sent = {"X-User": str(user or uuid4()), **{name.replace("_", "-"): value for name, value in headers.items()}}
        text = {name: str(value).lower() for name, value in query.items()}
        target = f"localhost/chats/{chat}/stream?{urlencode(text)}"
        if self.kind == "websocket":
            return await self._websocket(f"ws://{target}", sent)
        return await self._event_stream(f"http://{target}", sent)

    async def _websocket(self, url: str, headers: dict[str, str]) -> WebSocketEnd:
        connection = await unix_connect(
            str(self.path), url, additional_headers=headers, compression=None, max_size=None, max_queue=None
        )
        return WebSocketEnd(connection)

    async def _event_stream(self, url: str, headers: dict[str, str]) -> EventStreamEnd:
        response = await self.session.get(url, headers=headers)
        response.raise_for_status()
        return EventStreamEnd(response)


@asynccontextmanager
async def open_sockets(streams: Streams, path: Path, kind: str, **options: Any) -> AsyncIterator[Sockets]:
    with unix_socket(path) as listening:
        async with serving(SocketServer(streams), listening, **options):
            connector = aiohttp.UnixConnector(path=str(path), limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**24) as session:
                yield Sockets(path, kind, session)
