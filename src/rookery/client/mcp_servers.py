"""MCP servers: those of the deployment, the caller's own, their tools, and the caller's logins at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from rookery.client.http import Http, path
from rookery.client.models import (
    CatalogEntry,
    McpConnect,
    McpDisconnect,
    McpServer,
    McpTest,
    McpTools,
)
from rookery.client.pages import Items


class AsyncMcpServers:
    """`client.mcp_servers`. With `own`, a method manages a server of the caller; without it, one of the deployment."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[McpServer, ...]:
        """Return the servers that the caller may use, and the caller's own. Administrators get all."""
        return (await self._http.read(Items[McpServer], "/mcp-servers")).items

    async def catalog(self) -> tuple[CatalogEntry, ...]:
        """Return well-known servers, with their addresses and the authentication that they take."""
        return (await self._http.read(Items[CatalogEntry], "/mcp-servers/catalog")).items

    async def get(self, server_id: UUID | str) -> McpServer:
        """Return a server. `login.state` is `connected` once the caller has logged in."""
        return await self._http.read(McpServer, path("mcp-servers", server_id))

    async def tools(self, server_id: UUID | str) -> McpTools:
        """Return the tools that the server had when it was asked last."""
        return await self._http.read(McpTools, path("mcp-servers", server_id, "tools"))

    async def create(self, slug: str, url: str, *, own: bool = False, **fields: Any) -> McpServer:
        """Add a server. `fields` are those of the API, such as `auth_type`, `api_key` and `availability`."""
        target = "/me/mcp-servers" if own else "/mcp-servers"
        return await self._http.write(McpServer, "POST", target, body={"slug": slug, "url": url, **fields})

    async def update(self, server_id: UUID | str, changes: Mapping[str, Any], *, own: bool = False) -> McpServer:
        """Change the given fields. A header with the value `***` keeps its stored value."""
        return await self._http.write(McpServer, "PATCH", _target(server_id, own), body=dict(changes))

    async def delete(self, server_id: UUID | str, *, own: bool = False) -> None:
        """Delete a server with all logins. Chats no longer use it."""
        await self._http.send("DELETE", _target(server_id, own))

    async def test(self, server_id: UUID | str, *, own: bool = False) -> McpTest:
        """Connect to a server and list its tools, within 30 seconds. `error` says what is wrong."""
        return await self._http.write(McpTest, "POST", _target(server_id, own) + "/test")

    async def connect(self, server_id: UUID | str) -> McpConnect:
        """Begin a login. Its address works only in the browser that sends this request, so programs cannot use it.

        Show the user the page of connections instead, and ask `get` until the login is there.
        """
        return await self._http.write(McpConnect, "POST", path("mcp-servers", server_id, "oauth", "connect"))

    async def disconnect(self, server_id: UUID | str) -> McpDisconnect:
        """End the caller's login at a server and revoke it there."""
        return await self._http.write(McpDisconnect, "DELETE", path("mcp-servers", server_id, "oauth"))


def _target(server_id: UUID | str, own: bool) -> str:
    return path("me", "mcp-servers", server_id) if own else path("mcp-servers", server_id)
