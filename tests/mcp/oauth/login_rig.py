"""A database, a fake authorization server, and replicas that log users in at its MCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx2

from rookery.domain.mcp.server import AuthType, McpServer
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.guarded_http import guarded_client
from rookery.mcp.oauth.logins import Begun, Callback, McpLogins
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.hints import Hint
from rookery.store.mcp import logins, servers
from rookery.store.mcp.logins import Login
from rookery.store.mcp.servers import ServerDraft
from rookery.testing import FakeClock
from rookery.testing.fake_authorization import FakeAuthorization, FakeClient

RING = KeyRing.parse(new_key("test"))
REDIRECT = "https://rookery.test/api/v1/mcp-servers/x/oauth/callback"
DOCUMENT = "https://rookery.test/api/v1/mcp-servers/x/oauth/client-metadata"


class Published:
    """Collects the published hints."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def publish(self, hints: Sequence[Hint]) -> None:
        self.hints.extend(hints)


class LoginRig:
    """`fake` is the authorization server, and `logins` are those of the first replica."""

    def __init__(self, fake: FakeAuthorization, clock: FakeClock, url: str, stack: AsyncExitStack) -> None:
        self.fake = fake
        self.clock = clock
        self.published = Published()
        self._url = url
        self._stack = stack
        self.pool: asyncpg.Pool
        self.logins: McpLogins

    async def replica(self, *, size: int = 6, allow_private: bool = True) -> McpLogins:
        pool = await self._stack.enter_async_context(asyncpg.create_pool(self._url, min_size=0, max_size=size))
        guard = mcp_guard(allow_private=allow_private)
        made = McpLogins(
            pool, ring=RING, http=lambda: guarded_client(guard), clock=self.clock, publisher=self.published
        )
        self._stack.push_async_callback(made.close)
        return made

    async def user(self) -> UUID:
        name = f"user-{uuid4().hex}"
        return UUID(str(await self.pool.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", name)))

    async def server(self, **fields: Any) -> McpServer:
        fields.setdefault("slug", f"s{uuid4().hex[:20]}")
        fields.setdefault("url", self.fake.resource)
        fields.setdefault("auth_type", AuthType.OAUTH2)
        async with self.pool.acquire() as conn:
            return await servers.create_server(conn, ServerDraft(**fields), ring=RING, by=None)

    async def configured(self, *, secret: str = "s3cret", method: str = "client_secret_basic") -> McpServer:
        """Add a server whose client is registered by hand."""
        client = self.fake.register(REDIRECT, secret=secret, method=method)
        return await self.by_hand(client)

    async def by_hand(self, client: FakeClient, **fields: Any) -> McpServer:
        return await self.server(
            oauth_client_id=client.id,
            oauth_client_secret=None if client.secret is None else SecretStr(client.secret),
            oauth_authorization_url=f"{self.fake.base}/authorize",
            oauth_token_url=f"{self.fake.base}/token",
            oauth_revocation_url=f"{self.fake.base}/revoke",
            **fields,
        )

    async def begin(self, server: McpServer, user_id: UUID, *, document: str | None = None) -> Begun:
        return await self.logins.begin(server, user_id, redirect_uri=REDIRECT, document_url=document)

    async def connect(self, server: McpServer, user_id: UUID) -> None:
        begun = await self.begin(server, user_id)
        await self.finish(server, begun, self.fake.approve(begun.authorization_url))

    async def finish(self, server: McpServer, begun: Begun, answer: dict[str, str]) -> UUID:
        return await self.logins.finish(server.id, Callback(**answer), cookie_state=begun.state)

    async def login(self, server: McpServer, user_id: UUID) -> Login | None:
        async with self.pool.acquire() as conn:
            return await logins.find_login(conn, server.id, user_id)

    async def call(self, replica: McpLogins, server: McpServer, user_id: UUID) -> int:
        """Send a request as a connection does: with the headers of the login, repeated once after a refusal."""
        async with guarded_client(mcp_guard(allow_private=True)) as http:
            response = await self._send(http, replica, server, user_id)
            if response.status_code in (401, 403) and await replica.on_unauthorized(
                server,
                user_id,
                status=response.status_code,
                challenge=response.headers.get("www-authenticate"),
            ):
                response = await self._send(http, replica, server, user_id)
            return response.status_code

    async def _send(
        self, http: httpx2.AsyncClient, replica: McpLogins, server: McpServer, user_id: UUID
    ) -> httpx2.Response:
        headers = await replica.headers_for(server, user_id)
        return await http.post(server.url, json={}, headers=headers)


@asynccontextmanager
async def open_rig(database_url: str) -> AsyncIterator[LoginRig]:
    clock = FakeClock()
    async with FakeAuthorization(clock=clock).listening() as fake, AsyncExitStack() as stack:
        rig = LoginRig(fake, clock, database_url, stack)
        rig.pool = await stack.enter_async_context(asyncpg.create_pool(database_url, min_size=0, max_size=4))
        rig.logins = await rig.replica()
        yield rig
