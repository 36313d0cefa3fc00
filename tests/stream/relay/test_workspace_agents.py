"""Workspace agents on another machine: requests through a replica there, and errors if there is none."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import aiohttp
import pytest
from aiohttp import web

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import SystemClock
from rookery.server.listener import serving
from rookery.store.workspaces import context
from rookery.store.workspaces.workspaces import Workspace
from rookery.stream.relay.dial_tokens import TokenCheck, mint
from rookery.stream.relay.workspace_agents import AgentEndpoint, AgentPeers
from rookery.telemetry.tracing import spans
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.connection import ChatWorkspace
from rookery.workspaces.drivers.driver_interface import Connector
from rookery.workspaces.errors import AgentError, AgentUnreachable, NoConnection, Situation
from rookery.workspaces.relayed_connector import TOKEN_HEADER
from rookery.workspaces.workspace_lookup import StoreWorkspaceDirectory
from tests.otlp_collector import exporting, otlp_collector
from tests.workspaces.fake_agent import FakeAgent, UnixPath, fake_agent
from tests.workspaces.workspaces_rig import WorkspacesRig, open_yard

KEY = b"k" * 32
THERE = "there"


@dataclass
class Pair:
    """A workspace on one machine, and a chat that runs on another."""

    rig: WorkspacesRig
    agent: FakeAgent
    workspace: Workspace
    chat_id: ChatId
    url: str
    asker: UUID
    gate: AgentEndpoint
    directory: StoreWorkspaceDirectory

    def turn(self) -> ChatWorkspace:
        turn = ChatWorkspace(self.chat_id, self.directory, clock=SystemClock())
        turn.bind(self.workspace.id)
        return turn

    async def conn(self) -> AgentConn:
        return await self.turn().conn()

    async def move(self, url: str | None) -> None:
        """Change the published address of the replica on that machine."""
        await self.rig.pool.execute("UPDATE replicas SET relay_url = $2 WHERE host_id = $1", THERE, url)


@asynccontextmanager
async def served(gate: AgentEndpoint) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with serving(gate, listening):
            yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(open_yard(database_url))
        there, _ = rig.replica(node=THERE)
        here, _ = rig.replica(node="here")
        for each in (there, here):
            stack.push_async_callback(each.close)
            await rig.run(each)
        workspace = await rig.running(there)
        agent = await stack.enter_async_context(fake_agent(workspace.generation))

        async def find(workspace_id: UUID) -> Connector | None:
            # The row determines whether there is a replica; the test sets its responses.
            return UnixPath(agent.path) if await there.directory.find_own(workspace_id) is not None else None

        async def is_live(replica_id: UUID) -> bool:
            return replica_id == here.parts.replica_id

        check = TokenCheck(KEY, me=there.parts.replica_id, clock=SystemClock(), is_live=is_live)
        gate = AgentEndpoint(find, check)
        address = await stack.enter_async_context(served(gate))
        peers = AgentPeers(here.parts.replica_id, key=KEY, pool=rig.pool, clock=SystemClock(), tls=None)
        directory = StoreWorkspaceDirectory(replace(here.parts, peers=peers))
        stack.push_async_callback(directory.close)
        chat_id = await rig.world.chat(rig.owner)
        await context.bind(rig.world.conn, chat_id, workspace.id)
        made = Pair(rig, agent, workspace, chat_id, f"ws://{address}", here.parts.replica_id, gate, directory)
        await made.move(made.url)
        yield made


async def test_tools_of_another_machine_reach_the_agent_with_everything_they_say(pair: Pair) -> None:
    content, key = bytes(range(256)) * 8192, uuid4()

    async def write(request: web.Request) -> web.StreamResponse:
        body = {"bytes": len(await request.read()), "created": True}
        return web.json_response(body, headers={"Idempotent-Replay": "1"})

    pair.agent.answers["/v1/files"] = write
    pair.agent.answers["/v1/processes/a/b/output"] = refuse
    conn = await pair.conn()

    written = await conn.write_file("/p/ä b?&.txt", content, key=key)
    with pytest.raises(AgentError, match="no such process") as refused:
        await conn.process_output("a/b")

    assert (written.bytes, written.created) == (len(content), True)
    assert refused.value.status == 404
    health, put, asked = pair.agent.requests
    assert health.path == "/v1/health"
    assert put.query["path"] == "/p/ä b?&.txt"
    assert put.headers["Idempotency-Key"] == str(key)
    assert put.headers["X-Rookery-Chat-Id"] == str(pair.chat_id)
    assert put.headers["X-Rookery-Generation"] == str(pair.workspace.generation)
    assert put.headers["Authorization"].startswith("Bearer ")
    assert TOKEN_HEADER not in put.headers  # headers between replicas are not forwarded to the agent
    assert asked.raw_path.startswith("/v1/processes/a%2Fb/output")


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.json_response({"code": "process_not_found", "message": "There is no such process."}, status=404)


async def test_answers_are_forwarded_as_they_arrive_and_a_disconnect_is_noticed(pair: Pair) -> None:
    left = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await response.write(json.dumps({"type": "changes", "repositories": []}).encode() + b"\n")
            while True:
                await response.write(b"\n")
                await asyncio.sleep(0.01)
        finally:
            left.set()

    pair.agent.answers["/v1/git/watch"] = watch
    messages = (await pair.conn()).watch_git(pair.chat_id)

    first = await asyncio.wait_for(anext(messages), 30)
    await messages.aclose()
    await pair.directory.close()

    assert first.repositories == ()
    await asyncio.wait_for(left.wait(), 30)


async def test_agent_that_does_not_listen_is_no_answer_of_an_agent(pair: Pair) -> None:
    conn = await pair.conn()
    pair.agent.path += ".gone"

    with pytest.raises(AgentUnreachable, match="agent cannot be reached"):
        await conn.health()


async def test_machine_that_cannot_be_reached_is_told_apart_from_one_that_is_offline(pair: Pair) -> None:
    async def situation() -> Situation:
        with pytest.raises(NoConnection) as error:
            await pair.conn()
        return error.value.situation

    found = []
    for url in (None, "ws://203.0.113.7:1"):  # connections to other machines must be encrypted
        await pair.move(url)
        found.append(await situation())
    await pair.rig.pool.execute("DELETE FROM replicas WHERE host_id = $1", THERE)
    found.append(await situation())

    assert found == [Situation.OUT_OF_REACH, Situation.OUT_OF_REACH, Situation.NODE_OFFLINE]


async def test_replica_that_has_moved_is_found_again(pair: Pair) -> None:
    conn = await pair.conn()
    async with served(pair.gate) as address:
        await pair.move("ws://127.0.0.1:1")
        pool = pair.directory._pools.find(pair.workspace.id, pair.workspace.generation)
        assert pool is not None
        pool._connector.failed()  # type: ignore[attr-defined]
        with pytest.raises(AgentUnreachable):
            await conn.health()
        await pair.move(f"ws://{address}")

        assert (await conn.health()).generation == pair.workspace.generation


async def test_only_a_replica_is_admitted_and_only_to_workspaces_that_run_there(pair: Pair) -> None:
    there = await pair.rig.pool.fetchval("SELECT id FROM replicas WHERE host_id = $1", THERE)
    base = pair.url.replace("ws://", "http://") + "/internal/v1/agent"

    def token(*, key: bytes = KEY, src: UUID = pair.asker, dst: UUID = there) -> str:
        return mint(key, src=src, dst=dst, clock=SystemClock())

    async with aiohttp.ClientSession() as session:

        async def ask(token: str, named: object = pair.workspace.id) -> tuple[int, str]:
            async with session.get(f"{base}/{named}/v1/health", headers={TOKEN_HEADER: token}) as response:
                return response.status, (await response.json()).get("code", "")

        once = token()
        strangers = ["", "a.b", token(key=b"x" * 32), token(src=uuid4()), token(dst=uuid4())]
        refused = [await ask(each) for each in strangers]
        good, again = await ask(once), await ask(once)
        nowhere = [await ask(token(), named) for named in ("nonsense", UUID(int=1))]
        await pair.rig.world.conn.execute("UPDATE workspaces SET node = 'elsewhere'")
        moved = await ask(token())

    assert set(refused) == {(401, "unauthenticated")}
    assert (good, again) == ((200, ""), (401, "unauthenticated"))
    assert [*nowhere, moved] == [(404, "not_running")] * 3
    assert len(pair.agent.requests) == 1


async def test_trace_goes_through_the_other_machine_to_the_agent(pair: Pair) -> None:
    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("execute_tool"):
                await (await pair.conn()).health()
        sent = pair.agent.requests[-1].headers.getall("traceparent")

    asked, forwarded = collector.named("agent GET /v1/health")[-1], collector.named("relay agent")[-1]
    assert (forwarded.kind, forwarded.trace_id, forwarded.parent_id) == ("server", *asked.id)
    assert asked.trace_id == collector.one("execute_tool").trace_id
    assert sent == [f"00-{forwarded.trace_id}-{forwarded.span_id}-01"]
