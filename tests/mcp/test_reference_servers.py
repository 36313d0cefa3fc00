"""The reference servers, as people use them: over stdio behind a bridge, and `everything` over HTTP by itself."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rookery.mcp import connection_pool as connections_module
from rookery.mcp.call_results import CallResult, InputRequired, Progress, Resume
from tests.eventually import until
from tests.mcp.mcp_rig import McpRig, config, open_connections
from tests.mcp.node_servers import ENVIRONMENT, NODE_MODULES, bridged, needs_node_packages

NODE_BIN = NODE_MODULES / ".bin"


@pytest.fixture(autouse=True)
def _wait_for_slow_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node and Python take seconds to start on a busy machine."""
    monkeypatch.setattr(connections_module, "OPEN_SECONDS", 60.0)


@asynccontextmanager
async def stdio_server(*command: str, env: Mapping[str, str] | None = None) -> AsyncIterator[McpRig]:
    async with bridged(command, env=env) as url, open_connections() as connections:
        yield McpRig(connections, config(url, call_seconds=60.0))


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


async def names_of(rig: McpRig) -> set[str]:
    tools = await rig.list()
    assert tools.problem is None, tools.problem
    return {tool.name for tool in tools.tools}


async def test_time() -> None:
    async with stdio_server(*module("mcp_server_time", "--local-timezone", "Europe/Oslo")) as rig:
        assert await names_of(rig) == {"get_current_time", "convert_time"}
        arguments = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        converted = await rig.text_of("convert_time", arguments)

    assert re.search(r'"time_difference": "\+[78]\.0h"', converted)


def repository(folder: Path) -> None:
    for arguments in (["init", "-q"], ["config", "user.email", "a@b.test"], ["config", "user.name", "A"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


async def test_git(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "a.txt").write_text("one\n")
    async with stdio_server(*module("mcp_server_git", "--repository", str(tmp_path))) as rig:
        assert {"git_status", "git_add", "git_commit", "git_log"} <= await names_of(rig)
        assert "a.txt" in await rig.text_of("git_status", {"repo_path": str(tmp_path)})
        await rig.text_of("git_add", {"repo_path": str(tmp_path), "files": ["a.txt"]})
        committed = await rig.text_of("git_commit", {"repo_path": str(tmp_path), "message": "First"})
        refused = await rig.call("git_log", {"repo_path": "/"})

    assert "committed" in committed
    assert isinstance(refused, CallResult)
    assert refused.is_error


async def test_fetch() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = ("200 OK", b"The page says hello.") if b"/page" in head else ("404 Not Found", b"")
        kind = "Content-Type: text/plain\r\nConnection: close"
        writer.write(f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    pages = await asyncio.start_server(page, "127.0.0.1", 0)
    port = pages.sockets[0].getsockname()[1]
    async with pages, stdio_server(*module("mcp_server_fetch", "--allow-private-ips")) as rig:
        assert await names_of(rig) == {"fetch"}
        fetched = await rig.text_of("fetch", {"url": f"http://127.0.0.1:{port}/page"})

    assert "The page says hello." in fetched


@needs_node_packages
async def test_filesystem(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first line\nsecond line\n")
    async with stdio_server(str(NODE_BIN / "mcp-server-filesystem"), str(tmp_path)) as rig:
        assert {"read_text_file", "write_file", "list_directory"} <= await names_of(rig)
        read = await rig.call("read_text_file", {"path": str(tmp_path / "a.txt"), "head": 1})
        await rig.text_of("write_file", {"path": str(tmp_path / "b.txt"), "content": "written"})
        refused = await rig.call("read_text_file", {"path": "/etc/passwd"})

    assert isinstance(read, CallResult)
    assert read.text == "first line"
    assert (tmp_path / "b.txt").read_text() == "written"
    assert isinstance(refused, CallResult)
    assert refused.is_error


@needs_node_packages
async def test_memory(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    entity = {"name": "Rookery", "entityType": "project", "observations": ["has a client for MCP"]}
    async with stdio_server(str(NODE_BIN / "mcp-server-memory"), env=env) as rig:
        assert {"create_entities", "search_nodes", "read_graph"} <= await names_of(rig)
        await rig.text_of("create_entities", {"entities": [entity]})
        found = await rig.call("search_nodes", {"query": "client"})

    assert isinstance(found, CallResult)
    assert found.structured["entities"][0]["name"] == "Rookery"


@asynccontextmanager
async def everything() -> AsyncIterator[McpRig]:
    """The server `everything` over streamable HTTP with sessions, as it starts itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        str(NODE_BIN / "mcp-server-everything"),
        "streamableHttp",
        env={**ENVIRONMENT, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        await until(listens)
        async with open_connections() as connections:
            yield McpRig(connections, config(f"http://127.0.0.1:{port}/mcp"))
    finally:
        server.terminate()
        await server.wait()


@needs_node_packages
async def test_everything() -> None:
    told: list[Progress] = []
    async with everything() as rig:
        names = await names_of(rig)
        assert {"echo", "get-tiny-image", "trigger-long-running-operation", "trigger-elicitation-request"} <= names
        assert await rig.text_of("echo", {"message": "hi"}) == "Echo: hi"
        image = await rig.call("get-tiny-image")
        await rig.text_of("trigger-long-running-operation", {"duration": 1, "steps": 2}, on_progress=told.append)
        asked = await rig.call("trigger-elicitation-request", call_key="ask")
        assert isinstance(asked, InputRequired)
        [request] = asked.requests
        properties: Mapping[str, Any] = (request.schema or {})["properties"]
        answer = {"action": "accept", "content": {"name": "Ada"} if "name" in properties else {}}
        answered = await rig.call(
            "trigger-elicitation-request", call_key="ask", resume=Resume(responses={request.id: answer})
        )

    assert isinstance(image, CallResult)
    assert image.media[0].mime_type == "image/png"
    assert told[-1].total == 2
    assert isinstance(answered, CallResult)
    assert "Ada" in answered.text
