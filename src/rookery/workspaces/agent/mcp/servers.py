"""The MCP servers of the workspace: starts them, lists their tools, and calls tools for chats.

Files of the workspace configure them. An MCP server is started only after Rookery has sent its entry, to which the
owner has agreed. A changed entry needs a new decision. Only entries, tool definitions and results leave the workspace.
If an MCP server has exited, the next call starts it again.

Servers with a URL are called by Rookery and not from the workspace. For them, the agent only returns the headers, and
only for an entry to which the owner has agreed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from rookery.workspaces.agent import config as configs
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.journal import Attempt, hash_of
from rookery.workspaces.agent.mcp.config import BadConfig, ServerConfig, is_name
from rookery.workspaces.agent.mcp.stdio import CALL_S, CONNECT_S, McpFailed, StdioSession
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import VERSION, Agent

MCP_SERVER = "mcp_server"
PENDING = "pending"
MAX_SERVERS = 20
MAX_SETTLE_S = 30.0
# Chosen: the limit for all tool definitions of one server together.
MAX_DEFINITIONS_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 4096


class Server:
    """One configured server, with its session, its tools, or the error of its start.

    A server with a URL has no session. `digest` then identifies the values of its headers.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.session: StdioSession | None = None
        self.tools: list[dict[str, Any]] = []
        self.error: str | None = None
        self.digest: str | None = None
        self.connecting: asyncio.Task[None] | None = None

    def described(self, ordinal: int) -> dict[str, Any]:
        data = json.dumps(self.tools, sort_keys=True).encode()
        value = _described(self.config, ordinal, "ok" if self.error is None else "unreadable")
        value["hash"] = self.digest or hashlib.sha256(data).hexdigest()
        value["size"] = len(data) if self.tools else 0
        if self.error is not None:
            value["error"] = self.error
        else:
            value["tools"] = self.tools
        return value

    @property
    def has_answered(self) -> bool:
        return self.error is not None or self.session is not None or self.digest is not None


