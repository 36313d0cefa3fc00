"""The client that the conformance kit runs for its scenarios of logins. The user agrees to every login.

python -m tests.mcp.oauth.conformance_client URL

`CONFORMANCE_DATABASE_URL` is the database that keeps the logins.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.mcp.oauth import LoginError
from rookery.domain.mcp.server import AuthType, McpServer
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.errors import McpError
from rookery.mcp.guarded_http import guarded_client
from rookery.mcp.oauth import discovery
from rookery.mcp.oauth.logins import Callback, McpLogins
from rookery.mcp.server_config import ServerConfig
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.store.mcp import servers
from rookery.store.mcp.servers import ServerDraft
from tests.mcp.mcp_rig import CHAT
from tests.mcp.oauth.login_rig import Published

# The kit knows this document.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
REDIRECT = "http://localhost:3000/callback"
MAX_LOGINS = 3


class User:
    """A user who uses a server, and logs in whenever it asks for that."""

    def __init__(self, pool: asyncpg.Pool, ring: KeyRing) -> None:
        self._pool = pool
        self._ring = ring
        self._guard = mcp_guard(allow_private=True)
        self._clock = SystemClock()
        self._logins = McpLogins(
            pool, ring=ring, http=lambda: guarded_client(self._guard), clock=self._clock, publisher=Published()
        )
        self._count = 0

    async def use(self, url: str) -> None:
        name = f"user-{uuid4().hex}"
        user = UUID(str(await self._pool.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", name)))
        server = await self._server(url)
        for _ in range(MAX_LOGINS + 1):
            try:
                await self._call_tools(server, user)
                return
            except McpError as error:
                if not error.problem.needs_login or self._count == MAX_LOGINS:
                    raise
                self._count += 1
                await self._log_in(server, user)

    async def _server(self, url: str) -> McpServer:
        draft = ServerDraft(slug="kit", url=url, auth_type=AuthType.OAUTH2)
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
        if "client_id" in context:
            async with guarded_client(self._guard) as http:
                found = (await discovery.discover(http, url)).metadata
            secret = context.get("client_secret")
            draft = ServerDraft(
                slug="kit",
                url=url,
                auth_type=AuthType.OAUTH2,
                oauth_client_id=context["client_id"],
                oauth_client_secret=None if secret is None else SecretStr(secret),
                oauth_authorization_url=found.authorization_endpoint,
                oauth_token_url=found.token_endpoint,
            )
        async with self._pool.acquire() as conn:
            return await servers.create_server(conn, draft, ring=self._ring, by=None)

    async def _call_tools(self, server: McpServer, user: UUID) -> None:
        session = self._logins.session(server, user)
        config = ServerConfig(
            key="kit",
            slug="kit",
            url=server.url,
            id=server.id,
            revision=str(self._count),
            headers=session.headers,
            on_unauthorized=session.on_unauthorized,
        )
        connections = McpConnections(self._guard, self._clock)
        try:
            [listed] = await connections.tools_of(CHAT, [config])
            if listed.problem is not None:
                raise McpError(listed.problem)
            for tool in listed.tools:
                await connections.call(CHAT, config, tool.name, {}, call_key=tool.name)
        finally:
            await connections.close()

    async def _log_in(self, server: McpServer, user: UUID) -> None:
        begun = await self._logins.begin(server, user, redirect_uri=REDIRECT, document_url=DOCUMENT)
        async with guarded_client(self._guard) as http:
            page = await http.get(begun.authorization_url)
        query = parse_qs(urlsplit(page.headers["location"]).query)
        given = {name: values[0] for name, values in query.items() if name in Callback.__struct_fields__}
        await self._logins.finish(server.id, Callback(**given), cookie_state=begun.state)


async def main(url: str) -> int:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            asyncpg.create_pool(os.environ["CONFORMANCE_DATABASE_URL"], min_size=0, max_size=4)
        )
        try:
            await User(pool, KeyRing.parse(new_key("kit"))).use(url)
        except (LoginError, McpError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
