"""The MCP servers of the workspace: started, asked for their tools, and called on behalf of chats.

They are programs of the workspace like any other; nothing of them reaches the server but names, definitions of tools
and results. A server that has ended is started again by the next call of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from rookery.workspaces.agent import config as configs
from rookery.workspaces.agent.agent import VERSION, Agent
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.http import Request, Response
from rookery.workspaces.agent.journal import Attempt, hash_of
from rookery.workspaces.agent.mcp_config import ServerConfig, is_name
from rookery.workspaces.agent.mcp_stdio import CALL_S, CONNECT_S, McpFailed, StdioSession
from rookery.workspaces.agent.routing import Router

MCP_SERVER = "mcp_server"
MAX_SERVERS = 20
# What the definitions of one server may take together; chosen.
MAX_DEFINITIONS_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 4096
NO_ADDRESSES = "This MCP server has a `url`. This version uses only servers with a `command`, run in the workspace."


class Server:
    """One server as its configuration says."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.session: StdioSession | None = None
        self.tools: list[dict[str, Any]] = []
        self.error: str | None = None
        self.connecting: asyncio.Task[None] | None = None

    def described(self, ordinal: int) -> dict[str, Any]:
        data = json.dumps(self.tools, sort_keys=True).encode()
        value: dict[str, Any] = {
            "ordinal": ordinal,
            "kind": MCP_SERVER,
            "source": self.config.name,
            "root": self.config.folder,
            "hash": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "status": "ok" if self.error is None else "unreadable",
        }
        if self.error is not None:
            value["error"] = self.error
        else:
            value["tools"] = self.tools
        return value


class McpServers:
    """`on_change` is called when a server has other tools than before."""

    def __init__(self, agent: Agent, on_change: Callable[[], None]) -> None:
        self._agent = agent
        self._on_change = on_change
        self._servers: dict[str, Server] = {}

    def update(self, wanted: Sequence[ServerConfig]) -> None:
        """These are the servers from now on; those that are as before go on."""
        kept = {each.name: each for each in wanted[:MAX_SERVERS]}
        for name, server in list(self._servers.items()):
            if kept.get(name) != server.config:
                del self._servers[name]
                self._end(server)
        for name, config in kept.items():
            if name not in self._servers:
                server = self._servers[name] = Server(config)
                server.connecting = self._agent.background(self._connect(server))

    async def settle(self, seconds: float) -> None:
        """Until every server has answered or failed, at most so long."""
        tasks = [each.connecting for each in self._servers.values() if each.connecting is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def described(self, first: int) -> list[dict[str, Any]]:
        """Those that have answered or failed, by name."""
        settled = [each for _, each in sorted(self._servers.items()) if each.error is not None or each.session]
        return [server.described(first + place) for place, server in enumerate(settled)]

    def _end(self, server: Server) -> None:
        if server.connecting is not None:
            server.connecting.cancel()
        if server.session is not None:
            server.session.close()

    async def _connect(self, server: Server) -> None:
        if server.config.command is None:
            server.error = NO_ADDRESSES
        else:
            await self._start(server)
        self._on_change()

    async def _start(self, server: Server) -> None:
        session = StdioSession(server.config, VERSION, lambda: self._changed(server))
        try:
            await asyncio.wait_for(session.start(self._agent.children, self._environment()), CONNECT_S)
            server.tools = _definitions(await asyncio.wait_for(session.list_tools(), CONNECT_S))
            server.session, server.error = session, None
        except (McpFailed, asyncio.TimeoutError) as error:
            session.close()
            server.session, server.tools = None, []
            server.error = f"The server cannot be used: {str(error) or 'it does not answer'}."
            self._agent.log(f"mcp: {server.config.name}: {server.error}")
        except BaseException:
            session.close()
            raise

    def _environment(self) -> dict[str, str]:
        return configs.environment(self._agent.config)

    def _changed(self, server: Server) -> None:
        self._agent.background(self._look_again(server))

    async def _look_again(self, server: Server) -> None:
        session = server.session
        if session is None:
            return
        try:
            found = _definitions(await session.list_tools())
        except McpFailed as error:
            self._agent.log(f"mcp: {server.config.name}: {error}")
            return
        if found != server.tools:
            server.tools = found
            self._on_change()

    async def call(self, request: Request) -> Response:
        body = await request.json()
        name, tool, arguments = body.get("server"), body.get("tool"), body.get("arguments", {})
        if not isinstance(name, str) or not is_name(name):
            raise invalid("server", "is not the name of a server")
        if not isinstance(tool, str) or not tool:
            raise invalid("tool", "is not the name of a tool")
        if not isinstance(arguments, dict):
            raise invalid("arguments", "must be an object")
        server = self._servers.get(name)
        if server is None:
            raise AgentError(404, "no_server", f"This workspace has no MCP server {name[:100]}.")
        key = request.idempotency_key

        async def run(attempt: Attempt) -> Response:
            params: dict[str, Any] = {"name": tool, "arguments": arguments}
            if key is not None:
                params["_meta"] = {"rookery/idempotency-key": key}
            return Response.json(_result(await self._asked(server, params)))

        digest = hash_of(json.dumps(body, sort_keys=True))
        return await self._agent.journal.once(key, "mcp", digest, run)

    async def _asked(self, server: Server, params: dict[str, Any]) -> Any:
        try:
            return await (await self._running(server)).request("tools/call", params, CALL_S)
        except McpFailed as error:
            message = f"The MCP server {server.config.name} failed: {error}."
            raise AgentError(502, "mcp_failed", message) from error

    async def _running(self, server: Server) -> StdioSession:
        """Its session; one that has ended is started again, by one of those who want it."""
        if server.session is None or server.session.is_over:
            if server.connecting is None or server.connecting.done():
                server.session = None
                server.connecting = self._agent.background(self._connect(server))
            await asyncio.wait({server.connecting})
        if server.session is None or server.session.is_over:
            raise McpFailed(server.error or "it has ended")
        return server.session


def _definitions(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What models are told of tools, within bounds: those that fit."""
    kept, size = [], 0
    for tool in tools:
        schema = tool.get("inputSchema")
        found = {
            "name": str(tool["name"])[:128],
            "description": str(tool.get("description") or "")[:MAX_DESCRIPTION_CHARS],
            "inputSchema": schema if isinstance(schema, dict) else {},
        }
        size += len(json.dumps(found))
        if size > MAX_DEFINITIONS_BYTES:
            break
        kept.append(found)
    return kept


def _result(value: Any) -> dict[str, Any]:
    given = value if isinstance(value, dict) else {}
    content = given.get("content")
    answer: dict[str, Any] = {
        "content": [each for each in content if isinstance(each, dict)] if isinstance(content, list) else [],
        "is_error": given.get("isError") is True,
    }
    if isinstance(given.get("structuredContent"), dict):
        answer["structured"] = given["structuredContent"]
    return answer


def register(router: Router, servers: McpServers) -> None:
    router.add("POST", "/v1/mcp/call", servers.call)
