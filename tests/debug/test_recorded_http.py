"""Captured exchanges on real sockets: how each kind of end is recorded, and that nothing changes for the consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from rookery.debug.recorded_http import StoredAttempt
from rookery.debug.redaction import BODY_BYTES, MAX_JSON_BYTES, TAIL_BYTES
from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.errors import TransportError
from rookery.llm.http import HttpClients, HttpStream
from rookery.llm.types import Finish, StreamError, StreamPart, Tool
from rookery.models.connector import Connector, make_call
from rookery.testing import FakeAnthropic, FakeCompletions, FakeResponses, fake_anthropic, fake_completions
from rookery.testing.fake_responses import say
from rookery.testing.fake_server import Fault, Scenario, failure
from tests.debug.attempt_rig import CollectingStep, RecordedClients
from tests.eventually import until
from tests.llm.raw_server import END, Connection, Handler, answer, answering, chunk, serving, stream_head
from tests.models.connect_rig import KEY, ready_model
from tests.wire.difficult_prompts import user

EVENT = b'data: {"n": 1}\n\n'
JSON_HEAD = stream_head(content_type="application/json")


@pytest.fixture
def step() -> CollectingStep:
    return CollectingStep()


@pytest.fixture
async def clients(step: CollectingStep) -> AsyncIterator[RecordedClients]:
    clients = RecordedClients(lambda: step)
    yield clients
    await clients.close()


async def post(clients: HttpClients, url: str, body: bytes = b'{"a": 1}') -> HttpStream:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    return await clients.client(url).open(url + "/v1/x?alt=sse", headers=headers, body=body)


async def read_all(stream: HttpStream) -> bytes:
    return b"".join([piece async for piece in stream.chunks()])


def end_of(attempt: StoredAttempt) -> tuple[str, str | None]:
    return str(attempt.status), attempt.error


def body_of(attempt: StoredAttempt) -> str:
    assert attempt.response_body is not None
    return attempt.response_body.data.decode()


async def hang(connection: Connection, data: bytes) -> None:
    """Answer with these bytes, and then send nothing until the client leaves."""
    await connection.read_request()
    await connection.send(data)
    await connection.wait_until_lost()


def hanging(data: bytes) -> Handler:
    return lambda connection: hang(connection, data)


# What is recorded


async def test_attempt_has_the_request_the_answer_and_their_times(
    clients: RecordedClients, step: CollectingStep
) -> None:
    reply = answer(b'{"ok": true}', content_type="application/json", extra="request-id: req_1\r\n")

    async with serving(answering(reply)) as server:
        stream = await post(clients, server.url)
        read = await stream.read(1000)
        stream.close()

    attempt = step.only()
    assert read == b'{"ok": true}'
    assert end_of(attempt) == ("completed", None)
    assert (attempt.number, attempt.method, attempt.path) == (1, "POST", "/v1/x")
    assert attempt.url == f"{server.url}/v1/x?alt=sse"
    assert attempt.request_headers == {"authorization": "[REDACTED]", "content-type": "application/json"}
    assert attempt.request_body.data == b'{"a": 1}'
    assert attempt.response_status == 200
    assert attempt.response_headers["request-id"] == "req_1"
    assert body_of(attempt) == '{"ok": true}'
    assert attempt.ttfb_ms is not None
    assert 0 <= attempt.ttfb_ms <= attempt.duration_ms
    assert attempt.started_at <= attempt.finished_at


async def test_exchange_without_a_step_is_not_recorded(step: CollectingStep) -> None:
    clients = RecordedClients(lambda: None)
    async with serving(answering(answer(EVENT))) as server:
        stream = await post(clients, server.url)
        await read_all(stream)
    await clients.close()

    assert type(stream).__module__ == "rookery.llm.http"
    assert step.records == []


async def test_request_is_sent_as_it_is(clients: RecordedClients) -> None:
    seen = []

    async def handle(connection: Connection) -> None:
        seen.append(await connection.read_request())
        await connection.send(answer(EVENT))

    body = b'{"token": "sk-secret-0123456789", "x": ' + b"1" * 100_000 + b"}"
    async with serving(handle) as server:
        stream = await post(clients, server.url, body)
        await read_all(stream)

    assert seen[0].body == body
    assert seen[0].headers["authorization"] == f"Bearer {KEY}"


async def test_step_that_fails_does_not_fail_the_call(clients: RecordedClients, step: CollectingStep) -> None:
    async with serving(answering(answer(EVENT))) as server:
        step.is_broken_at_end = True
        stream = await post(clients, server.url)
        assert await read_all(stream) == EVENT
        stream.close()
        step.is_broken_at_start = True
        assert await read_all(await post(clients, server.url)) == EVENT

    assert step.records == []


# Every row of the table: how an exchange ends


async def test_no_connection_is_failed(clients: RecordedClients, step: CollectingStep) -> None:
    async with serving(answering(b"")) as server:
        url = server.url
    with pytest.raises(TransportError) as raised:
        await post(clients, url)

    attempt = step.only()
    assert end_of(attempt) == ("failed", str(raised.value))
    assert (attempt.response_status, attempt.response_body, attempt.ttfb_ms) == (None, None, None)


async def test_connection_closed_before_the_headers_is_failed(clients: RecordedClients, step: CollectingStep) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        connection.reset()

    async with serving(handle) as server:
        with pytest.raises(TransportError) as raised:
            await post(clients, server.url)

    assert end_of(step.only()) == ("failed", str(raised.value))


async def test_cancellation_before_the_headers_is_aborted(clients: RecordedClients, step: CollectingStep) -> None:
    arrived = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        arrived.set()
        await connection.wait_until_lost()

    async with serving(handle) as server:
        task = asyncio.create_task(post(clients, server.url))
        await arrived.wait()
        step.reason = "shutdown"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert end_of(step.only()) == ("aborted", "shutdown")


async def test_read_error_is_recorded_at_once(clients: RecordedClients, step: CollectingStep) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head() + chunk(EVENT))
        await asyncio.sleep(0)
        connection.reset()

    async with serving(handle) as server:
        stream = await post(clients, server.url)
        with pytest.raises(TransportError) as raised:
            await read_all(stream)
        assert end_of(step.only()) == ("failed", str(raised.value))
        stream.close()

    assert len(step.records) == 1
    assert body_of(step.only()) in (EVENT.decode(), "")


@pytest.mark.parametrize("body", [EVENT, b""])
@pytest.mark.parametrize("read", ["chunks", "gathered"])
async def test_event_stream_is_recorded_at_its_end_without_a_close(
    clients: RecordedClients, step: CollectingStep, body: bytes, read: str
) -> None:
    async with serving(answering(stream_head() + (chunk(body) if body else b"") + END)) as server:
        stream = await post(clients, server.url)
        next_chunk = stream.chunks().__anext__ if read == "chunks" else stream.gathered
        with suppress(StopAsyncIteration):
            while True:
                await next_chunk()

        assert end_of(step.only()) == ("completed", None)
        assert body_of(step.only()) == body.decode()
        stream.close()

    assert len(step.records) == 1


async def test_error_of_the_close_replaces_the_end_of_an_event_stream(
    clients: RecordedClients, step: CollectingStep
) -> None:
    async with serving(answering(stream_head() + chunk(EVENT) + END)) as server:
        stream = await post(clients, server.url)
        await read_all(stream)

        inner = stream._inner  # type: ignore[attr-defined]
        close, inner_type = inner.close, type(inner)

        class Broken:
            def close(self) -> None:
                close()
                raise OSError("The socket was already closed.")

        stream._inner = Broken()  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="already closed"):
            stream.close()

    assert inner_type.__name__ == "_Stream"
    assert [(record.number, str(record.status)) for record in step.records] == [(1, "completed"), (1, "failed")]
    assert end_of(step.only()) == ("failed", "The socket was already closed.")
    assert body_of(step.only()) == EVENT.decode()


@pytest.mark.parametrize(
    ("reply", "status", "error"),
    [
        (JSON_HEAD + chunk(b'{"a": 1}') + END, "completed", None),
        (JSON_HEAD + chunk(b'{"a": ') + END, "failed", "unexpected_eof"),
        (JSON_HEAD + chunk(b'{"a": 1}{"b": 2}') + END, "failed", "unexpected_eof"),
        (JSON_HEAD + END, "failed", "unexpected_eof"),
        (answer(b'{"a": ', content_type="application/json"), "completed", None),
        (stream_head(content_type="text/plain") + chunk(b"Slow down") + END, "completed", None),
        (JSON_HEAD + chunk(b"[" + b"1," * (MAX_JSON_BYTES)) + END, "completed", None),
    ],
)
async def test_body_that_reached_its_end_is_recorded_at_the_close(
    clients: RecordedClients, step: CollectingStep, reply: bytes, status: str, error: str | None
) -> None:
    async with serving(answering(reply)) as server:
        stream = await post(clients, server.url)
        await read_all(stream)
        assert step.records == []
        stream.close()
        stream.close()

    assert end_of(step.only()) == (status, error)
    assert len(step.records) == 1


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answer_without_a_body_is_completed_although_nothing_is_read(
    clients: RecordedClients, step: CollectingStep, status: str
) -> None:
    async with serving(answering(f"HTTP/1.1 {status}\r\n\r\n".encode())) as server:
        (await post(clients, server.url)).close()

    assert end_of(step.only()) == ("completed", None)


async def test_known_length_that_was_read_is_completed_without_the_end(
    clients: RecordedClients, step: CollectingStep
) -> None:
    async with serving(answering(answer(b"x" * 100, content_type="text/plain"))) as server:
        stream = await post(clients, server.url)
        assert await stream.chunks().__anext__() == b"x" * 100
        stream.close()

    assert end_of(step.only()) == ("completed", None)


async def test_known_length_that_was_not_read_is_failed(clients: RecordedClients, step: CollectingStep) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\n"
    async with serving(hanging(head + b"x" * 99)) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        stream.close()

    assert end_of(step.only()) == ("failed", "unexpected_eof")


@pytest.mark.parametrize(
    ("sent", "end"), [(b'{"a": 1}', ("completed", None)), (b'{"a": ', ("failed", "unexpected_eof"))]
)
async def test_open_json_answer_is_completed_if_its_document_is(
    clients: RecordedClients, step: CollectingStep, sent: bytes, end: tuple[str, str | None]
) -> None:
    async with serving(hanging(JSON_HEAD + chunk(sent))) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        stream.close()

    assert end_of(step.only()) == end


async def test_buffered_rest_of_an_open_json_answer_is_read_after_the_close(
    clients: RecordedClients, step: CollectingStep
) -> None:
    second = asyncio.Event()

    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(JSON_HEAD + chunk(b'{"a": '))
        await second.wait()
        await connection.send(chunk(b"1}"))
        await connection.wait_until_lost()

    async with serving(handle) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        second.set()
        content = stream._inner._response.content  # type: ignore[attr-defined]
        await until(lambda: bool(content._buffer))
        stream.close()

    assert end_of(step.only()) == ("completed", None)
    assert body_of(step.only()) == '{"a": 1}'


async def test_truncated_capture_of_an_open_answer_is_completed(clients: RecordedClients, step: CollectingStep) -> None:
    size = BODY_BYTES + TAIL_BYTES + 1
    async with serving(hanging(stream_head(content_type="text/plain") + chunk(b"word " * (size // 5 + 1)))) as server:
        stream = await post(clients, server.url)
        read = 0
        async for piece in stream.chunks():
            read += len(piece)
            if read >= size:
                break
        stream.close()

    attempt = step.only()
    assert end_of(attempt) == ("completed", None)
    assert attempt.response_body is not None
    assert attempt.response_body.is_truncated


async def test_finish_after_the_last_event_is_completed_and_keeps_the_rest(
    clients: RecordedClients, step: CollectingStep
) -> None:
    async with serving(answering(stream_head() + chunk(EVENT) + chunk(b"data: [DONE]\n\n") + END)) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        await stream.finish()
        stream.close()

    assert end_of(step.only()) == ("completed", None)
    assert body_of(step.only()).endswith("data: [DONE]\n\n")


async def test_finish_of_a_stream_that_stays_open_is_completed(clients: RecordedClients, step: CollectingStep) -> None:
    async with serving(hanging(stream_head() + chunk(EVENT))) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        await stream.finish()

    assert end_of(step.only()) == ("completed", None)


@pytest.mark.parametrize("reason", ["user", "silence_timeout", "shutdown", "lease_lost", None])
async def test_cancelled_read_is_aborted_with_the_reason(
    clients: RecordedClients, step: CollectingStep, reason: str | None
) -> None:
    reading = asyncio.Event()

    async def consume(url: str) -> None:
        stream = await post(clients, url)
        try:
            await stream.chunks().__anext__()
            reading.set()
            await stream.chunks().__anext__()
        finally:
            stream.close()

    async with serving(hanging(stream_head() + chunk(EVENT))) as server:
        task = asyncio.create_task(consume(server.url))
        await reading.wait()
        step.reason = reason
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert end_of(step.only()) == ("aborted", reason or "cancelled")
    assert body_of(step.only()) == EVENT.decode()


async def test_early_close_without_a_cancellation_is_failed(clients: RecordedClients, step: CollectingStep) -> None:
    async with serving(hanging(stream_head() + chunk(EVENT))) as server:
        stream = await post(clients, server.url)
        await stream.chunks().__anext__()
        stream.close()

    assert end_of(step.only()) == ("failed", "unexpected_eof")


async def test_racing_reads_and_closes_record_each_attempt_once(clients: RecordedClients, step: CollectingStep) -> None:
    async def race(url: str, number: int) -> None:
        stream = await post(clients, url)

        async def read() -> None:
            with suppress(TransportError):
                await read_all(stream)

        async def close() -> None:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            stream.close()

        await asyncio.gather(*((read(), close()) if number % 2 else (close(), read())))

    async with serving(answering(stream_head() + chunk(EVENT) * 3 + END)) as server:
        async with asyncio.timeout(30):
            for start in range(0, 200, 20):
                await asyncio.gather(*(race(server.url, start + number) for number in range(20)))

    assert sorted(record.number for record in step.records) == list(range(1, 201))


# Sizes


@pytest.mark.parametrize("pieces", [1, 1000])
async def test_long_stream_keeps_its_beginning_and_its_end(
    clients: RecordedClients, step: CollectingStep, pieces: int
) -> None:
    events = b"".join(b'data: {"n": %d, "text": "word word word"}\n\n' % number for number in range(5000))
    size = len(events) // pieces + 1
    reply = b"".join(chunk(events[start : start + size]) for start in range(0, len(events), size))

    async with serving(answering(stream_head() + reply + END)) as server:
        assert await read_all(await post(clients, server.url)) == events

    attempt = step.only()
    assert attempt.response_body is not None
    assert attempt.response_body.size == len(events)
    lines = body_of(attempt).split("\n")
    (marker,) = [line for line in lines if line.startswith("[TRUNCATED")]
    assert marker.startswith(f"[TRUNCATED {len(events) - BODY_BYTES - TAIL_BYTES} bytes sha256:")
    assert BODY_BYTES + TAIL_BYTES - 200 < len(body_of(attempt)) < BODY_BYTES + TAIL_BYTES + 200
    kept = [json.loads(line[6:])["n"] for line in lines if line.startswith("data: ")]
    assert (kept[0], kept[-1]) == (0, 4999)


async def test_body_of_32_mebibytes_costs_no_more_memory_than_is_kept(
    clients: RecordedClients, step: CollectingStep
) -> None:
    async def handle(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(stream_head())
        for _ in range(32 * 16):
            await connection.send(chunk(b"x" * 65_536))
        await connection.send(END)

    async with serving(handle) as server:
        stream = await post(clients, server.url)
        async for _ in stream.chunks():
            pass

    (record,) = step.records
    assert record.response_body is not None
    assert record.response_body.size == 32 * 1024 * 1024
    assert len(record.response_body.head) + len(record.response_body.tail) == BODY_BYTES + TAIL_BYTES
    assert "[TRUNCATED " in body_of(step.only())


# The three wires


def wires(behavior: Any) -> dict[str, tuple[Any, str, str]]:
    anthropic, responses, completions = FakeAnthropic(api_key=KEY), FakeResponses(), FakeCompletions()
    if isinstance(behavior, Scenario):
        for fake in (anthropic, responses, completions):
            fake.enqueue(behavior)
    else:
        anthropic.answer(fake_anthropic.Answer([fake_anthropic.Text("Hello there.")]))
        responses.answer(say("Hello ", "there."))
        completions.enqueue(fake_completions.Answer(text="Hello there."))
    return {
        "anthropic": (anthropic, "anthropic", "claude-opus-5-5"),
        "responses": (responses, "openai", "gpt-6"),
        "completions": (completions, "openai_compat", "qwen"),
    }


WIRES = ["anthropic", "responses", "completions"]


async def ask(
    url: str, kind: str, model_name: str, clients: RecordedClients, stop_after: int | None = None
) -> list[StreamPart]:
    ready = ready_model(kind, model_name, base_url=url if kind == "anthropic" else url + "/v1")
    connector = Connector(clients=clients)
    model = await connector.model(ready)
    assert not isinstance(model, StreamError)
    tool = Tool(name="read_file", description="Read a file.", input_schema={"type": "object", "properties": {}})
    call = make_call(ready, model, prompt=Prompt((user("Hello."),)), tools=(tool,))  # type: ignore[arg-type]
    parts: list[StreamPart] = []
    async with aclosing(model.stream(call)) as stream:  # type: ignore[union-attr]
        async for part in stream:
            parts.append(part)
            if len(parts) == stop_after:
                break
    return parts


@pytest.mark.parametrize("wire", WIRES)
async def test_answer_of_each_wire_is_one_completed_attempt(
    wire: str, clients: RecordedClients, step: CollectingStep
) -> None:
    fake, kind, model = wires(None)[wire]
    async with fake.listening() as url:
        parts = await ask(url, kind, model, clients)

    attempt = step.only()
    assert isinstance(parts[-1], Finish)
    assert end_of(attempt) == ("completed", None)
    assert json.loads(attempt.request_body.data)["model"] == model
    assert KEY not in repr(attempt)
    assert attempt.response_headers["content-type"].startswith("text/event-stream")
    assert "Hello " in body_of(attempt)
    assert "usage" in body_of(attempt)


@pytest.mark.parametrize("wire", WIRES)
async def test_refusal_of_each_wire_is_a_completed_attempt_with_its_body(
    wire: str, clients: RecordedClients, step: CollectingStep
) -> None:
    fake, kind, model = wires(failure(529, "Overloaded."))[wire]
    async with fake.listening() as url:
        parts = await ask(url, kind, model, clients)

    attempt = step.only()
    assert isinstance(parts[-1], StreamError)
    assert (end_of(attempt), attempt.response_status) == (("completed", None), 529)
    assert "Overloaded." in body_of(attempt)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("fault", "after_bytes", "status"),
    [
        (Fault.RESET, None, "failed"),
        (Fault.RESET, 40, "failed"),
        (Fault.CUT, 40, "failed"),
        (Fault.END, 40, "completed"),
    ],
)
async def test_broken_answer_of_each_wire_is_recorded(
    wire: str, fault: Fault, after_bytes: int | None, status: str, clients: RecordedClients, step: CollectingStep
) -> None:
    broken = Scenario(events=[("ping", {"type": "ping", "pad": "x" * 100})], fault=fault, after_bytes=after_bytes)
    fake, kind, model = wires(broken)[wire]
    async with fake.listening() as url:
        parts = await ask(url, kind, model, clients)

    assert isinstance(parts[-1], StreamError)
    assert step.only().status == status
    assert len(step.records) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_cancelled_call_of_each_wire_is_aborted(
    wire: str, clients: RecordedClients, step: CollectingStep
) -> None:
    stalled = Scenario(events=[("ping", {"type": "ping"})], fault=Fault.STALL, after_bytes=5)
    fake, kind, model = wires(stalled)[wire]
    step.reason = "user"
    async with fake.listening() as url:
        task = asyncio.create_task(ask(url, kind, model, clients))
        await fake.received()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert end_of(step.only()) == ("aborted", "user")


@pytest.mark.parametrize("wire", WIRES)
async def test_consumer_that_stops_early_leaves_a_failed_attempt(
    wire: str, clients: RecordedClients, step: CollectingStep
) -> None:
    fake, kind, model = wires(None)[wire]
    async with fake.listening() as url:
        await ask(url, kind, model, clients, stop_after=1)

    assert end_of(step.only()) in [("failed", "unexpected_eof"), ("completed", None)]
