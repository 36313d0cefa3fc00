"""The driver over real sockets: every fault of a server gives one terminal part, without the key."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta

import msgspec
import pytest

from rookery.llm.http import HttpClients
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    LanguageModel,
    ResponseStarted,
    StreamPart,
    TextDelta,
    Warnings,
)
from rookery.llm.wire import Event
from rookery.llm.wire_model import USER_AGENT, Auth
from rookery.runtime.secret_str import SecretStr
from tests.llm.model_rig import (
    CALL,
    DONE,
    HELLO,
    ID,
    KEY,
    STALE,
    WARNING,
    ask,
    drain,
    error_of,
    model_at,
    recording,
)
from tests.llm.raw_server import END, Connection, RawRequest, answer, answering, chunk, serving, stream_head
from tests.llm.text_wire import WordsFold, WordsFormat


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


async def test_events_become_parts_and_the_answer_ends_once(clients: HttpClients) -> None:
    head = stream_head(extra="x-request-id: req_7\r\n")

    parts = await ask(head + chunk(HELLO) + chunk(HELLO + DONE + HELLO) + END, clients)

    assert parts[0] == ResponseStarted("resp_1", "words-1", "req_7")
    assert parts[1:3] == [TextDelta("0", "hello")] * 2
    assert isinstance(parts[3], Finish)
    assert len(parts) == 4


async def test_request_carries_our_headers_and_the_key_wins(clients: HttpClients) -> None:
    seen: list[RawRequest] = []
    call = msgspec.structs.replace(CALL, headers={"X-Rookery-Chat-Id": "c1", "x-wire": "call"})
    extra = {"User-Agent": "admin", "AUTHORIZATION": "stolen", "X-Wire": "admin", "Content-Length": "1"}

    async with serving(recording(seen, answer(DONE), answer(DONE))) as server:
        await drain(model_at(server.url, clients), call)
        await drain(model_at(server.url, clients, extra_headers=extra), call)

    plain, overridden = seen
    assert plain.line == "POST /v1/words HTTP/1.1"
    assert plain.headers["user-agent"] == USER_AGENT
    assert plain.headers["accept"] == "text/event-stream"
    assert plain.headers["content-type"] == "application/json"
    assert plain.headers["authorization"] == f"Bearer {KEY}"
    assert plain.headers["x-wire"] == "call"
    assert plain.headers["x-rookery-chat-id"] == "c1"
    assert "x-client-request-id" not in plain.headers
    assert overridden.headers["user-agent"] == overridden.headers["x-wire"] == "admin"
    assert overridden.headers["authorization"] == f"Bearer {KEY}"
    assert overridden.headers["content-length"] == str(len(overridden.body))


async def test_responses_wire_names_its_own_request(clients: HttpClients) -> None:
    seen: list[RawRequest] = []

    async with serving(recording(seen, answer(DONE))) as server:
        await drain(model_at(server.url, clients, wire="responses", auth=Auth("api-key", SecretStr(KEY))))

    assert seen[0].headers["x-client-request-id"] == str(ID)
    assert seen[0].headers["api-key"] == KEY


async def test_warnings_come_once_and_first(clients: HttpClients) -> None:
    refused = answer(
        b'{"error":{"message":"signature of thinking"}}', status="400 Bad", content_type="application/json"
    )

    async with serving(answering(refused, answer(HELLO + DONE))) as server:
        parts = await drain(model_at(server.url, clients, warnings=(WARNING,)))

    assert parts[0] == Warnings((WARNING,))
    assert sum(isinstance(part, Warnings) for part in parts) == 1
    assert isinstance(parts[-1], Finish)


async def test_warnings_come_before_an_error_too(clients: HttpClients) -> None:
    async with serving(answering(answer(b"", status="401 No"))) as server:
        parts = await drain(model_at(server.url, clients, warnings=(WARNING,)))

    assert isinstance(parts[0], Warnings)
    assert error_of(parts).kind is ErrorKind.AUTH


@pytest.mark.parametrize(
    ("status", "kind", "is_retryable"),
    [
        ("302 Found", ErrorKind.GENERIC, False),
        ("400 Bad Request", ErrorKind.CONFIG, False),
        ("401 Unauthorized", ErrorKind.AUTH, False),
        ("404 Not Found", ErrorKind.CONFIG, False),
        ("418 Teapot", ErrorKind.GENERIC, False),
        ("429 Too Many", ErrorKind.RATE_LIMIT, True),
        ("500 Oops", ErrorKind.GENERIC, True),
        ("503 Busy", ErrorKind.TIMEOUT, True),
        ("529 Overloaded", ErrorKind.OVERLOADED, True),
    ],
)
async def test_status_becomes_an_error_of_its_kind(
    clients: HttpClients, status: str, kind: ErrorKind, is_retryable: bool
) -> None:
    body = b'{"error":{"message":"the key %s is not liked"}}' % KEY.encode()
    extra = "request-id: req_9\r\nretry-after: 7\r\n"

    error = error_of(await ask(answer(body, status=status, content_type="application/json", extra=extra), clients))

    assert (error.kind, error.retryable, error.status) == (kind, is_retryable, int(status[:3]))
    assert error.detail == "the key [REDACTED:api_key] is not liked"
    assert error.request_id == "req_9"
    assert error.retry_after == timedelta(seconds=7)


async def test_page_of_a_gateway_is_not_shown(clients: HttpClients) -> None:
    page = b"<html><body>nginx</body></html>"

    refused = error_of(await ask(answer(page, status="502 Bad", content_type="text/html"), clients))
    accepted = error_of(await ask(answer(page, content_type="text/html; charset=utf-8"), clients))

    assert (refused.kind, refused.detail) == (ErrorKind.TIMEOUT, None)
    assert (accepted.kind, accepted.retryable) == (ErrorKind.GENERIC, True)
    assert accepted.detail is not None
    assert "nginx" not in accepted.detail


async def test_answer_of_another_type_is_told_with_its_beginning(clients: HttpClients) -> None:
    error = error_of(await ask(answer(b"upstream " * 100, content_type="text/plain"), clients))

    assert (error.kind, error.retryable) == (ErrorKind.GENERIC, True)
    assert error.detail is not None
    assert "upstream" in error.detail
    assert len(error.detail) < 250


async def test_error_with_status_200_is_an_error(clients: HttpClients) -> None:
    body = b'{"error":{"type":"overloaded_error","message":"busy"}}'

    error = error_of(await ask(answer(body, content_type="application/json", extra="request-id: r1\r\n"), clients))

    assert (error.kind, error.retryable, error.request_id) == (ErrorKind.OVERLOADED, True, "r1")


async def test_server_that_ignores_streaming_is_understood(clients: HttpClients) -> None:
    parts = await ask(answer(b'{"text":"all at once"}', content_type="application/json; charset=utf-8"), clients)

    assert parts[1] == TextDelta("0", "all at once")
    assert isinstance(parts[-1], Finish)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
async def test_json_that_is_none_is_a_retryable_error(clients: HttpClients, body: bytes) -> None:
    error = error_of(await ask(answer(body, content_type="application/json"), clients))

    assert (error.kind, error.retryable) == (ErrorKind.GENERIC, True)


@pytest.mark.parametrize(
    "data", [b"data: not json\n\n", b'data: {"text":"\xff"}\n\n', b"data: 7\n\n", b'data: {"a":\n\n']
)
async def test_event_that_is_not_json_is_a_retryable_error_after_what_came_before(
    clients: HttpClients, data: bytes
) -> None:
    parts = await ask(answer(HELLO + data + DONE), clients)

    assert parts[1] == TextDelta("0", "hello")
    assert (error_of(parts).kind, error_of(parts).retryable) == (ErrorKind.GENERIC, True)


async def test_error_inside_a_stream_has_the_request_id_and_not_the_key(clients: HttpClients) -> None:
    said = b'data: {"error":{"type":"rate_limit_error","message":"slow down, %s"}}\n\n' % KEY.encode()

    error = error_of(await ask(answer(HELLO + said, extra="x-request-id: r2\r\n"), clients))

    assert (error.kind, error.request_id) == (ErrorKind.RATE_LIMIT, "r2")
    assert error.detail == "slow down, [REDACTED:api_key]"


async def test_stream_cut_at_any_byte_is_a_retryable_timeout(clients: HttpClients) -> None:
    whole = stream_head() + chunk(HELLO) + chunk(DONE) + END
    first_complete = len(stream_head() + chunk(HELLO)) + whole[len(stream_head() + chunk(HELLO)) :].index(b"\n\n") + 2

    for size in range(len(whole)):

        async def handle(connection: Connection, size: int = size) -> None:
            await connection.read_request()
            await connection.send(whole[:size])

        async with serving(handle) as server:
            parts = await drain(model_at(server.url, clients))

        if size >= first_complete:
            assert isinstance(parts[-1], Finish), size
        else:
            assert (error_of(parts).kind, error_of(parts).retryable) == (ErrorKind.TIMEOUT, True), size


async def test_orderly_end_without_a_terminal_event_is_a_retryable_timeout(clients: HttpClients) -> None:
    error = error_of(await ask(answer(HELLO), clients))

    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)
    assert error.detail == "stream closed before the response completed"


async def test_last_event_counts_without_its_blank_line(clients: HttpClients) -> None:
    parts = await ask(answer(HELLO + DONE.rstrip()), clients)

    assert isinstance(parts[-1], Finish)


async def test_reset_is_a_retryable_timeout(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        connection.reset()

    async with serving(handle) as server:
        error = error_of(await drain(model_at(server.url, clients)))

    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)


async def test_refused_connection_is_a_retryable_timeout(clients: HttpClients) -> None:
    async with serving(answering(b"")) as server:
        url = server.url

    error = error_of(await drain(model_at(url, clients)))

    assert (error.kind, error.retryable) == (ErrorKind.TIMEOUT, True)


async def test_event_of_32_mib_is_refused_and_the_endless_server_left(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b"data: "))
        piece = chunk(b"x" * 1_048_576)
        try:
            while True:
                await connection.send(piece)
        except ConnectionError:
            connection.lost.set()

    async with serving(handle) as server:
        error = error_of(await drain(model_at(server.url, clients)))
        await asyncio.wait_for(server.connections[0].lost.wait(), 1)

    assert (error.kind, error.retryable) == (ErrorKind.GENERIC, True)


async def test_event_just_under_32_mib_is_read(clients: HttpClients) -> None:
    text = b"x" * (32 * 1_048_576 - 30)

    parts = await ask(answer(b'data: {"text":"%s"}\n\n' % text + DONE), clients)

    assert isinstance(parts[1], TextDelta)
    assert len(parts[1].text) == len(text)


async def test_endless_comments_are_not_parts(clients: HttpClients) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(b": ping\n\n") * 10_000 + chunk(DONE) + END)

    async with serving(handle) as server:
        parts = await drain(model_at(server.url, clients))

    assert len(parts) == 2


async def stall(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(stream_head() + chunk(HELLO))
    await connection.wait_until_lost()


async def test_closing_the_generator_closes_the_socket_within_a_second(clients: HttpClients) -> None:
    async with serving(stall) as server:
        async with aclosing(model_at(server.url, clients).stream(CALL)) as parts:
            await anext(parts)
        await asyncio.wait_for(server.connections[0].lost.wait(), 1)


async def test_cancelling_closes_the_socket_within_a_second(clients: HttpClients) -> None:
    reached = asyncio.Event()

    async def consume(model: LanguageModel) -> None:
        async for part in model.stream(CALL):
            if isinstance(part, TextDelta):
                reached.set()

    async with serving(stall) as server:
        task = asyncio.create_task(consume(model_at(server.url, clients)))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.connections[0].lost.wait(), 1)


async def test_connection_is_used_again_after_a_whole_answer(clients: HttpClients) -> None:
    async with serving(answering(stream_head() + chunk(HELLO) + chunk(DONE) + END)) as server:
        model = model_at(server.url, clients)
        for _ in range(3):
            await drain(model)
        async with aclosing(model.stream(CALL)) as parts:
            async for part in parts:
                if isinstance(part, Finish):
                    break
        await drain(model)

        assert len(server.connections) == 1


# The key


async def test_key_is_in_no_representation_log_or_exception(
    clients: HttpClients, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    auth = Auth("x-api-key", SecretStr(KEY))
    async with serving(answering(STALE)) as server:
        model = model_at(server.url, clients, auth=auth, extra_headers={"X-Gateway-Token": KEY})
        await drain(model)

    async with serving(answering(b"garbage\r\n\r\n")) as server:
        await drain(model_at(server.url, clients, auth=auth))

    assert KEY not in repr(auth) + str(auth) + repr(model) + str(model)
    assert KEY not in caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    assert any(record.message == "replay_repaired" for record in caplog.records)


async def test_bug_in_a_wire_is_raised_without_the_key_and_closes_the_connection(clients: HttpClients) -> None:
    class BrokenFold(WordsFold):
        def feed(self, event: Event) -> Sequence[StreamPart]:
            raise ZeroDivisionError

    class BrokenFormat(WordsFormat):
        def fold(self, call: Call) -> WordsFold:
            return BrokenFold()

    async with serving(stall) as server:
        model = model_at(server.url, clients)
        model._format = BrokenFormat()
        with pytest.raises(ZeroDivisionError) as caught:
            await drain(model)

        await asyncio.wait_for(server.connections[0].lost.wait(), 1)
    assert KEY not in "".join(traceback.format_exception(caught.value))
