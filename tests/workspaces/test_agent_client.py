"""The client of a workspace agent: its requests, accepted responses, and protection from hostile agents."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest
from aiohttp import web

from rookery.runtime.clock import Clock, SystemClock
from rookery.telemetry.tracing import spans
from rookery.testing import FakeClock
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import POOL_IDLE_SECONDS, AgentHttp, AgentPools, ChatHeaders
from rookery.workspaces.agent_messages import Edit, FileEdits, StartProcess
from rookery.workspaces.errors import AgentError, AgentUnreachable
from tests.otlp_collector import exporting, otlp_collector
from tests.workspaces.fake_agent import FakeAgent, UnixPath, fake_agent

CHAT, PARENT, KEY = UUID(int=1), UUID(int=2), UUID(int=3)
WORKSPACE = UUID(int=4)


@asynccontextmanager
async def connected(clock: Clock | None = None) -> AsyncIterator[tuple[FakeAgent, AgentConn]]:
    async with fake_agent() as agent:
        http = AgentHttp(UnixPath(agent.path), token="secret", generation=1, clock=clock or SystemClock())
        try:
            yield agent, AgentConn(http, ChatHeaders(CHAT, (PARENT,)))
        finally:
            await http.close()


async def test_every_request_says_who_asks() -> None:
    async with connected() as (agent, conn):
        health = await conn.health()

        headers = agent.requests[0].headers
        assert headers["Authorization"] == "Bearer secret"
        assert headers["X-Rookery-Generation"] == "1"
        assert headers["X-Rookery-Chat-Id"] == str(CHAT)
        assert json.loads(headers["X-Rookery-Ancestor-Ids"]) == [str(PARENT)]
        assert health.home == "/home/agent"


async def test_effects_carry_their_key_and_reads_do_not() -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/files"] = lambda _: answer({"ok": True, "bytes": 3, "created": True})
        agent.answers["/v1/files/edit"] = lambda _: answer({"files": [{"path": "/a", "edits": [{"matches": 1}]}]})
        agent.answers["/v1/processes"] = lambda _: answer({"id": "p1"})

        written = await conn.write_file("/a", b"abc", key=KEY)
        edited = await conn.edit_files([FileEdits(path="/a", edits=(Edit(old_text="a", new_text="b"),))], key=KEY)
        started = await conn.start_process(StartProcess(command="true"), key=KEY)
        await conn.health()

        assert (written.created, edited[0].edits[0].matches, started.id) == (True, 1, "p1")
        assert [each.headers.get("Idempotency-Key") for each in agent.requests] == [str(KEY)] * 3 + [None]


class Tunnel(UnixPath):
    """A tunnel that fails until it was prepared this often."""

    def __init__(self, path: str, *, after: int) -> None:
        super().__init__(f"{path}.lost")
        self._path = path
        self._after = after
        self.prepared = 0

    async def prepare(self) -> None:
        self.prepared += 1
        if self.prepared >= self._after:
            self.unix_path = self._path


async def test_tunnel_that_was_lost_is_opened_again_for_the_request_that_finds_out() -> None:
    async with fake_agent() as agent:
        agent.answers["/v1/processes"] = lambda _: answer({"id": "p1"})
        tunnel = Tunnel(agent.path, after=2)
        http = AgentHttp(tunnel, token="secret", generation=1, clock=SystemClock())

        # Without a key: no byte of it was sent the first time.
        started = await AgentConn(http).start_process(StartProcess(command="true"))
        await http.close()

        assert started.id == "p1"
        assert len(agent.requests) == 1


async def test_agent_that_is_gone_is_tried_twice_and_no_more() -> None:
    async with fake_agent() as agent:
        tunnel = Tunnel(agent.path, after=3)
        http = AgentHttp(tunnel, token="secret", generation=1, clock=SystemClock())

        with pytest.raises(AgentUnreachable):
            await AgentConn(http).health()
        await http.close()

        assert tunnel.prepared == 2


async def test_refusal_carries_the_agents_message_alone() -> None:
    async with connected() as (_, conn):
        with pytest.raises(AgentError) as caught:
            await conn.list_dir("/nowhere")

        assert (caught.value.status, caught.value.code) == (404, "not_found")
        assert str(caught.value) == "There is no such thing."


async def test_answer_larger_than_its_limit_is_not_read_on() -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/health"] = endless

        with pytest.raises(AgentError, match="larger than"):
            await conn.health()


async def test_file_is_never_longer_than_asked_for() -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/files"] = endless

        with pytest.raises(AgentError, match="larger than 100 bytes"):
            await conn.read_bytes("/a", max_bytes=100)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"nonsense", b"[]", b"\xff", b"[" * 100_000),
        *(b'{"generation": "x", "api": 1}', b'{"api": 1, "generation": 1, "home": 5}'),
        # Values that no database column accepts.
        b'{"api": 1, "generation": 1, "os": "a\\u0000b"}',
        b'{"api": 1, "generation": 1, "arch": "\\ud800"}',
        b'{"api": 1, "generation": 1, "startup_exit_code": 99999999999}',
    ],
)
async def test_answer_that_is_not_the_protocol_is_an_error_of_the_agent(body: bytes) -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/health"] = lambda _: raw(body)

        with pytest.raises(AgentError) as caught:
            await conn.health()

        assert caught.value.code == "bad_answer"


async def test_text_longer_than_the_protocol_allows_is_refused() -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/processes/p/output"] = lambda _: answer({"running": False, "output": "x" * 600_000})

        with pytest.raises(AgentError, match="cannot be read"):
            await conn.process_output("p")


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LIES = {
    "no HTTP": b"\x00\x01\x02\r\n\r\n",
    "an endless line": b"HTTP/1.1 200 " + b"x" * 1_000_000,
    "an endless header": HEAD + b"X: " + b"y" * 1_000_000,
    "headers without end": HEAD + b"X: y\r\n" * 200_000,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "less than it said": HEAD + b"Content-Length: 99\r\n\r\n{}",
    "chunks without end": CHUNKED + b"1\r\nx\r\n" * 200_000,
    "a chunk that is no number": CHUNKED + b"zz\r\n",
    "trailers without end": CHUNKED + b"0\r\n" + b"X: y\r\n" * 200_000,
    "a body that is packed": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "nothing to say": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("lie", LIES)
async def test_every_answer_of_a_replaced_agent_is_valid_or_an_error(lie: str) -> None:
    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(LIES[lie])
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory(prefix="rk") as folder:
        server = await asyncio.start_unix_server(answer_all, f"{folder}/liar")
        http = AgentHttp(UnixPath(f"{folder}/liar"), token="secret", generation=1, clock=SystemClock())
        with pytest.raises((AgentError, AgentUnreachable)) as caught:
            await AgentConn(http).health(seconds=60)
        await http.close()
        server.close()

    # Not by a timeout: a response that does not fit is detected immediately.
    assert not getattr(caught.value, "timed_out", False)
    assert folder not in str(caught.value)


async def test_answer_that_comes_byte_by_byte_has_the_time_of_any_other() -> None:
    clock = FakeClock()
    dripped = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b" ")
        dripped.set()
        return await never(request)

    async with connected(clock) as (agent, conn):
        agent.answers["/v1/health"] = drip
        asking = asyncio.create_task(conn.health())
        await dripped.wait()
        await clock.fire("agent-request")

        with pytest.raises(AgentUnreachable, match="within 30 s"):
            await asking


async def test_redirect_is_not_followed() -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})

    async with connected() as (agent, conn):
        agent.answers["/v1/health"] = elsewhere

        with pytest.raises(AgentError):
            await conn.health()

        assert len(agent.requests) == 1


async def test_answer_that_does_not_come_is_given_up_after_its_time() -> None:
    clock = FakeClock()
    async with connected(clock) as (agent, conn):
        agent.answers["/v1/health"] = never

        asking = asyncio.create_task(conn.health())
        await clock.fire("agent-request")

        with pytest.raises(AgentUnreachable, match="within 30 s") as caught:
            await asking
        assert caught.value.timed_out


@pytest.mark.parametrize(("wait", "seconds"), [(0.0, 30.0), (10.0, 25.0), (299.0, 314.0), (5000.0, 315.0)])
async def test_wait_gets_its_time_and_a_little_more(wait: float, seconds: float) -> None:
    clock = FakeClock()
    async with connected(clock) as (agent, conn):
        agent.answers["/v1/processes/p/output"] = never

        asking = asyncio.create_task(conn.process_output("p", wait=wait))
        await clock.until_waiting("agent-request")

        assert clock.waiting("agent-request")[0].due == seconds
        asking.cancel()
        await asyncio.wait({asking})


async def test_keyed_request_is_repeated_once_when_a_kept_connection_was_dead() -> None:
    async with connected() as (agent, conn):
        await conn.health()
        broken = breaking(times=1)
        agent.answers["/v1/processes"] = broken

        started = await conn.start_process(StartProcess(command="true"), key=KEY)

        assert (started.id, started.is_replay) == ("p1", False)
        assert [each.path for each in agent.requests].count("/v1/processes") == 2


async def test_request_without_a_key_is_not_repeated() -> None:
    async with connected() as (agent, conn):
        await conn.health()
        agent.answers["/v1/processes"] = breaking(times=1)

        with pytest.raises(AgentUnreachable):
            await conn.start_process(StartProcess(command="true"))

        assert [each.path for each in agent.requests].count("/v1/processes") == 1


async def test_second_break_in_a_row_is_an_error() -> None:
    async with connected() as (agent, conn):
        await conn.health()
        agent.answers["/v1/processes"] = breaking(times=9)

        with pytest.raises(AgentUnreachable):
            await conn.start_process(StartProcess(command="true"), key=KEY)


async def test_agent_that_is_not_there_is_unreachable_without_its_path() -> None:
    conn = AgentConn(AgentHttp(UnixPath("/nowhere/at/all.sock"), token="t", generation=1, clock=SystemClock()))

    with pytest.raises(AgentUnreachable) as caught:
        await conn.health()

    assert "/nowhere" not in str(caught.value)
    await conn._http.close()


async def test_process_id_of_a_model_stays_one_segment() -> None:
    async with connected() as (agent, conn):
        with pytest.raises(AgentError):
            await conn.process_output("../health?x=1")

        assert agent.requests[0].raw_path.startswith("/v1/processes/..%2Fhealth%3Fx=1/output")


async def test_context_that_did_not_change_is_none() -> None:
    async with connected() as (agent, conn):
        agent.answers["/v1/context"] = lambda _: raw(b"", status=304)
        assert await conn.context(after=3) is None

        agent.answers["/v1/context"] = lambda _: answer({"version": 4, "hash": "h", "resources": []})
        found = await conn.context(after=3)
        assert found is not None
        assert found.version == 4


async def test_git_stream_gives_its_lines() -> None:
    async def lines(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type":"changes","repositories":[{"root":"/p","addi')
        await response.write(b'tions":2}]}\n{"type":"changes","repositories":[]}\n')
        return response

    async with connected() as (agent, conn):
        agent.answers["/v1/git/watch"] = lines

        found = [message async for message in conn.watch_git(CHAT)]

        assert [[each.additions for each in message.repositories] for message in found] == [[2], []]


async def test_pools_are_kept_per_generation_and_closed_when_idle() -> None:
    clock = FakeClock()
    pools = AgentPools(clock)
    first, second, other = UnixPath("/a"), UnixPath("/b"), UnixPath("/c")

    old = pools.get(WORKSPACE, 1, token="t", connector=first)
    assert pools.get(WORKSPACE, 1, token="t", connector=second) is old
    new = pools.get(WORKSPACE, 2, token="u", connector=second)
    assert new is not old
    assert pools.find(WORKSPACE, 1) is None
    await clock.advance(POOL_IDLE_SECONDS)
    pools.get(UUID(int=9), 1, token="t", connector=other)
    assert pools.find(WORKSPACE, 2) is None

    await pools.close()
    assert first.is_closed
    assert second.is_closed
    assert other.is_closed


# Responses


async def answer(value: object) -> web.Response:
    return web.json_response(value)


async def raw(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status)


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b" " * 65536)
    except (ConnectionError, asyncio.CancelledError):
        return response


class breaking:
    """Drops the connection this many times instead of responding."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def __call__(self, request: web.Request) -> web.Response:
        if self.left:
            self.left -= 1
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.json_response({"id": "p1"})


