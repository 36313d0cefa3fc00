"""The effect server: tools have effects on it, which happen even if the caller is dead by then.

A request is one line of JSON, and the response is the number of the effect. With a token, the effect happens once, and
all requests with this token get the same number. Without a token, every request has an effect.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from tests.chaos.run_results import Effect
from tests.chaos.schedule import pauses


class Wish(msgspec.Struct, frozen=True):
    """A request of a tool. `run` is the replay token of the call. `token` is set for an idempotent request."""

    replica: int
    call_id: str
    run: str
    token: str | None = None


class Effects:
    """`on_effect` is called with the replica of an effect before the response is sent."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._by_token: dict[str, asyncio.Future[int]] = {}
        self._working: set[asyncio.Task[int]] = set()
        self.done: list[Effect] = []
        self.tokens: defaultdict[str, set[str]] = defaultdict(set)
        self.gates: dict[str, asyncio.Event] = {}
        self.on_effect: Callable[[int], None] = lambda replica: None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                number = await asyncio.shield(self._granted(msgspec.json.decode(line, type=Wish)))
                writer.write(msgspec.json.encode(number) + b"\n")
                await writer.drain()
        writer.transport.abort()

    def _granted(self, wish: Wish) -> asyncio.Future[int]:
        self.tokens[wish.call_id].add(wish.run)
        if wish.token is not None and (known := self._by_token.get(wish.token)) is not None:
            return known
        task = asyncio.create_task(self._happen(wish))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        if wish.token is not None:
            self._by_token[wish.token] = task
        return task

    async def _happen(self, wish: Wish) -> int:
        before, after = pauses(self._seed, wish.call_id)
        await asyncio.sleep(before)
        number = len(self.done) + 1
        self.done.append(Effect(number, wish.call_id, wish.token))
        self.on_effect(wish.replica)
        await asyncio.sleep(after)
        if (gate := self.gates.get(wish.call_id)) is not None:
            await gate.wait()
        return number


async def ask(port: int, wish: Wish) -> int:
    """Send a request like a tool. Return the number of the effect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(msgspec.json.encode(wish) + b"\n")
        return msgspec.json.decode(await reader.readline(), type=int)
    finally:
        writer.transport.abort()
