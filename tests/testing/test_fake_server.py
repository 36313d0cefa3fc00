"""The fake server sends its scenarios exactly, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import httpx2
import pytest

from rookery.testing.fake_server import (
    MALFORMED,
    FakeServer,
    Fault,
    RecordedRequest,
    Scenario,
    encode_event,
    failure,
)

EVENTS = [("", {"n": number}) for number in range(5)]
BODY = b"".join(encode_event(event) for event in EVENTS)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_request_is_recorded_with_its_key_apart(client: aiohttp.ClientSession) -> None:
    fake = FakeServer(api_key="sk-1")
    fake.enqueue(Scenario(body={"ok": True}))
    async with (
        fake.listening() as url,
        client.post(f"{url}/v1/x?a=b", json={"m": "é"}, headers={"Authorization": "Bearer sk-1"}) as answer,
    ):
        assert await answer.json() == {"ok": True}
        assert answer.headers["x-request-id"] == "req_1"

    (request,) = fake.requests
    assert (request.method, request.path, request.query) == ("POST", "/v1/x", "a=b")
    assert (request.auth_header, request.api_key) == ("authorization", "sk-1")
    assert "authorization" not in request.headers
    assert request.body == {"m": "é"}


async def test_wrong_key_is_refused_and_takes_no_scenario(client: aiohttp.ClientSession) -> None:
    fake = FakeServer(api_key="sk-1")
    fake.enqueue(Scenario(body={"ok": True}))
    async with fake.listening() as url, client.post(url, headers={"x-api-key": "sk-2"}) as answer:
        assert answer.status == 401
    assert fake.remaining == 1


async def test_requests_take_scenarios_in_order_on_one_connection(client: aiohttp.ClientSession) -> None:
    fake = FakeServer(respond=lambda request: Scenario(body=request.body))
    fake.enqueue(Scenario(events=EVENTS), failure(429, "Slow down.", retry_after="2"))
    async with fake.listening() as url:
        async with client.post(url) as first:
            assert first.content_type == "text/event-stream"
            assert await first.read() == BODY
        async with client.post(url) as second:
            assert (second.status, second.headers["retry-after"]) == (429, "2")
            assert (await second.json())["error"]["message"] == "Slow down."
        async with client.post(url, json=[1]) as third:
            assert await third.json() == [1]


async def test_unscripted_request_is_an_error_that_must_not_be_retried(client: aiohttp.ClientSession) -> None:
    async with FakeServer().listening() as url, client.post(url) as answer:
        assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")


async def test_page_answers_without_the_queue(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS))
    fake.pages["GET /models"] = Scenario(body={"data": []})
    async with fake.listening() as url, client.get(f"{url}/models") as answer:
        assert await answer.json() == {"data": []}
    assert fake.remaining == 1


async def test_validator_refuses_with_its_own_answer(client: aiohttp.ClientSession) -> None:
    def validate(request: RecordedRequest) -> tuple[int, object] | None:
        return None if request.body else (400, {"error": "empty"})

    fake = FakeServer(validate=validate, respond=lambda _: Scenario(body="fine", content_type="text/plain"))
    async with fake.listening() as url:
        async with client.post(url) as refused:
            assert (refused.status, await refused.json()) == (400, {"error": "empty"})
        async with client.post(url, json={"a": 1}) as accepted:
            assert (accepted.content_type, await accepted.text()) == ("text/plain", "fine")


async def test_failure_of_a_validator_fails_the_test_that_uses_it(client: aiohttp.ClientSession) -> None:
    def validate(request: RecordedRequest) -> None:
        raise LookupError(request.path)

    async def use() -> None:
        async with FakeServer(validate=validate).listening() as url:
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.post(f"{url}/x")

    with pytest.raises(LookupError, match="/x"):
        await use()


@pytest.mark.parametrize("count", range(len(BODY)))
async def test_cut_after_any_byte_gives_those_bytes_and_a_broken_answer(
    client: aiohttp.ClientSession, count: int
) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS, fault=Fault.CUT, after_bytes=count))
    received = bytearray()

    async def read(answer: aiohttp.ClientResponse) -> None:
        async for data in answer.content.iter_any():
            received.extend(data)

    async with fake.listening() as url, client.post(url) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(answer)
    assert received == BODY[:count]


@pytest.mark.parametrize("scenario", [Scenario(events=EVENTS), Scenario(body=BODY)], ids=["events", "document"])
async def test_ended_answer_is_short_and_proper_http(client: aiohttp.ClientSession, scenario: Scenario) -> None:
    fake = FakeServer()
    fake.enqueue(
        Scenario(events=scenario.events, body=scenario.body, fault=Fault.END, after_bytes=7), Scenario(body={})
    )
    async with fake.listening() as url:
        async with client.post(url) as answer:
            assert await answer.read() == BODY[:7]
        async with client.post(url) as answer:
            assert await answer.json() == {}


async def test_document_with_a_cut_is_shorter_than_its_length(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(body={"long": "x" * 100}, fault=Fault.CUT, after_bytes=10))
    async with fake.listening() as url, client.post(url) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_reset_breaks_the_connection_before_or_within_the_answer(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(
        Scenario(fault=Fault.RESET, after_bytes=None), Scenario(events=EVENTS, fault=Fault.RESET, after_bytes=3)
    )
    async with fake.listening() as url:
        with pytest.raises(aiohttp.ClientOSError):
            await client.post(url)
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            async with client.post(url) as answer:
                await answer.read()


async def test_stall_ends_when_the_client_leaves(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS, fault=Fault.STALL, after_bytes=len(BODY)))
    async with fake.listening() as url:
        answer = await client.post(url)
        assert await answer.content.readexactly(len(BODY)) == BODY
        answer.close()
        async with asyncio.timeout(5):
            await fake.requests[0].left.wait()


async def test_stalled_answer_does_not_hold_the_server_open(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(fault=Fault.STALL, after_bytes=None))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:

        async def ask(url: str) -> None:
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.post(url)

        async with fake.listening() as url:
            group.create_task(ask(url))
            await fake.received()


async def test_answer_waits_for_a_scripted_event(client: aiohttp.ClientSession) -> None:
    go_on = asyncio.Event()
    fake = FakeServer()
    fake.enqueue(Scenario(events=[EVENTS[0], go_on, EVENTS[1]]))
    first = encode_event(EVENTS[0])
    async with fake.listening() as url, client.post(url) as answer:
        assert await answer.content.readexactly(len(first)) == first
        assert not answer.content.at_eof()
        go_on.set()
        assert await answer.content.read() == encode_event(EVENTS[1])


async def test_paced_answer_takes_the_time_of_its_rate(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS, events_per_second=100, burst=2))
    loop = asyncio.get_running_loop()
    async with fake.listening() as url:
        started = loop.time()
        async with client.post(url) as answer:
            assert await answer.read() == BODY
    assert loop.time() - started >= 0.04


async def test_packets_cut_events_in_two_and_lose_nothing(client: aiohttp.ClientSession) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS, packet_bytes=1))
    async with fake.listening() as url, client.post(url) as answer:
        assert await answer.read() == BODY


async def test_chunked_request_body_is_read(client: aiohttp.ClientSession) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"a"'
        yield b": 1}"

    fake = FakeServer(respond=lambda request: Scenario(body=request.body))
    async with fake.listening() as url, client.post(url, data=body()) as answer:
        assert await answer.json() == {"a": 1}


async def test_asgi_client_gets_status_headers_and_malformed_events() -> None:
    fake = FakeServer(api_key="k")
    fake.enqueue(
        Scenario(events=[("a", {"n": 1}), MALFORMED, ("", "[DONE]")]),
        Scenario(body="<html>", content_type="text/html", status=529, headers={"Retry-After-Ms": "5"}),
        Scenario(events=EVENTS, fault=Fault.END, after_bytes=4),
    )
    headers = {"authorization": "Bearer k"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(fake), base_url="http://fake") as asgi:
        first = await asgi.post("/x", json={"a": 1}, headers=headers)
        second = await asgi.post("/x", headers=headers)
        third = await asgi.post("/x", headers=headers)

    assert first.content == b'event: a\ndata: {"n":1}\n\n' + MALFORMED + b"data: [DONE]\n\n"
    assert (second.status_code, second.text, second.headers["retry-after-ms"]) == (529, "<html>", "5")
    assert third.content == BODY[:4]
    assert fake.requests[0].body == {"a": 1}


@pytest.mark.parametrize("after_bytes", [None, 3])
async def test_asgi_client_sees_a_broken_connection_as_an_exception(after_bytes: int | None) -> None:
    fake = FakeServer()
    fake.enqueue(Scenario(events=EVENTS, fault=Fault.RESET, after_bytes=after_bytes))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(fake), base_url="http://fake") as asgi:
        with pytest.raises(ConnectionResetError):
            await asgi.post("/x")
