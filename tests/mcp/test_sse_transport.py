"""The transport of protocol version 2024-11-05, against a server of the official package, and the fallback to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from rookery.mcp.call_results import Progress
from rookery.mcp.errors import ProblemKind
from rookery.mcp.server_config import Transport
from rookery.testing.fake_socket import Connection, serve
from tests.eventually import until
from tests.mcp.mcp_rig import McpRig, config, open_connections


def made_server() -> MCPServer:
    server = MCPServer("old")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def count(ctx: Context) -> str:
        """Count to two."""
        await ctx.report_progress(1, 2, "one")
        return "x" * (2 * 1024 * 1024)

    return server


@asynccontextmanager
async def sse_server() -> AsyncIterator[str]:
    app = made_server().sse_app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/sse"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize("transport", ["sse", "auto"])
async def test_tools_are_listed_and_called(transport: Transport) -> None:
    told: list[Progress] = []
    async with sse_server() as url, open_connections() as connections:
        rig = McpRig(connections, config(url, transport=transport))
        found = await rig.list()
        assert found.problem is None
        assert [tool.name for tool in found.tools] == ["add", "count"]
        assert await rig.text_of("add", {"a": 1, "b": 2}) == "3"
        # More than the limit of the official client, which is one megabyte.
        assert len(await rig.text_of("count", on_progress=told.append)) == 2 * 1024 * 1024

    assert told == [Progress(1, 2, "one")]


async def test_a_lost_stream_ends_the_call_and_the_next_one_connects_again() -> None:
    async with open_connections() as connections:
        async with sse_server() as url:
            rig = McpRig(connections, config(url, transport="sse"))
            assert await rig.text_of("add", {"a": 1, "b": 2}) == "3"
        problem = await rig.problem_of("add")
        assert problem.kind is ProblemKind.UNREACHABLE


async def test_an_address_that_is_no_server_is_told() -> None:
    async with sse_server() as url, open_connections() as connections:
        rig = McpRig(connections, config(url.replace("/sse", "/nothing")))
        problem = (await rig.list()).problem

    assert problem is not None
    assert (problem.kind, problem.status) == (ProblemKind.HTTP, 404)


@pytest.mark.parametrize("endpoint", ["http://169.254.169.254/messages", "//10.0.0.1/messages", "file:///etc/passwd"])
async def test_messages_are_not_sent_to_another_origin(endpoint: str) -> None:
    async def name_another(connection: Connection) -> None:
        while (head := await connection.read_request()) is not None:
            asked.append(head.method)
            await connection.start_response(200, {"content-type": "text/event-stream"}, length=None)
            await connection.send_body(f"event: endpoint\ndata: {endpoint}\n\n".encode())
            await connection.gone.wait()

    asked: list[str] = []
    async with serve(name_another) as port, open_connections() as connections:
        rig = McpRig(connections, config(f"http://127.0.0.1:{port}/sse", transport="sse"))
        problem = (await rig.list()).problem

    assert problem is not None
    assert problem.kind is ProblemKind.REDIRECTED
    assert asked == ["GET"]
