"""The packages for Node that the tests of the MCP client run, and a bridge from HTTP to servers that speak stdio.

They have a folder and a lock of their own, because nothing of them belongs to the web application. `make` installs
them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.testing.fake_socket import Connection, serve

NODE_MODULES = Path(__file__).parent / "npm" / "node_modules"
# In CI the tests fail instead of being skipped.
needs_node_packages = pytest.mark.skipif(
    not (NODE_MODULES / "@modelcontextprotocol").is_dir() and not os.environ.get("CI"),
    reason="the packages of tests/mcp/npm are not installed",
)
# Where the machine has no Node, `make` has installed one beside Python.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
MAX_LINE_BYTES = 16 * 1024 * 1024


@asynccontextmanager
async def bridged(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Run a server that speaks stdio, and yield the address of a streamable HTTP endpoint in front of it.

    The bridge has one session. An answer of the server ends the POST with its id; all else goes to the event stream of
    the latest POST that waits.
    """
    server = await asyncio.create_subprocess_exec(
        *command,
        env={**ENVIRONMENT, **(env or {})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_LINE_BYTES,
    )
    waiting: dict[Any, Connection] = {}

    async def read() -> None:
        assert server.stdout is not None
        while line := await server.stdout.readline():
            message = msgspec.json.decode(line)
            is_answer = "method" not in message
            target = waiting.get(message.get("id")) if is_answer else next(reversed(waiting.values()), None)
            if target is None:
                continue
            await target.send_body(b"data: " + line.strip() + b"\n\n")
            if is_answer:
                del waiting[message["id"]]
                await target.end_response()

    async def answer(connection: Connection) -> None:
        assert server.stdin is not None
        while (head := await connection.read_request()) is not None:
            if head.method != "POST":
                await connection.start_response(405 if head.method == "GET" else 200, {}, length=0)
                continue
            message = msgspec.json.decode(head.body)
            if "method" in message and "id" in message:
                waiting[message["id"]] = connection
                kind = {"content-type": "text/event-stream", "mcp-session-id": "bridge"}
                await connection.start_response(200, kind, length=None)
            server.stdin.write(msgspec.json.encode(message) + b"\n")
            await server.stdin.drain()
            if "id" not in message or "method" not in message:
                await connection.start_response(202, {}, length=0)

    reading = asyncio.create_task(read())
    try:
        async with serve(answer) as port:
            yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        await server.wait()
        reading.cancel()
        await asyncio.wait({reading})
