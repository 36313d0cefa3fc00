"""Connections to fake MCP servers on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.call_results import CallResult, Outcome
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.errors import McpError, Problem
from rookery.mcp.server_config import ServerConfig
from rookery.mcp.tool_lists import ServerTools
from rookery.runtime.clock import Clock, SystemClock
from rookery.testing.fake_mcp import FakeMcp

CHAT = UUID(int=1)


@dataclass
class McpRig:
    """One chat with one server."""

    connections: McpConnections
    server: ServerConfig
    chat_id: UUID = CHAT

    async def list(self) -> ServerTools:
        [tools] = await self.connections.tools_of(self.chat_id, [self.server])
        return tools

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Outcome:
        options.setdefault("call_key", "call-1")
        return await self.connections.call(self.chat_id, self.server, tool, arguments or {}, **options)

    async def text_of(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> str:
        result = await self.call(tool, arguments, **options)
        assert isinstance(result, CallResult)
        assert not result.is_error, result.text
        return result.text

    async def problem_of(self, tool: str, **options: Any) -> Problem:
        try:
            result = await self.call(tool, **options)
        except McpError as error:
            return error.problem
        raise AssertionError(f"The call succeeded: {result}")


def config(url: str, **fields: Any) -> ServerConfig:
    return ServerConfig(**{"key": "fake", "slug": "fake", "url": url, **fields})


@asynccontextmanager
async def open_connections(clock: Clock | None = None, *, allow_private: bool = True) -> AsyncIterator[McpConnections]:
    connections = McpConnections(mcp_guard(allow_private=allow_private), clock or SystemClock())
    try:
        yield connections
    finally:
        await connections.close()


@asynccontextmanager
async def mcp_rig(fake: FakeMcp, clock: Clock | None = None, **fields: Any) -> AsyncIterator[McpRig]:
    async with fake.listening() as url, open_connections(clock) as connections:
        yield McpRig(connections, config(url, **fields))
