"""Access to MCP servers for users of a replica: guarded HTTP, logins, and tests of a server.

The modules for this are imported at the first use, so that a deployment without MCP servers does not load them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.mcp.server import AuthType, McpServer
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.errors import ProblemKind
from rookery.mcp.server_config import ServerConfig
from rookery.runtime.address_guard import Guard
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.machine import Publisher
from rookery.store.mcp import project_servers, servers
from rookery.store.mcp import tool_lists as stored_lists
from rookery.store.mcp.servers import McpSettings
from rookery.store.models.sealed_headers import Sealer
from rookery.telemetry.log import get_logger

if TYPE_CHECKING:
    import httpx2

    from rookery.mcp.connection_pool import Probe
    from rookery.mcp.oauth.logins import McpLogins
    from rookery.mcp.tool_lists import McpTool

log = get_logger("mcp.access")


class McpAccess:
    """Access to MCP servers. `setting` returns the stored settings of the group `mcp`."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        ring: Sealer | None,
        clock: Clock,
        publisher: Publisher,
        setting: Callable[[], Awaitable[object]],
        allow: Iterable[str] = (),
        own_ports: Iterable[int] = (),
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._clock = clock
        self._publisher = publisher
        self._setting = setting
        self._allow = tuple(allow)
        self._own_ports = set(own_ports)
        self._logins: McpLogins | None = None

    def add_own_port(self, port: int) -> None:
        """Add a port of this server that became known only after the start."""
        self._own_ports.add(port)

    async def settings(self) -> McpSettings:
        stored = await self._setting()
        try:
            return McpSettings() if stored is None else msgspec.convert(stored, McpSettings)
        except msgspec.ValidationError:
            return McpSettings()

    async def guard(self) -> Guard:
        """Return the address guard with the current settings."""
        allow_private = (await self.settings()).allow_private_addresses
        return mcp_guard(allow=self._allow, allow_private=allow_private, own_ports=self._own_ports)

    @property
    def logins(self) -> McpLogins:
        if self._logins is None:
            from rookery.mcp.oauth.logins import McpLogins

            self._logins = McpLogins(
                self._pool, ring=self._ring, http=self._http, clock=self._clock, publisher=self._publisher
            )
        return self._logins

    def config(self, server: McpServer, user_id: UUID, *, login_version: str = "") -> ServerConfig:
        """Return the configuration for a user's connection to the server."""
        session = self.logins.session(server, user_id)
        return ServerConfig(
            key=f"{server.id}:{user_id}",
            slug=server.slug,
            url=server.url,
            transport=server.transport.value,
            revision=f"{server.config_version}:{login_version}",
            id=server.id,
            headers=session.headers,
            on_unauthorized=session.on_unauthorized,
            call_seconds=server.call_timeout_seconds,
        )

    async def probe(self, server: McpServer, user_id: UUID) -> Probe:
        """Connect to a server and list its tools, on a separate connection. The list is stored."""
        from rookery.mcp.connection_pool import McpConnections

        connections = McpConnections(await self.guard(), self._clock)
        try:
            probe = await connections.probe(self.config(server, user_id))
        finally:
            await connections.close()
        try:
            if probe.tools.problem is None:
                await self.store_list(server, user_id, probe.tools.tools)
            elif probe.tools.problem.kind is ProblemKind.UNAUTHORIZED:
                await self.expect_login(server)
        except DATABASE_ERRORS as error:
            log.warning("mcp_probe_not_stored", server=server.slug, error=str(error) or type(error).__name__)
        return probe

    async def store_list(self, server: McpServer, user_id: UUID, tools: Sequence[McpTool]) -> None:
        """Store the list of a server, for replicas and pages that cannot ask it now."""
        of_user = user_id if server.auth_type is AuthType.OAUTH2 else None
        found = [msgspec.to_builtins(each) for each in tools]
        async with self._pool.acquire() as conn:
            await stored_lists.write_list(conn, server.id, of_user, found, config_version=server.config_version)

    async def expect_login(self, server: McpServer) -> None:
        """Let the owner log in at a project's server that has refused a request. Other servers stay as they are."""
        if server.workspace_id is None or server.auth_type is not AuthType.NONE:
            return
        async with self._pool.acquire() as conn:
            is_new = await project_servers.expect_login(conn, server.id)
        if is_new:
            self._publisher.publish([servers.hint()])

    async def close(self) -> None:
        """Wait for running refreshes of logins."""
        if self._logins is not None:
            await self._logins.close()

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[httpx2.AsyncClient]:
        from rookery.mcp.guarded_http import guarded_client

        async with guarded_client(await self.guard()) as http:
            yield http
