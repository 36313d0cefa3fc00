"""Requests that come too slowly or are too large, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rookery.stream.arrival import MAX_HEAD_BYTES, TimelyRequests
from rookery.stream.listening import serving
from rookery.stream.ws import Receive, Scope, Send
from tests.waiting import until

HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


class Hasty(TimelyRequests):
    _arrival_seconds = 0.3


class Reserved(TimelyRequests):
    _max_guests = 2


class Counter:
    """An application that reads the body and says how long it was; None when the client left before its end."""

    def __init__(self) -> None:
        self.bodies: list[int | None] = []
        self.got = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.got = 0
        if scope["path"] == "/known":
            scope["rookery.known"]()
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

    async def rest(self) -> bytes:
        """Everything until the server hangs up."""
        async with asyncio.timeout(10):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[Client]:
        """Another connection to the same server."""
        client = Client(*await asyncio.open_connection(*self._writer.get_extra_info("peername")))
        yield client
        client.close()
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


async def test_what_is_no_request_is_refused_in_the_usual_form() -> None:
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
    async with open_door(Counter(), http=Hasty) as client:
        assert await client.rest() == b""


async def test_body_that_does_not_come_is_given_up_and_its_request_ends() -> None:
    async with open_door(counter := Counter(), http=Hasty) as client:
        await client.send(HEAD + b"Content-Length: 1000\r\n\r\nabc")

        assert await client.rest() == b""
        await until(lambda: counter.bodies == [None])


async def test_long_body_may_take_longer_if_it_keeps_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.stream.arrival.BYTES_PER_SECOND", 1000)
    loop = asyncio.get_running_loop()
    async with open_door(counter := Counter(), http=Hasty) as client:
        began = loop.time()
        await client.send(HEAD + b"Content-Length: 2001\r\n\r\n" + b"a" * 2000)
        await until(lambda: counter.got == 2000 and loop.time() - began > 2 * Hasty._arrival_seconds)
        await client.send(b"b")

        assert await client.answer() == (200, b"ok")

    assert counter.bodies == [2001]


async def test_address_has_room_for_so_many_connections_of_strangers() -> None:
    options: dict[str, Any] = {"http": Reserved, "forwarded_allow_ips": []}
    known = b"GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with open_door(Counter(), **options) as first:
        await first.send(known.replace(b"known", b"x"))
        await first.answer()
        async with first.beside() as second, first.beside() as third:
            await third.send(known)
            refused = await third.rest()
            await second.send(known)
            assert (await second.answer())[0] == 200
            async with first.beside() as fourth:
                await fourth.send(known)
                assert (await fourth.answer())[0] == 200
            async with first.beside() as fifth:
                await fifth.send(known)
                assert (await fifth.answer())[0] == 200

    head, _, body = refused.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 5" in head.lower()
    assert json.loads(body)["code"] == "rate_limited"


async def test_trusted_proxy_speaks_for_many() -> None:
    async with (
        open_door(Counter(), http=Reserved, forwarded_allow_ips=["127.0.0.0/8"]) as first,
        first.beside() as second,
        first.beside() as third,
    ):
        for client in (first, second, third):
            await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await client.answer())[0] == 200
