"""Many light clients of one server in one process: plain sockets, the reducer, and the delays of every client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from rookery.client import backoff, reducer
from rookery.client.reducer import Client, View

_decoder = msgspec.json.Decoder(list[dict[str, object]])


class Spectator:
    """Follows one chat while `watch` runs. `replica_id` is the replica that serves it; None while there is none."""

    def __init__(self, url: str, chat_id: UUID, token: str, *, rng: Random) -> None:
        self.chat_id = chat_id
        self.replica_id: str | None = None
        self.synced_at = 0.0
        self.repeated: list[int] = []
        self._url = f"{url.replace('http', 'ws', 1)}/api/v1/chats/{chat_id}/stream"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._rng = rng
        self._client = Client()
        self._connection: ClientConnection | None = None

    @property
    def view(self) -> View:
        return self._client.view

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    async def watch(self) -> None:
        attempt = 0
        while True:
            try:
                async with connect(
                    f"{self._url}?after_id={self.view.last_message_id}",
                    additional_headers=self._headers,
                    compression=None,
                    proxy=None,
                    ping_interval=None,
                    close_timeout=1,
                ) as self._connection:
                    attempt = 0
                    async for data in self._connection:
                        self._take(_decoder.decode(data))
            except (ConnectionClosed, InvalidHandshake, OSError):
                pass
            self.replica_id = self._connection = None
            await asyncio.sleep(backoff.stream_delay(attempt, self._rng))
            attempt += 1

    def _take(self, events: list[dict[str, object]]) -> None:
        for event in events:
            before = self.view
            self._client = reducer.reduce(self._client, [event])
            match event["type"]:
                case "hello":
                    self.replica_id = str(event["replica_id"])
                case "message":
                    number = msgspec.convert(event["message"], dict[str, object])["id"]
                    if number in before.messages:
                        self.repeated.append(msgspec.convert(number, int))
                case "synced":
                    self.synced_at = time.monotonic()


@asynccontextmanager
async def watching(spectators: list[Spectator]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.watch()) for each in spectators]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise outcome if isinstance(outcome, BaseException) else AssertionError("a client gave up")
