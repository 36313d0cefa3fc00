"""Stream clients in a separate process, so that their CPU time is not counted. Used by `streaming.py`.

Commands are lines of JSON on stdin, and responses are on stdout. Times are from the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvloop
import websockets
from websockets.asyncio.client import ClientConnection

OPEN_AT_ONCE = 50


class Viewer:
    """One stream. It counts the characters of live parts, and records the time of the first one after a reset."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.chars = 0
        self.synced = asyncio.Event()
        self.first: asyncio.Future[float] | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self._socket:
            for event in json.loads(frame):
                # An answer that is committed before its parts were shown arrives only as a message.
                is_answer = event["type"] == "message" and event["message"]["role"] == "assistant"
                is_part = event["type"] == "message_part"
                if (is_part or is_answer) and self.first is not None and not self.first.done():
                    self.first.set_result(time.monotonic())
                if is_part:
                    self.chars += len(event["part"].get("text", ""))
                elif event["type"] == "synced":
                    self.synced.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.transport.abort()


class Clients:
    def __init__(self) -> None:
        self.viewers: list[Viewer] = []

    async def handle(self, asked: dict[str, Any]) -> dict[str, Any]:
        match asked["do"]:
            case "open":
                return await self._open(asked["streams"], wait=asked["wait"])
            case "count":
                return {"chars": sum(viewer.chars for viewer in self.viewers)}
            case "close":
                await asyncio.gather(*(viewer.close() for viewer in self.viewers))
                self.viewers.clear()
                return {}
            case "first":
                return await self._first(asked["sends"], asked["url"], asked["provider"], asked["model"])
            case _:
                raise ValueError(asked["do"])

    async def _open(self, streams: list[tuple[str, str]], *, wait: bool) -> dict[str, Any]:
        """Open streams for (url, token) pairs. Return how long each took until it was synced, in ms."""
        gate = asyncio.Semaphore(OPEN_AT_ONCE)

        async def open_one(url: str, token: str) -> float:
            async with gate:
                started = time.monotonic()
                headers = {"Authorization": f"Bearer {token}"}
                socket = await websockets.connect(
                    url,
                    additional_headers=headers,
                    compression=None,
                    ping_interval=None,
                    max_size=None,
                    open_timeout=60,
                )
                viewer = Viewer(socket)
                self.viewers.append(viewer)
                if wait:
                    await viewer.synced.wait()
                return (time.monotonic() - started) * 1000

        return {"ms": await asyncio.gather(*(open_one(*stream) for stream in streams))}

    async def _first(
        self, sends: list[tuple[str, str, str]], url: str, provider: str, name: str
    ) -> dict[str, list[float]]:
        """Send to each (chat, model, token) in turn, and wait for the first live part of the answer. Return times in
        ms.

        Before each message, the provider itself is called with the same request, to measure its own time.
        """
        seen, own = [], []
        async with aiohttp.ClientSession() as session:
            for chat, model, token in sends:
                own.append(await self._ask(session, provider, name))
                async with watched(
                    f"{url.replace('http', 'ws', 1)}/api/v1/chats/{chat}/stream?tail=0", token
                ) as viewer:
                    viewer.first = asyncio.get_running_loop().create_future()
                    sent = time.monotonic()
                    body = {"content": [{"type": "text", "text": "And now?"}], "model_config_id": model}
                    headers = {"Authorization": f"Bearer {token}"}
                    async with session.post(
                        f"{url}/api/v1/chats/{chat}/messages", json=body, headers=headers
                    ) as response:
                        assert response.status == 200, await response.text()
                        async with asyncio.timeout(30):
                            seen.append((await viewer.first - sent) * 1000)
                    await asyncio.sleep(0.1)  # so that no message is sent during the end of the last turn
        return {"seen": seen, "own": own}

    async def _ask(self, session: aiohttp.ClientSession, provider: str, name: str) -> float:
        """Return the time until the provider's first token arrives."""
        asked = time.monotonic()
        first = None
        async with session.post(provider, data=json.dumps({"model": name})) as response:
            async for _ in response.content.iter_any():
                first = first or time.monotonic()
        assert first is not None, "the provider said nothing"
        return (first - asked) * 1000


@asynccontextmanager
async def watched(url: str, token: str) -> AsyncIterator[Viewer]:
    socket = await websockets.connect(url, additional_headers={"Authorization": f"Bearer {token}"}, compression=None)
    viewer = Viewer(socket)
    try:
        await viewer.synced.wait()
        yield viewer
    finally:
        await viewer.close()


async def main() -> None:
    clients = Clients()
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(await clients.handle(json.loads(line))), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
