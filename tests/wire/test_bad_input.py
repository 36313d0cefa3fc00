"""Misbehaving servers on real sockets and on every wire: each call ends with one terminal part with a useful message.

Nothing hangs, nothing is raised, and the connection to a server that keeps sending is closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.types import (
    ErrorKind,
    Finish,
    FinishReason,
    LanguageModel,
    ProviderError,
    StreamError,
    StreamPart,
    TextDelta,
)
from rookery.models.connector import Connector, make_call
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCompletions
from rookery.testing.fake_responses import FakeResponses
from tests.eventually import until
from tests.llm.raw_server import Connection, Handler, answer, answering, chunk, serving, stream_head
from tests.models.connect_rig import KEY, ready_model
from tests.wire.difficult_prompts import user

HELLO = Prompt((user("Hello."),))
KINDS = {
    "anthropic": ("anthropic", "claude-opus-5-5"),
    "responses": ("openai", "gpt-6"),
    "completions": ("openai_compat", "qwen"),
}
# One piece of text in the form of each wire, with a placeholder for the words.
DELTAS = {
    "anthropic": (
        b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}\n\n',
    ),
    "responses": (
        b'data: {"type":"response.created","response":{"id":"r"}}\n\n'
        b'data: {"type":"response.output_item.added","output_index":0,"item":{"id":"i","type":"message"}}\n\n',
        b'data: {"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0,'
        b'"delta":"%b"}\n\n',
    ),
    "completions": (b"", b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'),
}
ENDINGS = {
    "anthropic": b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'data: {"type":"message_stop"}\n\n',
    "responses": b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}\n\n',
    "completions": b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
}
WHOLE = {
    "anthropic": b'{"type":"message","id":"m","role":"assistant","content":[{"type":"text","text":"Hi"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}',
    "responses": b'{"id":"r","object":"response","status":"completed","output":[{"id":"i","type":"message",'
    b'"role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]}]}',
    "completions": b'{"id":"c","choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}]}',
}
JSON = "application/json"
# Limit of waits that should end much sooner, so that a test fails instead of hanging.
LIMIT_SECONDS = 30.0
# A cancelled call awaits nothing, which takes one pass of the event loop.
MAX_TURNS = 5


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    connector = Connector()
    yield connector
    await connector.close()


@pytest.fixture(params=KINDS)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def model_at(base_url: str, wire: str, connector: Connector, key: str = KEY) -> LanguageModel:
    type_, model = KINDS[wire]
    made = await connector.model(ready_model(type_, model, base_url=base_url, key=key))
    assert not isinstance(made, ProviderError)
    return made


async def ask(base_url: str, wire: str, connector: Connector, key: str = KEY) -> list[StreamPart]:
    """Return all parts of one call. Fail if they do not end."""
    type_, model = KINDS[wire]
    ready = ready_model(type_, model, base_url=base_url, key=key)
    asked = await model_at(base_url, wire, connector, key)
    async with asyncio.timeout(20):
        parts = [part async for part in asked.stream(make_call(ready, asked, prompt=HELLO))]
    assert [type(part) in (Finish, StreamError) for part in parts] == [False] * (len(parts) - 1) + [True]
    return parts


async def error_from(reply: bytes, wire: str, connector: Connector) -> ProviderError:
    async with serving(answering(reply)) as server:
        return error_of(await ask(f"{server.url}/v1", wire, connector))


def error_of(parts: list[StreamPart]) -> ProviderError:
    """Return the error at the end. Check that it names the provider and a remedy, and shows no HTML page and no key."""
    last = parts[-1]
    assert isinstance(last, StreamError), parts
    error = last.error
    assert "Acme" in error.message
    assert re.search(r"\. (Check|Try again|Look at)\b", error.message), error.message
    assert KEY not in repr(error)
    assert "<" not in (error.detail or "")
    return error


# Refusals


async def test_wrong_key_says_to_check_the_key(wire: str, connector: Connector) -> None:
    fakes = {"anthropic": FakeAnthropic, "responses": FakeResponses, "completions": FakeCompletions}
    fake = fakes[wire](api_key="another key")

    async with fake.listening() as url:
        error = error_of(await ask(f"{url}/v1", wire, connector))

    assert (error.kind, error.retryable, error.status) == (ErrorKind.AUTH, False, 401)
    assert "Check the key" in error.message


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"<html><h1>Not Found</h1>", status="404 Not Found", content_type="text/html"),
        answer(b'{"detail":"Not Found"}', status="404 Not Found", content_type=JSON),
        answer(b"404 page not found\n", status="404 Not Found", content_type="text/plain"),
        answer(b"", status="404 Not Found", content_type=""),
    ],
)
async def test_wrong_base_url_says_to_check_it(reply: bytes, wire: str, connector: Connector) -> None:
    error = await error_from(reply, wire, connector)

    assert (error.kind, error.retryable) == (ErrorKind.CONFIG, False)
    assert "base URL" in error.message


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"", status="405 Method Not Allowed", content_type="text/html"),
        answer(b"", status="302 Found", extra="location: https://elsewhere.example/login?next=x\r\n"),
        answer(b"<!doctype html><title>Welcome</title>", content_type="text/html; charset=utf-8"),
        answer(b"<!doctype html><title>Welcome</title>", content_type="text/plain"),
        answer(b"\x89PNG\r\n\x1a\n\x00\xff", content_type="image/png"),
        answer(b"ok", content_type="text/plain"),
    ],
)
async def test_something_else_at_the_address_says_to_check_the_base_url(
    reply: bytes, wire: str, connector: Connector
) -> None:
    assert "base URL" in (await error_from(reply, wire, connector)).message


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"Slow down.","type":"rate_limit_error"}}', ErrorKind.RATE_LIMIT),
        (b'{"error":{"message":"No such key.","type":"authentication_error"}}', ErrorKind.AUTH),
        (b'{"error":{"message":"Broken.","code":"server_error"}}', ErrorKind.GENERIC),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Busy."}}', ErrorKind.OVERLOADED),
        (b'{"error":"overloaded"}', ErrorKind.OVERLOADED),
    ],
)
async def test_error_with_status_200_is_told_like_any_other(
    body: bytes, kind: ErrorKind, wire: str, connector: Connector
) -> None:
    assert (await error_from(answer(body, content_type=JSON), wire, connector)).kind is kind
    assert (await error_from(answer(b"data: " + body + b"\n\n"), wire, connector)).kind is kind


# Invalid answers


async def test_server_that_ignores_stream_is_understood(wire: str, connector: Connector) -> None:
    async with serving(answering(answer(WHOLE[wire], content_type=JSON))) as server:
        parts = await ask(f"{server.url}/v1", wire, connector)

    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "Hi"
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.STOP


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b"5", b'"text"', b"{not json", b'{"id": "\xff\xfe"}', b"[" * 100_000, b"\x00\x01"],
    ids=["empty", "null", "list", "object", "number", "text", "broken", "invalid UTF-8", "deep", "binary"],
)
async def test_json_that_is_no_answer_is_an_error(body: bytes, wire: str, connector: Connector) -> None:
    error = await error_from(answer(body, content_type=JSON), wire, connector)

    assert error.kind in (ErrorKind.GENERIC, ErrorKind.TIMEOUT)


@pytest.mark.parametrize(
    "data",
    [b"null", b"[]", b"5", b'"text"', b"{not json", b'{"type": "\xff\xfe"}', b"[" * 100_000, b"\x00\x01"],
    ids=["null", "list", "number", "text", "broken", "invalid UTF-8", "deep", "binary"],
)
async def test_event_that_is_none_is_a_retryable_error(data: bytes, wire: str, connector: Connector) -> None:
    error = await error_from(answer(b"data: " + data + b"\n\n"), wire, connector)

    assert error.retryable


async def test_invalid_utf8_in_the_middle_ends_the_answer_behind_what_came_before(
    wire: str, connector: Connector
) -> None:
    opening, delta = DELTAS[wire]

    async with serving(answering(answer(opening + delta % b"Hi" + delta % b"\xff\xfe\xfd"))) as server:
        parts = await ask(f"{server.url}/v1", wire, connector)

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hi"]
    assert error_of(parts).retryable


@pytest.mark.parametrize("body", [b"", b"\n\n", b": only comments\n\n", b"event: ping\n\n"])
async def test_empty_stream_is_an_answer_that_broke_off(body: bytes, wire: str, connector: Connector) -> None:
    error = await error_from(answer(body), wire, connector)

    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)


# Too much


async def test_event_beyond_32_mib_is_refused_and_its_server_left(wire: str, connector: Connector) -> None:
    opening, delta = DELTAS[wire]
    start, _, _ = delta.partition(b"%b")

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(opening + delta % b"Hi") + chunk(start))
        piece = chunk(b"x" * 1_048_576)
        try:
            while True:
                await connection.send(piece)
        except ConnectionError:
            connection.lost.set()

    async with serving(only_posts(handle)) as server:
        parts = await ask(f"{server.url}/v1", wire, connector)
        await asyncio.wait_for(lost(server.connections), LIMIT_SECONDS)

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hi"]
    assert "larger than" in (error_of(parts).detail or "")


async def test_json_beyond_32_mib_is_refused(wire: str, connector: Connector) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        try:
            await connection.send(stream_head(content_type=JSON) + chunk(b'{"a":"'))
            while True:
                await connection.send(chunk(b"x" * 1_048_576))
        except ConnectionError:
            connection.lost.set()

    async with serving(only_posts(handle)) as server:
        parts = await ask(f"{server.url}/v1", wire, connector)
        await asyncio.wait_for(lost(server.connections), LIMIT_SECONDS)

    assert "larger than" in (error_of(parts).detail or "")


def only_posts(handle: Handler) -> Handler:
    """Answer requests for information about the model with 404, because they are not tested here."""

    async def sorted_out(connection: Connection) -> None:
        if (await connection.reader.readexactly(4)) == b"GET ":
            await connection.read_request()
            await connection.send(answer(b"", status="404 Not Found", extra="connection: close\r\n"))
            connection.lost.set()
            return
        await handle(connection)

    return sorted_out


async def lost(connections: list[Connection]) -> None:
    for connection in connections:
        await connection.lost.wait()


def endless(piece: bytes, *, opening: bytes = b"") -> Handler:
    """Send the piece forever. The end of the connection is detected meanwhile."""

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + (chunk(opening) if opening else b""))
        gone = asyncio.create_task(connection.wait_until_lost())
        try:
            while not connection.lost.is_set():
                await connection.send(chunk(piece))
                await asyncio.sleep(0)
        except ConnectionError:
            connection.lost.set()
        finally:
            await gone

    return only_posts(handle)


async def stalling(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(stream_head())
    await connection.wait_until_lost()


async def silent(connection: Connection) -> None:
    await connection.read_request()
    await connection.wait_until_lost()


async def cancelled_after(count: int, handler: Handler, wire: str, connector: Connector) -> list[StreamPart]:
    """Read some parts, cancel while waiting for more, and check that the connection is closed within a few passes of
    the loop.

    Passes are counted and not time, because a busy machine makes them longer, but not more.
    """
    seen: list[StreamPart] = []
    reached = asyncio.Event()

    async with serving(handler) as server:
        type_, name = KINDS[wire]
        ready = ready_model(type_, name, base_url=f"{server.url}/v1")
        model = await model_at(f"{server.url}/v1", wire, connector)

        async def read() -> None:
            async for part in model.stream(make_call(ready, model, prompt=HELLO)):
                seen.append(part)
                if len(seen) >= count:
                    reached.set()

        task = asyncio.create_task(read())
        if count:
            await asyncio.wait_for(reached.wait(), LIMIT_SECONDS)
        else:
            await until(lambda: server.connections)
        task.cancel()
        turns = 0
        while not task.done() and turns < MAX_TURNS:
            turns += 1
            await asyncio.sleep(0)
        assert task.cancelled(), f"still running after {turns} turns"
        await asyncio.wait_for(lost(server.connections), LIMIT_SECONDS)
    return seen


async def test_endless_answer_is_left_when_it_is_cancelled(wire: str, connector: Connector) -> None:
    opening, delta = DELTAS[wire]

    # Parts are merged while they wait for the next read of the socket. Twenty parts are hundreds of pieces.
    seen = await cancelled_after(20, endless(delta % b"on and on", opening=opening), wire, connector)

    assert any(isinstance(part, TextDelta) for part in seen)


@pytest.mark.parametrize("piece", [b": ping\n\n", b"event: ping\ndata: {}\n\n: x\n\n", b"\n\n"])
async def test_endless_pings_are_left_when_the_call_is_cancelled(piece: bytes, wire: str, connector: Connector) -> None:
    seen = await cancelled_after(0, endless(piece), wire, connector)

    assert seen == [] or isinstance(seen[-1], StreamError)


@pytest.mark.parametrize("handler", [silent, stalling])
async def test_silent_server_is_left_when_the_call_is_cancelled(
    handler: Handler, wire: str, connector: Connector
) -> None:
    assert await cancelled_after(0, only_posts(handler), wire, connector) == []


async def test_server_that_goes_on_behind_the_end_is_left(wire: str, connector: Connector) -> None:
    opening, delta = DELTAS[wire]
    handler = endless(delta % b"more", opening=opening + delta % b"Hi" + ENDINGS[wire])

    async with serving(handler) as server:
        parts = await ask(f"{server.url}/v1", wire, connector)
        await asyncio.wait_for(lost(server.connections), LIMIT_SECONDS)

    assert [part.text for part in parts if isinstance(part, TextDelta)] == ["Hi"]
    assert isinstance(parts[-1], Finish)