async def test_requests_are_spans_without_paths_and_commands_and_carry_their_trace() -> None:
    with otlp_collector() as collector:
        async with exporting(collector), connected() as (agent, conn):
            agent.answers["/v1/processes"] = lambda _: answer({"id": "p1"})
            with spans.span("execute_tool"):
                await conn.start_process(StartProcess(command="cat /etc/classified"))
                with pytest.raises(AgentError):
                    await conn.process_output("classified-id")
            sent = agent.requests[0].headers["traceparent"]

    tool = collector.one("execute_tool")
    start, output = collector.named("agent ")
    assert [start.name, output.name] == ["agent POST /v1/processes", "agent GET /v1/processes/{id}/output"]
    assert {(each.trace_id, each.parent_id) for each in (start, output)} == {tool.id}
    assert (start.attributes["http.response.status_code"], output.attributes["http.response.status_code"]) == (200, 404)
    assert (output.has_failed, output.attributes["error.type"]) == (True, "AgentError")
    assert sent == f"00-{start.trace_id}-{start.span_id}-01"
    assert b"classified" not in b"".join(collector.bodies)


async def test_requests_carry_no_trace_while_tracing_is_off() -> None:
    async with connected() as (agent, conn):
        await conn.health()

        assert "traceparent" not in agent.requests[0].headers
