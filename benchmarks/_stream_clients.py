"""Clients in a separate process, so that their CPU time is not counted. Used by `streaming.py` and `turns.py`.

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
                if self.first is not None and not self.first.done() and _is_answer(event):
                    self.first.set_result(time.monotonic())
                if event["type"] == "message_part":
                    self.chars += len(event["part"].get("text", ""))
                elif event["type"] == "synced":
                    self.synced.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.transport.abort()


def _is_answer(event: dict[str, Any]) -> bool:
    """Return whether the event has words of an answer.

    An answer that is committed before its parts were shown arrives only as a message.
    """
    is_message = event["type"] == "message" and event["message"]["role"] == "assistant"
    return bool(is_message or event["type"] == "message_part")


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
            case "send":
                return await self._send(asked["sends"], asked["pause"])
            case "start":
                return await self._start(asked["url"], asked["model"], asked["tokens"])
            case _:
                raise ValueError(asked["do"])

    async def _send(self, sends: list[tuple[str, str, dict[str, Any]]], pause: float) -> dict[str, Any]:
        """Post each (url, token, body), with pauses between the beginnings. Return when each began."""
        at = []
        async with aiohttp.ClientSession() as session:
            due = time.monotonic()
            for url, token, body in sends:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due += pause
                at.append(time.monotonic())
                async with session.post(url, json=body, headers={"Authorization": f"Bearer {token}"}) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
        return {"at": at}

    async def _start(self, url: str, model: str, tokens: list[str]) -> dict[str, Any]:
        """Create a chat for each token, all at once, and follow it. Return the time until its first word, in ms."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def start(token: str) -> tuple[str, float]:
                began = time.monotonic()
                headers = {"Authorization": f"Bearer {token}"}
                body = {"content": [{"type": "text", "text": "Hello"}], "model_config_id": model, "title": "bench"}
                async with session.post(f"{url}/api/v1/chats", json=body, headers=headers) as response:
                    assert response.status == 201, await response.text()
                    chat = (await response.json())["id"]
                stream = f"{url}/api/v1/chats/{chat}/stream"
                async with asyncio.timeout(30), session.ws_connect(stream, headers=headers) as socket:
                    async for frame in socket:
                        if any(map(_is_answer, json.loads(frame.data))):
                            return chat, (time.monotonic() - began) * 1000
                raise AssertionError("The stream ended before the answer.")

            found = await asyncio.gather(*map(start, tokens))
        return {"chats": [chat for chat, _ in found], "ms": [ms for _, ms in found]}

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
