"""Hostile MCP servers that hang, lie, flood, redirect and crash: the turn continues, other servers answer, memory is
bounded.
"""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from rookery.mcp import guarded_http
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.call_results import CallResult
from rookery.mcp.connection import MAX_PAGES
from rookery.mcp.connection_pool import OPEN_SECONDS, McpConnections
from rookery.mcp.errors import ProblemKind
from rookery.mcp.server_config import MAX_CALL_SECONDS
from rookery.runtime.address_guard import Guard
from rookery.runtime.clock import SystemClock
from rookery.testing.clock import FakeClock
from rookery.testing.fake_mcp import Era, FakeCall, FakeMcp, FakeRequest, Json, answer_with, hang, text
from tests.eventually import until
from tests.mcp.mcp_rig import CHAT, McpRig, config, mcp_rig, open_connections

ERAS: tuple[Era, ...] = ("stateless", "sessions")
MIB = 1024 * 1024


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    value: Era = request.param
    return value


async def say_hello(call: FakeCall) -> Json:
    return text("hello")


def greeter(era: Era = "stateless") -> FakeMcp:
    fake = FakeMcp(era)
    fake.tool("hello", say_hello)
    return fake


@asynccontextmanager
async def beside_a_good_server(bad: FakeMcp, clock: FakeClock | None = None) -> AsyncIterator[McpRig]:
    """A rig for the bad server. At the end, a good one beside it must list and answer on the same connections."""
    good = greeter()
    async with mcp_rig(bad, clock) as rig, good.listening() as url:
        yield rig
        server = config(url, key="good", slug="good")
        [tools] = await rig.connections.tools_of(CHAT, [server])
        assert [tool.name for tool in tools.tools] == ["hello"]
        result = await rig.connections.call(CHAT, server, "hello", {}, call_key="good")
        assert isinstance(result, CallResult)
        assert result.text == "hello"


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_a_server_that_hangs_is_skipped_after_ten_seconds(method: str) -> None:
    clock = FakeClock()
    bad = greeter()
    # It does not answer the second way to connect either.
    bad.behaviors[method] = bad.behaviors["initialize"] = hang
    async with beside_a_good_server(bad, clock) as rig:
        listing = asyncio.create_task(rig.list())
        await until(lambda: bad.count(method))
        await clock.advance(OPEN_SECONDS + 1)
        tools = await listing

    assert tools.problem is not None
    assert tools.problem.kind is ProblemKind.TIMEOUT
    assert tools.tools == ()


async def test_an_old_server_that_hangs_on_an_unknown_method_is_still_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_http, "DISCOVER_SECONDS", 0.05)
    old = greeter("sessions")
    old.behaviors["server/discover"] = hang
    async with mcp_rig(old) as rig:
        assert await rig.text_of("hello") == "hello"


async def test_a_hundred_thousand_tools_are_cut(era: Era) -> None:
    bad = greeter(era)
    definition = {"name": "t", "inputSchema": {"type": "object"}}

    async def flood(request: FakeRequest) -> Json:
        tools = [{**definition, "name": f"t{number}"} for number in range(60_000)]
        return bad._done({"tools": tools, "nextCursor": "more", **bad._cache_hints()})

    bad.behaviors["tools/list"] = flood
    async with beside_a_good_server(bad) as rig:
        tools = await rig.list()
        assert len(tools.tools) == 500
        assert tools.is_cut
        assert bad.count("tools/list") == 1

        async def larger(request: FakeRequest) -> Json:
            tools = [{**definition, "name": f"t{number}"} for number in range(100_000)]
            return bad._done({"tools": tools, **bad._cache_hints()})

        bad.behaviors["tools/list"] = larger
        rig.connections.outdate(rig.server)
        tools = await rig.list()
    assert tools.problem is not None
    assert tools.problem.kind is ProblemKind.TOO_LARGE
    assert tools.problem.text == "The server sent an answer of more than 4096 KiB."


async def test_pages_without_end_are_cut(era: Era) -> None:
    bad = greeter(era)
    pages = 0

    async def next_page(request: FakeRequest) -> Json:
        nonlocal pages
        pages += 1
        return bad._done({"tools": [], "nextCursor": f"page-{pages}", **bad._cache_hints()})

    bad.behaviors["tools/list"] = next_page
    async with beside_a_good_server(bad) as rig:
        tools = await rig.list()

    assert tools.is_cut
    assert pages == MAX_PAGES


