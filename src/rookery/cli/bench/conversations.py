"""The clients of a measurement: a chat that is sent messages over HTTP and followed over a WebSocket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from rookery.cli.exit_codes import Refused
from rookery.testing.paced_provider import WORD

OPEN_SECONDS = 30.0
# Chosen: far longer than any step of a measurement takes.
WAIT_SECONDS = 30.0
OPEN_AT_ONCE = 25

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class Conversation:
    """One chat and its only viewer. The floor and Rookery send the same events."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        stream_url: str,
        send_url: str,
        token: str,
        body: Callable[[str], object],
        interrupt_url: str | None = None,
    ) -> None:
        self._session = session
        self._stream_url = stream_url
        self._send_url = send_url
        self._interrupt_url = interrupt_url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._body = body
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._status = ""
        self._version = -1
        self._last = 0
        self._awaits_first = False
        self.first_at: float | None = None
        self.chars = 0

    @property
    def words(self) -> int:
        return self.chars // len(WORD)

    async def open(self) -> None:
        async with asyncio.timeout(OPEN_SECONDS):
            self._socket = await websockets.connect(
                self._stream_url,
                additional_headers={"Authorization": self._headers["Authorization"]},
                compression=None,
                ping_interval=None,
                max_size=None,
                proxy=None,
            )
            self._reader = asyncio.create_task(self._read(self._socket))
            await self._until("The start of a stream", lambda: self._version >= 0)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            self._socket.transport.abort()

    async def send(self, model: str) -> None:
        """Send a message. `first_at` is then the time of the first word of its answer."""
        self.first_at, self._awaits_first = None, True
        body = json.dumps(self._body(model))
        async with self._session.post(self._send_url, data=body, headers=self._headers) as response:
            if response.status != 200:
                raise Refused(f"A message was refused with {response.status}: {(await response.text())[:200]}")
            self._last = (await response.json())["chat"]["snapshot_version"]

    async def first_word(self) -> None:
        await self._until("The first word of an answer", lambda: self.first_at is not None)

    async def rest(self) -> None:
        """Wait for the end of the last message's turn."""
        await self._until("The end of a turn", lambda: self._version >= self._last and self._status == "waiting")

    async def stop(self) -> None:
        """End the running answer."""
        if self._interrupt_url is None:
            await self.close()
            return
        async with self._session.post(self._interrupt_url, data="{}", headers=self._headers) as response:
            self._last = (await response.json()).get("snapshot_version", self._last)
        await self.rest()

    async def _until(self, what: str, is_met: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not is_met():
                    assert self._reader is not None
                    if self._reader.done():
                        raise Refused("A stream ended during the measurement.")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Refused(f"{what} took more than {WAIT_SECONDS:g} s. The machine is too busy.") from None

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                for event in _decode(frame):
                    self._take(event)
                self._changed.set()
        finally:
            self._changed.set()

    def _take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_part":
                self.chars += len(event["part"].get("text", ""))
                self._saw_word()
            case "message" if event["message"]["role"] == "assistant":
                # An answer that is committed before its parts were shown arrives only as a message.
                self._saw_word()
            case "status":
                self._status = event["status"]
            case "synced":
                self._version = event["snapshot_version"]

    def _saw_word(self) -> None:
        if self._awaits_first:
            self.first_at, self._awaits_first = time.monotonic(), False


@asynccontextmanager
async def opened(conversations: Sequence[Conversation]) -> AsyncIterator[None]:
    """Open the streams, a few at a time."""
    try:
        await a_few_at_once([each.open for each in conversations])
        yield
    finally:
        await asyncio.gather(*(each.close() for each in conversations))


async def a_few_at_once(actions: Sequence[Callable[[], Awaitable[object]]], count: int = OPEN_AT_ONCE) -> None:
    waiting = list(reversed(actions))

    async def work() -> None:
        while waiting:
            await waiting.pop()()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, len(actions))):
            group.create_task(work())
