"""Requests that are too slow or too large, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from rookery.server.listener import serving
from rookery.server.request_timeouts import MAX_HEAD_BYTES, TimedHttpProtocol
from tests.eventually import until

HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


class Hasty(TimedHttpProtocol):
    _head_seconds = 0.3
    _body_seconds = 0.3


class Reserved(TimedHttpProtocol):
    _max_unauthenticated = 2


class Counter:
    """An application that reads the body and records its length; None if the client disconnected before its end."""

    def __init__(self) -> None:
        self.bodies: list[int | None] = []
        self.got = 0
        self.begun = 0
        # Requests for /held wait for `go_on`. The clients of /long do not read.
        self.held = 0
        self.go_on = asyncio.Event()
        self.stuck = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.got = 0
        self.begun += 1
        if scope["path"] == "/held":
            self.held += 1
            await self.go_on.wait()
        if scope["path"] == "/known" or (scope["type"] == "websocket" and scope["path"] == "/held"):
            # Absent on a connection that is already authenticated.
            scope.get("rookery.known", lambda: None)()
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close" if scope["path"] == "/refused" else "websocket.accept"})
            return await self._until_gone(receive)
        if scope["path"] == "/long":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            # More than the buffers of both sides hold; the next send waits for the client to read.
            await send({"type": "http.response.body", "body": bytes(32 * 1024 * 1024), "more_body": True})
            self.stuck += 1
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.bodies.append(None)
                return
            self.got += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        self.bodies.append(self.got)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def head(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        async with asyncio.timeout(10):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[Client]:
        """Open another connection to the same server."""
        client = Client(*await asyncio.open_connection(*self._writer.get_extra_info("peername")))
        yield client
        client.close()
        with suppress(ConnectionError):
            await client._writer.wait_closed()


@asynccontextmanager
async def open_door(application: Any, **options: Any) -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with serving(application, listening, **options):
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            yield client
            client.close()


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with open_door(counter := Counter(), http=Hasty) as client:
        for body in (b"", b"abc"):
            await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert await client.answer() == (200, b"ok")

    assert counter.bodies == [0, 3]


async def test_header_block_that_is_too_long_is_refused_with_a_reason() -> None:
    async with open_door(counter := Counter()) as client:
        await client.send(HEAD + b"X-Long: " + b"a" * (MAX_HEAD_BYTES + 8192) + b"\r\n\r\n")

        status, body = await client.answer()

    told = json.loads(body)
    assert (status, told["code"]) == (431, "headers_too_large")
    assert told["message"] == "The header block is longer than 32 KiB."
    assert len(told["request_id"]) == 16
    assert counter.bodies == []


async def test_header_block_of_the_longest_kind_is_taken() -> None:
    async with open_door(Counter()) as client:
        await client.send(HEAD + b"X-Long: " + b"a" * (MAX_HEAD_BYTES - 1024) + b"\r\n\r\n")

        assert await client.answer() == (200, b"ok")


async def test_malformed_request_is_refused_in_the_usual_form() -> None:
    async with open_door(Counter()) as client:
        await client.send(b"\x16\x03\x01 hello\r\n\r\n")

        status, body = await client.answer()

    assert (status, json.loads(body)["code"]) == (400, "malformed")


async def test_head_that_does_not_end_is_given_up() -> None:
    async with open_door(counter := Counter(), http=Hasty) as client:
        await client.send(HEAD)

        said = await client.rest()

    assert said.startswith(b"HTTP/1.1 408 ")
    assert counter.bodies == []


async def test_connection_that_says_nothing_is_closed() -> None:
    class Silent(TimedHttpProtocol):
        _head_seconds = 0.3  # its body has the usual time limit

    async with open_door(Counter(), http=Silent) as client:
        assert await client.rest() == b""


async def test_body_that_does_not_come_is_given_up_and_its_request_ends() -> None:
    async with open_door(counter := Counter(), http=Hasty) as client:
        await client.send(HEAD + b"Content-Length: 1000\r\n\r\nabc")

        assert await client.rest() == b""
        await until(lambda: counter.bodies == [None])


async def test_long_body_may_take_longer_if_it_keeps_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.server.request_timeouts.BYTES_PER_SECOND", 1000)
    loop = asyncio.get_running_loop()
    async with open_door(counter := Counter(), http=Hasty) as client:
        began = loop.time()
        await client.send(HEAD + b"Content-Length: 2001\r\n\r\n" + b"a" * 2000)
        await until(lambda: counter.got == 2000 and loop.time() - began > 2 * Hasty._body_seconds)
        await client.send(b"b")

        assert await client.answer() == (200, b"ok")

    assert counter.bodies == [2001]


async def test_head_that_comes_byte_by_byte_gets_no_longer_for_it() -> None:
    async with open_door(counter := Counter(), http=Hasty) as client:
        said = asyncio.ensure_future(client.head())
        while not said.done():
            with suppress(ConnectionError):
                await client.send(b"G")
            await asyncio.wait([said], timeout=0.02)

        assert (await said).startswith(b"HTTP/1.1 408 ")
    assert counter.bodies == []


async def fill(first: Client, stack: AsyncExitStack, sent: bytes) -> list[Client]:
    """Open connections up to the limit; each sends this data."""
    others = [await stack.enter_async_context(first.beside()) for _ in range(Reserved._max_unauthenticated - 1)]
    for client in (first, *others):
        await client.send(sent)
    return others


# The data that an unauthenticated client has sent, and the responses it got, when another client connects.
IDLE_WITH = {
    "nothing": b"",
    "half_a_head": HEAD,
    "an_answered_request": b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half_a_body": HEAD + b"Content-Length: 10\r\n\r\nabc",
}


@pytest.mark.parametrize("sent", IDLE_WITH.values(), ids=IDLE_WITH)
async def test_new_unauthenticated_connection_replaces_the_oldest_idle_one(sent: bytes) -> None:
    counter = Counter()
    async with open_door(counter, http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        (second,) = await fill(first, stack, sent)
        if b"GET" in sent:
            for client in (first, second):
                await client.answer()
        elif sent:
            # The server has read the data before the next connection arrives.
            await until(lambda: counter.begun == 2 if b"abc" in sent else True)
        third = await stack.enter_async_context(first.beside())
        await third.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert (await third.answer())[0] == 200
        assert await first.rest() == b""
        if b"GET" in sent:
            await second.send(sent)
            assert (await second.answer())[0] == 200


async def test_unauthenticated_connection_that_does_not_read_the_answer_is_replaced() -> None:
    counter = Counter()
    async with open_door(counter, http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        await fill(first, stack, b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: counter.stuck == 2)
        third = await stack.enter_async_context(first.beside())
        await third.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert (await third.answer())[0] == 200


async def test_unauthenticated_connection_is_refused_if_all_others_are_busy() -> None:
    counter = Counter()
    async with open_door(counter, http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        (second,) = await fill(first, stack, b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: counter.held == 2)
        third = await stack.enter_async_context(first.beside())
        refused = await third.rest()
        counter.go_on.set()
        for client in (first, second):
            assert (await client.answer())[0] == 200

    head, _, body = refused.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 5" in head.lower()
    assert json.loads(body)["code"] == "rate_limited"


async def test_connection_with_a_credential_counts_no_more_and_is_never_evicted() -> None:
    known = b"GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with open_door(Counter(), http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        members = [first]
        await first.send(known)
        assert (await first.answer())[0] == 200
        for _ in range(4):
            members.append(await stack.enter_async_context(first.beside()))
            await members[-1].send(known)
            assert (await members[-1].answer())[0] == 200
        for client in members:
            await client.send(known)
            assert (await client.answer())[0] == 200


UPGRADE = (
    b"GET /%s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_websocket_counts_until_its_credential_was_found_good() -> None:
    counter = Counter()
    async with open_door(counter, http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        (second,) = await fill(first, stack, UPGRADE % b"held")
        await until(lambda: counter.held == 2)
        third = await stack.enter_async_context(first.beside())
        assert (await third.rest()).startswith(b"HTTP/1.1 429 ")
        counter.go_on.set()  # both are authenticated now
        for client in (first, second):
            assert (await client.head()).startswith(b"HTTP/1.1 101 ")
        (fifth,) = await fill(await stack.enter_async_context(first.beside()), stack, UPGRADE % b"known")
        assert (await fifth.head()).startswith(b"HTTP/1.1 101 ")


async def test_websocket_that_was_refused_leaves_its_place() -> None:
    counter = Counter()
    async with open_door(counter, http=Reserved, forwarded_allow_ips=[]) as first, AsyncExitStack() as stack:
        (second,) = await fill(first, stack, UPGRADE % b"refused")
        for client in (first, second):
            assert (await client.rest()).startswith(b"HTTP/1.1 403 ")
        await fill(await stack.enter_async_context(first.beside()), stack, UPGRADE % b"held")

        await until(lambda: counter.held == 2)
        counter.go_on.set()


async def test_trusted_proxy_speaks_for_many() -> None:
    async with (
        open_door(Counter(), http=Reserved, forwarded_allow_ips=["127.0.0.0/8"]) as first,
        first.beside() as second,
        first.beside() as third,
    ):
        for client in (first, second, third):
            await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await client.answer())[0] == 200