async def test_large_pages_are_cut_at_the_limit_of_a_list() -> None:
    bad = greeter()
    pages = 0

    async def next_page(request: FakeRequest) -> Json:
        nonlocal pages
        pages += 1
        schema = {"type": "object", "description": "x" * 60_000}
        tools = [{"name": f"t{pages}-{number}", "inputSchema": schema} for number in range(20)]
        return bad._done({"tools": tools, "nextCursor": f"page-{pages}", **bad._cache_hints()})

    bad.behaviors["tools/list"] = next_page
    async with beside_a_good_server(bad) as rig:
        tools = await rig.list()

    assert tools.is_cut
    assert 60 <= len(tools.tools) < 80
    assert pages == 4  # of 1.2 MB each


@pytest.mark.parametrize("is_stream", [False, True])
async def test_fifty_megabytes_end_the_call_and_are_not_held(is_stream: bool) -> None:
    bad = greeter()
    sent = 0

    async def flood(request: FakeRequest) -> Json:
        nonlocal sent
        kind = "text/event-stream" if is_stream else "application/json"
        await request.connection.start_response(200, {"content-type": kind}, length=None)
        await request.connection.send_body(b"data: " if is_stream else b" ")
        try:
            while sent < 50:
                await request.connection.send_body(b"x" * MIB)
                sent += 1
        except ConnectionError:
            pass

    bad.behaviors["tools/call"] = flood
    async with beside_a_good_server(bad) as rig:
        await rig.list()
        tracemalloc.start()
        problem = await rig.problem_of("hello")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert problem.kind is ProblemKind.TOO_LARGE
    assert problem.may_have_run
    assert sent < 30
    # The answer as bytes and as text, the two joined, and the buffers of the server in the same process.
    assert peak < 5 * guarded_http.MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    "body", [b"{not json", b"[]", b"null", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":1,"result":7}', b"[" * 100_000]
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_invalid_json_is_told(body: bytes, method: str) -> None:
    bad = greeter()
    async with beside_a_good_server(bad) as rig:
        if method == "tools/call":
            await rig.list()
        bad.behaviors[method] = answer_with(body)
        if method == "tools/list":
            problem = (await rig.list()).problem
        else:
            problem = await rig.problem_of("hello")

    assert problem is not None
    assert problem.kind is ProblemKind.INVALID


async def test_a_result_that_breaks_the_protocol_is_told() -> None:
    bad = greeter()

    async def answer(request: FakeRequest) -> Json:
        return {"resultType": "complete", "content": "text"}

    bad.behaviors["tools/call"] = answer
    async with beside_a_good_server(bad) as rig:
        problem = await rig.problem_of("hello")
    assert problem.kind is ProblemKind.INVALID
    assert problem.may_have_run


def answer_to_another_request(**result: Json) -> Any:
    return answer_with(
        msgspec.json.encode({"jsonrpc": "2.0", "id": 4711, "result": {"resultType": "complete", **result}})
    )


async def test_a_list_with_a_wrong_id_ends_in_silence(era: Era) -> None:
    clock = FakeClock()
    bad = greeter(era)
    bad.behaviors["tools/list"] = answer_to_another_request(tools=[])
    async with beside_a_good_server(bad, clock) as rig:
        listing = asyncio.create_task(rig.list())
        await until(lambda: bad.count("tools/list"))
        await clock.advance(OPEN_SECONDS + 1)
        problem = (await listing).problem
    assert problem is not None
    assert problem.kind is ProblemKind.TIMEOUT


async def test_wrong_ids_end_in_silence(era: Era) -> None:
    clock = FakeClock()
    bad = greeter(era)
    bad.behaviors["tools/call"] = answer_to_another_request(content=[])
    async with beside_a_good_server(bad, clock) as rig:
        await rig.list()
        calling = asyncio.create_task(rig.problem_of("hello"))
        await until(lambda: bad.count("tools/call"))
        await clock.advance(61)
        problem = await calling
    assert problem.kind is ProblemKind.TIMEOUT


async def test_endless_progress_ends_after_half_an_hour() -> None:
    clock = FakeClock()
    bad = FakeMcp()
    told: list[object] = []

    async def chatter(call: FakeCall) -> Json:
        number = 0
        while not call.is_cancelled.is_set():
            number += 1
            await call.progress(number)
        return text("never")

    bad.tool("chatter", chatter)
    async with mcp_rig(bad, clock) as rig:
        await rig.list()
        calling = asyncio.create_task(rig.problem_of("chatter", on_progress=told.append))
        await until(lambda: told)
        while not calling.done():
            await clock.advance(50)
            await asyncio.wait({calling}, timeout=0.02)
        problem = calling.result()

    assert problem.kind is ProblemKind.TIMEOUT
    assert MAX_CALL_SECONDS <= clock.monotonic() <= MAX_CALL_SECONDS + 200
    # Thousands were sent.
    assert len(told) < 200


async def test_a_flood_of_events_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_http, "BURST_LINES", 300)
    bad = FakeMcp()
    sent = 0

    async def flood(call: FakeCall) -> Json:
        nonlocal sent
        while True:
            await call.progress(sent, message="x" * 1000)
            sent += 1

    bad.tool("flood", flood)
    async with beside_a_good_server(bad) as rig:
        await rig.list()
        calling = asyncio.create_task(rig.call("flood"))
        await until(lambda: sent >= 100)
        before, start = sent, asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - start >= 1)
        rate = (sent - before) / (asyncio.get_running_loop().time() - start)
        calling.cancel()
        await asyncio.wait({calling})

    # The server also fills the buffers of the sockets; without a pace it sends some 20,000.
    assert rate < 6_000


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("http://169.254.169.254/latest/meta-data/", ProblemKind.REDIRECTED),
        ("http://10.0.0.1/mcp", ProblemKind.REDIRECTED),
        ("file:///etc/passwd", ProblemKind.REDIRECTED),
    ],
)
async def test_a_redirect_elsewhere_is_not_followed(location: str, kind: ProblemKind) -> None:
    bad = greeter()
    redirect = answer_with(b"", status=307, headers=[("location", location)])
    bad.behaviors["server/discover"] = bad.behaviors["initialize"] = redirect
    async with beside_a_good_server(bad) as rig:
        problem = (await rig.list()).problem

    assert problem is not None
    assert problem.kind is kind
    assert "latest" not in problem.text
    assert len(bad.requests) == 1


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/mcp"])
async def test_a_redirect_of_a_call_is_not_followed(location: str, era: Era) -> None:
    bad = greeter(era)
    async with beside_a_good_server(bad) as rig:
        await rig.list()
        bad.behaviors["tools/call"] = answer_with(b"", status=307, headers=[("location", location)])
        problem = await rig.problem_of("hello")

    assert problem.kind is ProblemKind.REDIRECTED
    assert not problem.may_have_run
    assert "latest" not in problem.text


