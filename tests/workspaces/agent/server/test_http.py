"""Bad requests get a clear response, cost little, and never end the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.process import routes
from rookery.workspaces.agent.server import http
from tests.workspaces.agent.agent_rig import PATIENCE_S, TOKEN, Rig

GOOD = f"authorization: Bearer {TOKEN}\r\nx-rookery-generation: 1\r\n".encode()
HEALTH = b"GET /v1/health HTTP/1.1\r\n" + GOOD
START = b"POST /v1/processes HTTP/1.1\r\n" + GOOD
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /v1/health\r\n\r\n", 400),
        (b"GET  /v1/health HTTP/1.1\r\n\r\n", 400),
        (b"G\x00T /v1/health HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/health HTTP/2.0\r\n\r\n", 505),
        (b"GET v1/health HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/v1/health HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/%ff HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/health?%ff=1 HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/health?a HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nbad name: x\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\na: x\ny: z\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\na: \x00\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\na: 1\r\nA: 2\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(65)) + b"\r\n", 431),
        (b"GET /v1/health HTTP/1.1\r\na: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (START + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (START + b"content-length: -5\r\n\r\n", 400),
        (START + b"content-length: five\r\n\r\n", 400),
        (START + b"content-length: 5, 5\r\n\r\n", 400),
        (START + b"content-length: 99999999999999999999\r\n\r\n", 400),
        (START + b"transfer-encoding: gzip\r\n\r\n", 501),
        (START + b"connection: close\r\ncontent-length: 2000000\r\n\r\n", 413),
        (CHUNKED + b"xyz\r\n", 400),
        (CHUNKED + b"-1\r\n", 400),
        (CHUNKED + b"2\r\nabc\r\n", 400),
        (CHUNKED + b"fffffffff\r\n", 400),
        (CHUNKED + b"1;" + b"x" * 40_000 + b"\r\n", 400),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * 40, 400),
        (CHUNKED + b"200000\r\n" + b"x" * 0x200000 + b"\r\n", 413),
    ],
)
async def test_malformed_request_is_answered_and_the_connection_ends(shared: Rig, request_: bytes, status: int) -> None:
    answer = await shared.raw(request_)

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert set(json.loads(body)) >= {"code", "message"}
    assert (await shared.get("/v1/health"))["api"] == 2


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff",
        b'{"command": NaN}',
        b'{"command": "true", "command": "false"}',
        b"[" * 50_000,
        b'{"a":' * 50_000,
    ],
)
async def test_body_that_is_no_json_object_is_refused(shared: Rig, body: bytes) -> None:
    answer = await shared.ask("POST", "/v1/processes", data=body)

    assert (answer.status, answer.code) == (400, "invalid")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/health?x=1", "x"),
        ("/v1/processes?all=1", "all"),
        ("/v1/processes/x/output?wait=1", "wait"),
        ("/v1/scripts/log?since=0&since=1", "since"),
    ],
)
async def test_unknown_or_repeated_query_is_refused_by_name(shared: Rig, path: str, field: str) -> None:
    answer = await shared.ask("GET", path)

    assert (answer.status, answer.json["fields"][0]["field"]) == (400, field)


@pytest.mark.parametrize("query", ["wait_s=-1", "wait_s=1e3", "wait_s=", "since=-1", "since=1.5", "since=٣"])
async def test_wrong_number_in_a_query_is_refused(shared: Rig, query: str) -> None:
    process = (await shared.run("true"))["id"]

    assert (await shared.ask("GET", f"/v1/processes/{process}/output?{query}")).status == 400


@pytest.mark.parametrize(
    ("given", "waited"), [("0", 0.0), ("2.5", 2.5), ("300", 300.0), ("301", 300.0), ("9" * 9, 300.0)]
)
async def test_wait_is_capped(given: str, waited: float) -> None:
    head = http.parse_head(f"GET /x?wait_s={given} HTTP/1.1\r\n\r\n".encode())
    body = http.Body(http.Reader(10), 0, lambda: None)
    request = http.Request(head, http.ChatHeaders(), {}, dict(head.query), body, asyncio.Event())

    assert request.seconds("wait_s", cap=routes.MAX_WAIT_S) == waited


async def test_unknown_paths_and_methods(shared: Rig) -> None:
    assert (await shared.ask("GET", "/v1/nothing")).status == 404
    assert (await shared.ask("GET", "/v1/health/")).status == 404
    wrong = await shared.ask("DELETE", "/v1/processes")
    assert wrong.status == 405
    assert "GET, POST" in wrong.json["message"]


async def test_requests_follow_each_other_on_one_connection(shared: Rig) -> None:
    first = HEALTH + b"\r\n"
    last = HEALTH + b"connection: close\r\n\r\n"

    answer = await shared.raw(first + first + last)

    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"connection: keep-alive") == 2


async def test_refused_request_leaves_the_connection_usable(shared: Rig) -> None:
    refused = b"POST /v1/nothing HTTP/1.1\r\n" + GOOD + b"content-length: 5\r\n\r\nhello"

    answer = await shared.raw(refused + HEALTH + b"connection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"HTTP/1.1 200 OK" in answer


async def test_body_in_chunks_and_a_client_that_asks_before_it_sends(shared: Rig) -> None:
    body = b'{"command": "true"}'
    chunks = b"".join(b"%x;ext=1\r\n%c\r\n" % (1, byte) for byte in body) + b"0\r\ntrailer: x\r\n\r\n"
    head = START + b"expect: 100-continue\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"

    answer = await shared.raw(head + chunks)

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_old_client_gets_its_answer_and_the_end(shared: Rig) -> None:
    assert b"connection: close" in await shared.raw(HEALTH.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")


async def test_client_that_leaves_in_the_middle_costs_nothing(shared: Rig) -> None:
    for data in (b"GET /v1/he", HEALTH, START + b"content-length: 100\r\n\r\nhalf", CHUNKED + b"5\r\nab"):
        _, writer = await asyncio.open_unix_connection(shared.socket)
        writer.write(data)
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    assert (await shared.get("/v1/health"))["api"] == 2
    assert "Traceback" not in shared.log()


async def test_connection_that_only_waits_makes_room_for_one_that_asks(rig: Rig) -> None:
    idle = [await asyncio.open_unix_connection(rig.socket) for _ in range(128)]
    try:
        answer = await rig.raw(HEALTH + b"connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        async with asyncio.timeout(PATIENCE_S):
            assert await idle[0][0].read() == b""  # the connection that was idle longest was closed
    finally:
        for _, writer in idle:
            writer.close()


async def test_more_busy_connections_than_the_limit_are_told_so(rig: Rig) -> None:
    process = (await rig.post("/v1/processes", {"command": "sleep 1000"}))["id"]
    await rig.disconnect()
    wait = f"GET /v1/processes/{process}/output?wait_s=300 HTTP/1.1\r\n".encode() + GOOD + b"\r\n"
    busy = []
    try:
        refused = b""
        for _ in range(140):
            reader, writer = await asyncio.open_unix_connection(rig.socket)
            busy.append(writer)
            writer.write(wait)
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01 if len(busy) < 129 else PATIENCE_S):
                    refused = await reader.read(1000)
            if refused:
                break
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert len(busy) > 128
    finally:
        for writer in busy:
            writer.close()


TEXT = st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=255), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), TEXT.map(lambda text: f"GET /{text} HTTP/1.1\r\n".encode("latin-1"))))
@example(b"GET / HTTP/1.1\r\n")
def test_parser_returns_a_head_or_an_error_for_any_input(data: bytes) -> None:
    with contextlib.suppress(AgentError):
        head = http.parse_head(data.replace(b"\r\n\r\n", b"") + b"\r\n\r\n")
        assert head.path.startswith("/")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_json_returns_an_object_or_an_error_for_any_input(data: bytes) -> None:
    with contextlib.suppress(AgentError):
        assert isinstance(http.parse_object(data), dict)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.integers(1, 40))
def test_chunked_body_is_read_back_however_it_is_cut(chunks: list[bytes], step: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"

    async def read() -> tuple[bytes, bytes]:
        reader = http.Reader(http.MAX_HEAD_BYTES)
        body = http.Body(reader, None, lambda: None)

        async def feed() -> None:
            for start in range(0, len(wire), step):
                reader.feed_data(wire[start : start + step])
                await asyncio.sleep(0)
            reader.feed_data(b"next")
            reader.feed_eof()

        feeding = asyncio.ensure_future(feed())
        data = b"".join([chunk async for chunk in body.chunks(10_000)])
        await feeding
        assert body.complete
        return data, await reader.read()

    assert asyncio.run(read()) == (b"".join(chunks), b"next")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (None, ())),
        ({"x-rookery-chat-id": "a"}, ("a", ())),
        ({"x-rookery-chat-id": "a b"}, (None, ())),
        ({"x-rookery-chat-id": "a" * 65}, (None, ())),
        ({"x-rookery-ancestor-ids": '["b"]'}, (None, ())),
        ({"x-rookery-chat-id": "a", "x-rookery-ancestor-ids": '["b", "c"]'}, ("a", ("b", "c"))),
        ({"x-rookery-chat-id": "a", "x-rookery-ancestor-ids": '["b", 7, "", "a", "b"]'}, ("a", ("b",))),
        ({"x-rookery-chat-id": "a", "x-rookery-ancestor-ids": "b"}, ("a", ())),
        ({"x-rookery-chat-id": "a", "x-rookery-ancestor-ids": '{"b": 1}'}, ("a", ())),
        ({"x-rookery-chat-id": "a", "x-rookery-ancestor-ids": "[" * 5000}, ("a", ())),
    ],
)
def test_bad_chat_id_counts_as_absent(headers: dict[str, str], expected: tuple[str | None, tuple[str, ...]]) -> None:
    chat = http.chat_headers(headers)

    assert (chat.chat_id, chat.ancestor_ids) == expected
