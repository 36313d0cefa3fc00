"""The floor of the measurements as a process (`python -m rookery.cli.bench.floor`): the least that a server has to do.

It runs on the same web server as Rookery. A request to `/chats/NAME` calls the provider with aiohttp, decodes each
event once, merges the text of 27 ms, and sends it to the WebSocket at `/streams/NAME`. With `?stored`, it also writes
the message and the answer, each in a bare transaction. It has no users, no rights, no history and no recovery.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import aiohttp
import msgspec

from rookery.server.listener import serving
from rookery.store.db import bare_rows
from rookery.store.db.pool import Database, DatabaseConfig

# Inside the merge window of live parts.
MERGE_SECONDS = 0.027

Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class Floor:
    """The ASGI application."""

    def __init__(self, provider: str, session: aiohttp.ClientSession, database: Database) -> None:
        self._url = f"{provider}/chat/completions"
        self._session = session
        self._database = database
        self._sockets: dict[str, Send] = {}
        self._turns: dict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._version = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        name = scope["path"].rpartition("/")[2]
        if scope["type"] == "websocket":
            await self._stream(name, receive, send)
        else:
            await self._message(name, receive, send, is_stored=scope["query_string"] == b"stored")

    async def _stream(self, name: str, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self._sockets[name] = send
        await self._tell(name, {"type": "synced", "snapshot_version": 0})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        self._sockets.pop(name, None)
        for turn in self._turns.pop(name, ()):
            turn.cancel()

    async def _message(self, name: str, receive: Any, send: Any, *, is_stored: bool) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        self._version += 1
        version, model = self._version, json.loads(body)["model"]
        if is_stored:
            await self._write(body.decode())
        turn = asyncio.create_task(self._turn(name, model, version, is_stored=is_stored))
        self._turns[name].add(turn)
        turn.add_done_callback(lambda done: self._turns[name].discard(done) if name in self._turns else None)
        answer = _encode({"chat": {"snapshot_version": version}})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _turn(self, name: str, model: str, version: int, *, is_stored: bool) -> None:
        text = await self._relay(name, model)
        if is_stored:
            await self._write(text)
        await self._tell(name, {"type": "status", "status": "waiting"}, {"type": "synced", "snapshot_version": version})

    async def _relay(self, name: str, model: str) -> str:
        loop = asyncio.get_running_loop()
        pending, rest, due, answer = "", b"", 0.0, []
        async with self._session.post(self._url, data=json.dumps({"model": model, "stream": True})) as response:
            async for data in response.content.iter_any():
                *blocks, rest = (rest + data).split(b"\n\n")
                for block in blocks:
                    if block != b"data: [DONE]":
                        pending += "".join(choice.delta.content or "" for choice in _decode(block[6:]).choices)
                if pending and loop.time() >= due:
                    await self._part(name, pending)
                    answer.append(pending)
                    pending, due = "", loop.time() + MERGE_SECONDS
        if pending:
            await self._part(name, pending)
            answer.append(pending)
        return "".join(answer)

    async def _part(self, name: str, text: str) -> None:
        part = {"type": "text", "text": text}
        await self._tell(name, {"type": "message_part", "role": "assistant", "part": part})

    async def _tell(self, name: str, *events: dict[str, Any]) -> None:
        send = self._sockets.get(name)
        if send is not None:
            await send({"type": "websocket.send", "text": _encode(events).decode()})

    async def _write(self, text: str) -> None:
        async with self._database.api.acquire() as conn:
            await bare_rows.insert(conn, text)


async def _serve(provider: str, database_url: str) -> None:
    async with (
        await Database.connect(DatabaseConfig(database_url)) as database,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        async with database.api.acquire() as conn:
            await bare_rows.create_table(conn)
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
            async with serving(Floor(provider, session, database), listening):
                print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
                await asyncio.Event().wait()


def main() -> None:
    import uvloop

    from rookery.runtime import heap

    heap.share_heap()  # `rookery serve` does the same
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    main()