async def test_a_private_address_is_not_dialed() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return {"rebound.test": ["127.0.0.1"], "mixed.test": ["93.184.216.34", "10.0.0.1"]}[host]

    connections = McpConnections(mcp_guard(resolve=resolve), SystemClock())
    fake = greeter()
    try:
        async with fake.listening() as url:
            named = url.replace("127.0.0.1", "rebound.test")
            servers = [
                config(each, key=str(number), slug=f"s{number}")
                for number, each in enumerate((url, named, "http://mixed.test/mcp", "http://[::ffff:127.0.0.1]:1/"))
            ]
            found = await connections.tools_of(CHAT, servers)
    finally:
        await connections.close()

    assert [tools.problem and tools.problem.kind for tools in found] == [ProblemKind.BLOCKED] * 4
    assert found[1].problem is not None
    assert "rebound.test leads to an address of this machine" in found[1].problem.text
    assert fake.requests == []


async def test_the_ports_of_the_server_itself_are_never_dialed() -> None:
    fake = greeter()
    async with fake.listening() as url:
        connections = McpConnections(mcp_guard(allow_private=True, own_ports=[fake.port]), SystemClock())
        try:
            [tools] = await connections.tools_of(CHAT, [config(url)])
        finally:
            await connections.close()
    assert tools.problem is not None
    assert tools.problem.kind is ProblemKind.BLOCKED


async def test_the_package_still_lets_the_dialing_be_replaced() -> None:
    """The transport has no parameter for its backend, so `guarded_transport` replaces a private attribute."""
    asked: list[str] = []

    class Watched(Guard):
        async def find(self, host: str, port: int, **options: Any) -> Any:
            asked.append(host)
            return await super().find(host, port, **options)

    fake = greeter()
    async with fake.listening() as url, guarded_http.guarded_client(Watched(["127.0.0.0/8"])) as client:
        assert (await client.get(url)).status_code == 405
    assert asked == ["127.0.0.1"]


