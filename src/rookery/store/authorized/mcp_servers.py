"""MCP servers on behalf of an actor: those of the deployment, and a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from rookery.domain.access import rights
from rookery.domain.access.rights import Action, Resource, Role
from rookery.domain.mcp.server import McpServer
from rookery.store.authorized.rights import AuthorizedMethods, Context, Grant, How, Via, authz
from rookery.store.db.hints import ConfigHint
from rookery.store.mcp import logins, project_servers, servers, tool_lists
from rookery.store.mcp.logins import Login
from rookery.store.mcp.servers import McpServerNotFound, ServerDraft, ServerPatch
from rookery.store.mcp.tool_lists import ToolList
from rookery.store.models.sealed_headers import Sealer
from rookery.store.people import audit
from rookery.store.people.audit import Event


class SeenServer(msgspec.Struct, frozen=True):
    """A server with the actor's login. `is_editable`: the actor sees and may change its configuration."""

    server: McpServer
    login: Login | None
    is_editable: bool
    is_shown: bool


class McpServers(AuthorizedMethods):
    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.MCP_SERVER, Action.LIST)
    async def list(self, at: Grant) -> Sequence[SeenServer]:
        """List the servers that the actor may use, with all own ones and those of the actor's projects.

        Administrators and auditors get all others of the deployment too.
        """
        user_id = at.user_id
        found = {each.id: each for each in await servers.list_usable(at.conn, user_id)}
        found |= {each.id: each for each in await servers.list_of_user(at.conn, user_id)}
        found |= {each.id: each for each in await project_servers.list_of_user(at.conn, user_id)}
        if _sees_all(at):
            found |= {each.id: each for each in await servers.list_of_deployment(at.conn)}
        held = {login.server_id: login for login in await logins.list_logins(at.conn, user_id)}
        seen = [_seen(at, each, held.get(each.id)) for each in found.values()]
        return sorted(seen, key=lambda each: (each.server.owner_id is not None, each.server.slug))

    @authz(Resource.MCP_SERVER, Action.READ)
    async def list_of_deployment(self, at: Grant) -> Sequence[McpServer]:
        """List all servers of the deployment, with their configuration."""
        return await servers.list_of_deployment(at.conn)

    @authz(Resource.MCP_SERVER, Action.LIST)
    async def get(self, at: Grant, server_id: UUID) -> SeenServer:
        server = await servers.get_server(at.conn, server_id)
        await _require_visible(at, server)
        return _seen(at, server, await logins.find_login(at.conn, server_id, at.user_id))

    @authz(Resource.MCP_SERVER, Action.LIST)
    async def list_tools(self, at: Grant, server_id: UUID) -> ToolList | None:
        """Return the last known tools of a server: those of the actor, else those that are the same for all users."""
        server = await servers.get_server(at.conn, server_id)
        await _require_visible(at, server)
        version = server.config_version
        own = await tool_lists.find_list(at.conn, server_id, at.user_id, config_version=version)
        return own or await tool_lists.find_list(at.conn, server_id, None, config_version=version)

    @authz(Resource.MCP_SERVER, Action.ADMINISTER)
    async def require(self, at: Grant, server_id: UUID | None = None) -> None:
        """Check that the actor may change servers of the deployment, and that this one exists."""
        if server_id is not None:
            await _of_deployment(at, server_id)

    @authz(Resource.MCP_SERVER, Action.ADMINISTER, how=How.WRITE)
    async def create(self, at: Grant, draft: ServerDraft) -> SeenServer:
        made = await servers.create_server(at.conn, draft, ring=self._ring, by=at.by)
        await _log(at, "mcp_server.create", None, made)
        return _seen(at, made, None)

    @authz(Resource.MCP_SERVER, Action.ADMINISTER, how=How.WRITE)
    async def update(self, at: Grant, server_id: UUID, patch: ServerPatch) -> SeenServer:
        before = await _of_deployment(at, server_id)
        after = await servers.update_server(at.conn, server_id, patch, ring=self._ring)
        await _log(at, "mcp_server.update", before, after)
        return _seen(at, after, None if at.by is None else await logins.find_login(at.conn, server_id, at.by))

    @authz(Resource.MCP_SERVER, Action.ADMINISTER, how=How.WRITE)
    async def delete(self, at: Grant, server_id: UUID) -> None:
        before = await _of_deployment(at, server_id)
        await servers.delete_server(at.conn, server_id)
        await _log(at, "mcp_server.delete", before, None)

    @authz(Resource.MCP_SERVER, Action.ADMINISTER, how=How.WRITE)
    async def record_test(self, at: Grant, server_id: UUID) -> McpServer:
        """Record the test of a server of the deployment, and return the server."""
        server = await _of_deployment(at, server_id)
        await at.log(Event(action="mcp_server.test", resource_type=Resource.MCP_SERVER, resource_id=str(server_id)))
        return server

    @authz(Resource.MCP_SERVER, Action.UPDATE, via=Via.USER)
    async def require_own(self, at: Grant, user_id: UUID, server_id: UUID | None = None) -> McpServer | None:
        """Check that the actor may change servers of this user, and that this one exists."""
        return None if server_id is None else await _of_user(at, user_id, server_id)

    @authz(Resource.MCP_SERVER, Action.UPDATE, via=Via.USER)
    async def require_test(self, at: Grant, user_id: UUID, server_id: UUID) -> McpServer:
        """Check that the actor may test this server of the user, or of a project of the user, and return it."""
        found = await servers.get_server(at.conn, server_id)
        if found.owner_id != user_id:
            raise McpServerNotFound(server_id)
        return found

    @authz(Resource.MCP_SERVER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def create_own(self, at: Grant, user_id: UUID, draft: ServerDraft) -> SeenServer:
        """Create a server for the user's chats."""
        made = await servers.create_server(at.conn, draft, ring=self._ring, by=at.by, owner_id=user_id)
        await _log(at, "mcp_server.create", None, made)
        return _seen(at, made, None)

    @authz(Resource.MCP_SERVER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def update_own(self, at: Grant, user_id: UUID, server_id: UUID, patch: ServerPatch) -> SeenServer:
        before = await _of_user(at, user_id, server_id)
        after = await servers.update_server(at.conn, server_id, patch, ring=self._ring)
        await _log(at, "mcp_server.update", before, after)
        return _seen(at, after, await logins.find_login(at.conn, server_id, user_id))

    @authz(Resource.MCP_SERVER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete_own(self, at: Grant, user_id: UUID, server_id: UUID) -> None:
        before = await _of_user(at, user_id, server_id)
        await servers.delete_server(at.conn, server_id)
        await _log(at, "mcp_server.delete", before, None)

    @authz(Resource.MCP_LOGIN, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def record_connect(self, at: Grant, user_id: UUID, server_id: UUID) -> McpServer:
        """Record the beginning of a login, and return the server, which the user may use."""
        await at.require_credential()
        server = await servers.get_server(at.conn, server_id)
        await _require_visible(at, server)
        await _log_login(at, "mcp_login.connect", server_id)
        return server

    @authz(Resource.MCP_LOGIN, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def record_disconnect(self, at: Grant, user_id: UUID, server_id: UUID) -> None:
        """Record the end of a login. It needs no right on the server, so that a login can always be ended."""
        if await servers.find_server(at.conn, server_id) is None:
            raise McpServerNotFound(server_id)
        if await logins.find_login(at.conn, server_id, user_id) is None:
            # Without a login, only users who see the server learn that it exists.
            await _require_visible(at, await servers.get_server(at.conn, server_id))
        await _log_login(at, "mcp_login.disconnect", server_id)


def _sees_all(at: Grant) -> bool:
    if not rights.has_scope(at.actor, Resource.MCP_SERVER, Action.READ):
        return False
    return rights.role_of(at.actor) in (Role.ADMIN, Role.AUDITOR)


def _seen(at: Grant, server: McpServer, login: Login | None) -> SeenServer:
    is_own = server.owner_id is not None
    is_editable = (is_own or at.is_admin) and server.workspace_id is None
    return SeenServer(server, login, is_editable=is_editable, is_shown=is_own or _sees_all(at))


async def _require_visible(at: Grant, server: McpServer) -> None:
    """Raise `McpServerNotFound` unless the actor may use the server, owns it, or sees all of the deployment."""
    if server.owner_id is not None:
        if server.owner_id != at.user_id:
            raise McpServerNotFound(server.id)
        return
    usable = server.enabled and server.is_allowed_for(at.user_id, rights.role_of(at.actor))
    if not usable and not _sees_all(at):
        raise McpServerNotFound(server.id)


async def _of_deployment(at: Grant, server_id: UUID) -> McpServer:
    found = await servers.get_server(at.conn, server_id)
    if not found.is_of_deployment:
        raise McpServerNotFound(server_id)
    return found


async def _of_user(at: Grant, user_id: UUID, server_id: UUID) -> McpServer:
    found = await servers.get_server(at.conn, server_id)
    if found.owner_id != user_id or found.workspace_id is not None:
        raise McpServerNotFound(server_id)
    return found


async def _log(at: Grant, action: str, before: McpServer | None, after: McpServer | None) -> None:
    changed = after or before
    assert changed is not None
    diff = {} if after is None else audit.diff("mcp_servers", before, after)
    extra = {"slug": changed.slug, "is_own": changed.owner_id is not None}
    await at.log(
        Event(action=action, resource_type=Resource.MCP_SERVER, resource_id=str(changed.id), diff=diff, extra=extra)
    )
    at.tell(ConfigHint(kind=servers.HINT, id=str(changed.id)))


async def _log_login(at: Grant, action: str, server_id: UUID) -> None:
    await at.log(Event(action=action, resource_type=Resource.MCP_LOGIN, resource_id=str(server_id)))