class McpServers:
    """All configured servers. `on_change` is called when the tools of a server have changed."""

    def __init__(self, agent: Agent, on_change: Callable[[], None]) -> None:
        self._agent = agent
        self._on_change = on_change
        self._configured: dict[str, ServerConfig] = {}
        self._agreed: dict[str, dict[str, Any]] = {}
        self._servers: dict[str, Server] = {}
        # A plain hash of a short secret could be reversed by trying all values.
        self._digest_key = os.urandom(32)

    def update(self, configured: Sequence[ServerConfig]) -> None:
        """Set the currently configured servers. Unchanged servers keep running."""
        self._configured = {each.name: each for each in configured[:MAX_SERVERS]}
        self._apply()

    def _apply(self) -> None:
        """Start and stop servers, so that exactly those run that are configured and agreed to."""
        wanted = {name: config for name, config in self._configured.items() if self._may_run(config)}
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.config:
                del self._servers[name]
                self._end(server)
        for name, config in wanted.items():
            if name not in self._servers:
                server = self._servers[name] = Server(config)
                server.connecting = self._agent.background(self._connect(server))

    def _may_run(self, config: ServerConfig) -> bool:
        return self._agreed.get(config.name) == config.entry()

    async def set_agreed(self, request: Request) -> Response:
        """Set the list of entries that the owner has agreed to. Wait up to `wait_s` for servers that start."""
        body = await request.json()
        entries = body.get("servers")
        if not isinstance(entries, list) or not all(_is_entry(each) for each in entries):
            raise invalid("servers", "must be a list of entries")
        wait_s = body.get("wait_s", 0)
        if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= MAX_SETTLE_S:
            raise invalid("wait_s", f"must be a number from 0 to {MAX_SETTLE_S:g}")
        before = set(self._servers)
        self._agreed = {each["name"]: each for each in entries}
        self._apply()
        if set(self._servers) != before:
            self._on_change()
        await self.wait_started(wait_s)
        return Response.json({"running": sorted(self._servers)})

    async def wait_started(self, seconds: float) -> None:
        """Wait at most this long until every server has started or failed."""
        tasks = [each.connecting for each in self._servers.values() if each.connecting is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def described(self, first: int) -> list[dict[str, Any]]:
        """Return the context resources of all configured servers, sorted by name and numbered from `first`."""
        described = []
        for ordinal, (name, config) in enumerate(sorted(self._configured.items()), first):
            server = self._servers.get(name)
            has_answered = server is not None and server.has_answered
            description = server.described(ordinal) if server and has_answered else _described(config, ordinal, PENDING)
            described.append(description)
        return described

    def _end(self, server: Server) -> None:
        if server.connecting is not None:
            server.connecting.cancel()
        if server.session is not None:
            server.session.close()

    async def _connect(self, server: Server) -> None:
        if server.config.command is None:
            self._prepare_headers(server)
        else:
            await self._start(server)
        self._on_change()

    def _prepare_headers(self, server: Server) -> None:
        """Set the digest of the headers, by which Rookery notices new values, or the error if they cannot be sent."""
        try:
            headers = server.config.sent_headers(self._environment())
        except BadConfig as error:
            server.error = str(error)
            return
        data = json.dumps(headers, sort_keys=True).encode()
        server.digest = hmac.new(self._digest_key, data, hashlib.sha256).hexdigest()

    async def _start(self, server: Server) -> None:
        session = StdioSession(server.config, VERSION, lambda: self._on_tools_changed(server))
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

    def _on_tools_changed(self, server: Server) -> None:
        self._agent.background(self._refresh_tools(server))

    async def _refresh_tools(self, server: Server) -> None:
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
        server = self._agreed_server(name, body.get("entry"))
        if server.config.command is None:
            raise AgentError(404, "no_server", f"The MCP server {name[:100]} does not run in the workspace.")
        key = request.idempotency_key

        async def run(attempt: Attempt) -> Response:
            params: dict[str, Any] = {"name": tool, "arguments": arguments}
            if key is not None:
                params["_meta"] = {"rookery/idempotency-key": key}
            return Response.json(_result(await self._call_tool(server, params)))

        digest = hash_of(json.dumps(body, sort_keys=True))
        return await self._agent.journal.once(key, "mcp", digest, run)

    async def headers(self, request: Request) -> Response:
        """Return the headers of a server with a URL, with their values."""
        body = await request.json()
        name = body.get("server")
        if not isinstance(name, str) or not is_name(name):
            raise invalid("server", "is not the name of a server")
        server = self._agreed_server(name, body.get("entry"))
        if server.config.command is not None:
            raise AgentError(404, "no_server", f"The MCP server {name[:100]} has no URL.")
        try:
            return Response.json({"headers": server.config.sent_headers(self._environment())})
        except BadConfig as error:
            raise AgentError(409, "headers_unusable", str(error)) from error

    def _agreed_server(self, name: str, entry: object) -> Server:
        """Return the server of a request, which contains the entry that the owner has agreed to."""
        config = self._configured.get(name)
        if config is None:
            raise AgentError(404, "no_server", f"This workspace has no MCP server {name[:100]}.")
        if not (_is_entry(entry) and entry == config.entry()):
            message = f"The entry of the MCP server {name[:100]} is not the one that the owner has agreed to."
            raise AgentError(409, "not_agreed", message)
        self._agreed[name] = config.entry()
        self._apply()
        return self._servers[name]

    async def _call_tool(self, server: Server, params: dict[str, Any]) -> Any:
        try:
            return await (await self._running_session(server)).request("tools/call", params, CALL_S)
        except McpFailed as error:
            message = f"The MCP server {server.config.name} failed: {error}."
            raise AgentError(502, "mcp_failed", message) from error

    async def _running_session(self, server: Server) -> StdioSession:
        """Return the session of a running server. Start an exited server again, once for all concurrent callers."""
        if server.session is None or server.session.is_over:
            if server.connecting is None or server.connecting.done():
                server.session = None
                server.connecting = self._agent.background(self._connect(server))
            await asyncio.wait({server.connecting})
        if server.session is None or server.session.is_over:
            raise McpFailed(server.error or "it has ended")
        return server.session


def _described(config: ServerConfig, ordinal: int, status: str) -> dict[str, Any]:
    return {
        "ordinal": ordinal,
        "kind": MCP_SERVER,
        "source": config.name,
        "root": config.folder,
        "hash": "",
        "size": 0,
        "status": status,
        "entry": config.entry(),
    }


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _definitions(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool definitions, up to the size limit."""
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
    router.add("POST", "/v1/mcp/headers", servers.headers)
    router.add("POST", "/v1/mcp/servers", servers.set_agreed)