async def test_a_list_that_changes_every_second_is_asked_once_per_step(era: Era) -> None:
    clock = FakeClock()
    bad = greeter(era)
    async with beside_a_good_server(bad, clock) as rig:
        await rig.list()
        await until(lambda: bad._listeners or any(session.has_stream for session in bad.sessions.values()))
        connection = rig.connections._slots[CHAT, "fake"].connection
        assert connection is not None
        for step in range(3):
            for _ in range(50):
                await bad.change_list()
            await until(lambda: connection.is_list_outdated)
            await rig.list()
            assert bad.count("tools/list") == 2 + step


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_server_that_breaks_the_connection_costs_only_that_call(when: str, era: Era) -> None:
    bad = greeter(era)

    async def reset(request: FakeRequest) -> Json:
        if when == "during":
            await request.connection.start_response(200, {"content-type": "text/event-stream"}, length=None)
            await request.connection.send_body(b"data: {")
        request.connection.reset()

    proceed = asyncio.Event()

    async def wait(call: FakeCall) -> Json:
        await proceed.wait()
        return text("waited")

    bad.tool("wait", wait)
    async with beside_a_good_server(bad) as rig:
        await rig.list()
        waiting = asyncio.create_task(rig.text_of("wait", call_key="wait"))
        await until(lambda: bad.calls)
        bad.behaviors["tools/call"] = reset
        problem = await rig.problem_of("hello", call_key="reset")
        del bad.behaviors["tools/call"]
        proceed.set()

        assert await waiting == "waited"
        assert await rig.text_of("hello", call_key="again") == "hello"
    assert problem.kind in (ProblemKind.UNREACHABLE, ProblemKind.CLOSED)
    assert problem.may_have_run


async def test_ten_dead_servers_take_the_time_of_one() -> None:
    clock = FakeClock()
    bad = greeter()
    bad.behaviors["server/discover"] = bad.behaviors["initialize"] = hang
    async with bad.listening() as url, open_connections(clock) as connections:
        servers = [config(url, key=str(number), slug=f"s{number}") for number in range(10)]
        listing = asyncio.create_task(connections.tools_of(CHAT, servers))
        await until(lambda: bad.count("server/discover") == 10)
        await clock.advance(OPEN_SECONDS + 1)
        found = await listing

        assert [tools.problem is not None for tools in found] == [True] * 10
        again = await connections.tools_of(CHAT, servers)
        assert [tools.problem for tools in again] == [tools.problem for tools in found]
        assert bad.count("server/discover") == 10


async def test_headers_that_cannot_be_sent_fail_that_request_alone() -> None:
    fake = greeter()

    async def headers() -> dict[str, str]:
        return {"authorization": "Bearer a\r\nx-injected: 1"}

    async with mcp_rig(fake, headers=headers) as rig:
        problem = (await rig.list()).problem
    assert problem is not None
    assert "x-injected" not in problem.text
    assert all("x-injected" not in request.headers for request in fake.requests)


async def test_compressed_answers_are_refused() -> None:
    bad = greeter()
    bad.behaviors["tools/call"] = answer_with(b"\x1f\x8b", headers=[("content-encoding", "gzip")])
    async with mcp_rig(bad) as rig:
        problem = await rig.problem_of("hello")
    assert problem.text == "The server's answer could not be read: it is compressed."


async def test_a_schema_that_explodes_is_given_up() -> None:
    """Each definition checks the next one twice: 2**40 checks."""
    definitions: dict[str, Json] = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(40)
    }
    schema = {"$defs": {**definitions, "d40": {}}, "$ref": "#/$defs/d0"}

    async def answer(call: FakeCall) -> Json:
        return {"content": [], "structuredContent": {"a": 1}}

    bad = FakeMcp()
    bad.tool("explode", answer)
    async with beside_a_good_server(bad) as rig:
        for each in (schema, {"$ref": "#"}, {"type": 7}, {"$ref": "https://x.test"}, {"pattern": "(a+)+$"}):
            result = await rig.call("explode", output_schema=each, call_key=str(each)[:30])
            rig.connections._slots[CHAT, "fake"].connection._schemas.clear()  # type: ignore[union-attr]
            assert isinstance(result, CallResult)
            assert result.schema_problem is None


async def test_a_probe_says_what_is_wrong() -> None:
    fake = FakeMcp(bearers=set())
    async with mcp_rig(fake) as rig:
        probe = await rig.connections.probe(rig.server)
        assert probe.tools.problem is not None
        assert probe.tools.problem.text == "The server wants a login."
        fake.bearers = None
        fake.tool("hello")
        probe = await rig.connections.probe(rig.server)

    assert probe.protocol_version == "2026-07-28"
    assert [tool.name for tool in probe.tools.tools] == ["hello"]


async def test_secrets_of_addresses_and_sessions_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bad = greeter("sessions")
    async with mcp_rig(bad) as rig:
        rig.server = config(rig.server.url.replace("//", "//user:p4ss@") + "?key=s3cret")
        assert await rig.text_of("hello") == "hello"
        [session_id] = bad.sessions
        bad.behaviors["tools/call"] = answer_with(b"{not json")
        await rig.problem_of("hello")
        await rig.connections.tools_of(CHAT, [config("http://u:p4ss@127.0.0.1:1/mcp?key=s3cret", key="dead")])

    assert "mcp_server_skipped" in caplog.text
    assert "s3cret" not in caplog.text
    assert "p4ss" not in caplog.text
    assert session_id not in caplog.text
