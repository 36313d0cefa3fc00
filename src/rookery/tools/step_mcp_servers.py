"""The MCP servers of a step: the servers that a chat uses, their tools, and the notices about servers that do not
answer.

In a deployment without servers, steps have no additional cost: the absence of servers is cached until a hint. Forced
servers are used by every chat, and if one of them cannot be loaded, the step fails. If another server does not answer,
only its tools are missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.system_blocks import Mode
from rookery.domain.mcp.server import AuthType, McpServer
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.errors import ProblemKind
from rookery.mcp.server_config import ServerConfig
from rookery.mcp.tool_lists import McpTool, ServerTools
from rookery.models.config_cache import ConfigCache
from rookery.runtime.address_guard import Guard
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock
from rookery.store.chats.step_reads import Step
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pubsub import Bus, Subscription
from rookery.store.mcp import project_servers
from rookery.store.mcp import servers as stored_servers
from rookery.store.mcp import tool_lists as stored_lists
from rookery.store.mcp.servers import McpSettings
from rookery.store.workspaces.context import ContextResource
from rookery.telemetry.log import get_logger
from rookery.tools import registry
from rookery.tools.mcp_stats import McpUseStats
from rookery.tools.mcp_tools import McpCaller, SpecCache, tools_of
from rookery.tools.registry import Column
from rookery.tools.step_tools import FamilyTools, ToolsUnavailable

log = get_logger("tools.step_mcp_servers")

HINT = "mcp"
# A hint ends these caches at once. The times limit the effect of a lost hint, and of a changed role of the owner.
ANY_SECONDS = 600.0
USABLE_SECONDS = 60.0
# What was written to the table of lists, so that an unchanged list is not written again.
MAX_WRITTEN_BYTES = 4 * 1024 * 1024
WRITTEN_BYTES = 256
_TAKEN = frozenset(registry.ACTIVE)
# What a server's tool does is unknown, so steps that may only read have none.
_WITHOUT = frozenset({Column.ROOT_READ_ONLY, Column.CHILD_READ_ONLY, Column.CHILD_PLAN})
_decoder_type = tuple[McpTool, ...]


class Access(Protocol):
    """The methods of `mcp.server_access.McpAccess` that this module uses."""

    async def guard(self) -> Guard: ...

    async def settings(self) -> McpSettings: ...

    def config(self, server: McpServer, user_id: UUID, *, login_version: str = "") -> ServerConfig: ...

    async def store_list(self, server: McpServer, user_id: UUID, tools: Sequence[McpTool]) -> None: ...

    async def expect_login(self, server: McpServer) -> None: ...


@dataclass(frozen=True, kw_only=True)
class McpServices:
    """Shared dependencies of the steps of a process. `make_connections` builds the pool behind a guard."""

    pool: asyncpg.Pool
    access: Access
    clock: Clock
    bus: Bus
    make_connections: Callable[[Guard, Clock], McpConnections] = McpConnections
    stats: McpUseStats = field(default_factory=McpUseStats)


class McpFamily:
    """Offers the tools of MCP servers. Each process has one."""

    def __init__(self, mcp_parts: McpServices) -> None:
        self._parts = mcp_parts
        clock = mcp_parts.clock
        self._any = ConfigCache[None, bool](self._read_any, clock=clock, ttl_seconds=ANY_SECONDS)
        self._usable = ConfigCache[tuple[UUID, UUID | None], tuple[McpServer, ...]](
            self._read_usable, clock=clock, ttl_seconds=USABLE_SECONDS
        )
        self._written: Cache[str, tuple[int, tuple[McpTool, ...]]] = Cache(
            "mcp_lists_written", max_bytes=MAX_WRITTEN_BYTES, max_age_seconds=3600.0, clock=clock
        )
        self._specs = SpecCache()
        self._connections: McpConnections | None = None
        self._allows_private: bool | None = None
        # Servers that refused a user, with the number of hints at that time: after a login they are asked again.
        self._refused: Cache[str, int] = Cache(
            "mcp_refused", max_bytes=MAX_WRITTEN_BYTES, max_age_seconds=3600.0, clock=clock
        )
        self._hints = 0
        self._subscriptions: list[Subscription] = []

    def follow(self) -> None:
        """Subscribe to the hints about servers and logins."""
        bus = self._parts.bus
        self._subscriptions += [bus.subscribe(ConfigHint, self._on_hint), bus.on_resync(self._forget)]

    def _on_hint(self, hint: ConfigHint) -> None:
        if hint.kind in (HINT, "settings"):
            self._forget()

    def _forget(self) -> None:
        self._hints += 1
        self._any.invalidate()
        self._usable.invalidate()

    async def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        for cache in (self._any, self._usable):
            await cache.close()
        if self._connections is not None:
            await self._connections.close()

    @property
    def stats(self) -> McpUseStats:
        return self._parts.stats

    @property
    def caches(self) -> tuple[Cache[Any, Any], ...]:
        return self._written, self._refused

    # Which servers

    async def servers_of(self, step: Step, at: Column) -> tuple[McpServer, ...]:
        """Return the servers that a step uses: those of the chat, and the forced ones."""
        if at in _WITHOUT or (at is Column.EXPLORE and step.chat.is_root):
            return ()
        if not await self._any.get(None):
            return ()
        usable = await self._usable.get((step.chat.owner_id, step.meta.workspace_id))
        return chosen(usable, step.meta.mcp_server_ids, at)

    async def visible_ids(self, step: Step, mode: Mode) -> tuple[UUID, ...]:
        """Return the ids of the servers of a step. An exploring subagent gets exactly these."""
        servers = await self.servers_of(step, registry.column(mode=mode, is_root=step.chat.is_root))
        return tuple(each.id for each in servers if each.workspace_id is None)

    async def _read_any(self, _: None) -> bool:
        async with self._parts.pool.acquire() as conn:
            return await stored_servers.any_enabled(conn)

    async def _read_usable(self, key: tuple[UUID, UUID | None]) -> tuple[McpServer, ...]:
        async with self._parts.pool.acquire() as conn:
            return await stored_servers.list_usable(conn, *key)

    # Their tools

    async def open(
        self, step: Step, *, mode: Mode, at: Column, resources: Sequence[ContextResource] = ()
    ) -> FamilyTools:
        try:
            servers = await self.servers_of(step, at)
        except msgspec.DecodeError as error:
            # It is unknown whether a server was forced on, so the step must not go on without it.
            raise ToolsUnavailable("The MCP servers that this chat must use cannot be loaded.") from error
        if not servers:
            return FamilyTools()
        connections = await self._open_connections()
        configs = [self._config(step, each) for each in servers]
        for config in configs:
            if self._refused.find(config.key) not in (None, self._hints):
                connections.outdate(config)
                self._refused.take(config.key)
        listed = await connections.tools_of(step.chat.id, configs)
        found = [(server, await self._known(step, server, each)) for server, each in zip(servers, listed, strict=True)]
        caller = McpCaller(
            connections=connections,
            pool=self._parts.pool,
            clock=self._parts.clock,
            chat_id=step.chat.id,
            owner_id=step.chat.owner_id,
            stats=self._parts.stats,
            may_call=self._may_call,
        )
        return FamilyTools(
            external=tools_of(found, caller, taken=_TAKEN, specs=self._specs), notices=self._notices(found)
        )

    async def _may_call(self, server: McpServer) -> bool:
        """Return whether a project's server is still agreed to: its owner may have withdrawn that during the step."""
        if server.workspace_id is None:
            return True
        async with self._parts.pool.acquire() as conn:
            return await project_servers.is_agreed(conn, server.id)

    async def _open_connections(self) -> McpConnections:
        """Return the connections, with the address guard of the current settings. If the settings change, the old
        connections are closed.
        """
        allow_private = (await self._parts.access.settings()).allow_private_addresses
        if self._connections is None or allow_private is not self._allows_private:
            guard = await self._parts.access.guard()
            former, self._connections = self._connections, self._parts.make_connections(guard, self._parts.clock)
            self._allows_private = allow_private
            if former is not None:
                await former.close()
        return self._connections

    def _config(self, step: Step, server: McpServer) -> ServerConfig:
        config = self._parts.access.config(server, step.chat.owner_id)
        if not server.forward_identity:
            return config
        told = identity_headers(step)
        return replace(config, key=f"{config.key}:{step.chat.id}", headers=_with_identity(config.headers, told))

    async def _known(self, step: Step, server: McpServer, listed: ServerTools) -> ServerTools:
        """Return the tools of a server. If it does not answer, return the last list that any replica has stored."""
        user_id = step.chat.owner_id if server.auth_type is AuthType.OAUTH2 else None
        if listed.problem is None:
            await self._remember(server, step.chat.owner_id, listed)
            return listed
        if listed.problem.needs_login:
            if listed.problem.kind is ProblemKind.UNAUTHORIZED:
                await self._expect_login(server)
            self._refused.keep(listed.server.key, self._hints, size_bytes=WRITTEN_BYTES)
            return msgspec.structs.replace(listed, tools=())
        if listed.tools:
            return listed
        try:
            async with self._parts.pool.acquire() as conn:
                stored = await stored_lists.find_list(conn, server.id, user_id, config_version=server.config_version)
            tools = () if stored is None else msgspec.convert(stored.tools, _decoder_type)
        except (msgspec.DecodeError, *DATABASE_ERRORS) as error:
            log.warning("mcp_list_unread", server=server.slug, error=str(error) or type(error).__name__)
            return listed
        return msgspec.structs.replace(listed, tools=tools)

    async def _expect_login(self, server: McpServer) -> None:
        try:
            await self._parts.access.expect_login(server)
        except DATABASE_ERRORS as error:
            log.warning("mcp_login_not_expected", server=server.slug, error=str(error) or type(error).__name__)

    async def _remember(self, server: McpServer, user_id: UUID, listed: ServerTools) -> None:
        """Store a changed list, for replicas that cannot reach the server later."""
        key = f"{server.id}:{user_id if server.auth_type is AuthType.OAUTH2 else None}"
        known = self._written.find(key)
        # Lists are cached as objects, so an unchanged list is the same object.
        if known is not None and known[0] == server.config_version and known[1] is listed.tools:
            return
        try:
            await self._parts.access.store_list(server, user_id, listed.tools)
        except DATABASE_ERRORS as error:
            log.warning("mcp_list_not_kept", server=server.slug, error=str(error) or type(error).__name__)
            return
        self._written.keep(key, (server.config_version, listed.tools), size_bytes=WRITTEN_BYTES)

    def _notices(self, found: Sequence[tuple[McpServer, ServerTools]]) -> tuple[str, ...]:
        """Return the notices for the user about servers that do not answer. Raise an error for a forced server."""
        notices = []
        for server, listed in found:
            problem = listed.problem
            if problem is None:
                continue
            if problem.needs_login:
                self._parts.stats.skipped += 1
                text = LOGIN if server.can_log_in else KEYLESS if server.auth_type is AuthType.NONE else REFUSED
                notices.append(text.format(name=server.name, slug=server.slug))
            elif listed.tools:
                self._parts.stats.outdated += 1
                notices.append(OUTDATED.format(name=server.name, problem=problem.text))
            elif server.is_forced:
                raise ToolsUnavailable(FORCED.format(name=server.name, problem=problem.text))
            else:
                self._parts.stats.skipped += 1
                notices.append(SKIPPED.format(name=server.name, problem=problem.text))
        return tuple(notices)


LOGIN = (
    "{name} needs you to log in, so its tools are missing. Connect it under Settings > Connections, or with "
    "/connect {slug} in a terminal."
)
KEYLESS = "{name} wants a login or a key, but is set up without, so its tools are missing."
REFUSED = "{name} refuses the key or the headers that are set up for it, so its tools are missing."
SKIPPED = "{name} is left out of this turn, and its tools are missing. {problem}"
OUTDATED = "{name} does not answer now. Its tools are offered as they were last known. {problem}"
FORCED = "This chat must use the MCP server {name}, which does not answer. {problem}"


def chosen(servers: Sequence[McpServer], ids: Collection[UUID], at: Column) -> tuple[McpServer, ...]:
    """Return the servers that a step uses, out of those that the owner may use.

    An exploring subagent keeps the servers that its parent had at the spawn. Servers of a project, and servers in the
    workspace, are only for normal steps.
    """
    wanted = frozenset(ids)
    if at is Column.EXPLORE:
        return tuple(each for each in servers if each.id in wanted and each.workspace_id is None)
    found = []
    for each in servers:
        if each.workspace_id is not None:
            is_used = at in registry.NORMAL
        else:
            is_used = each.is_forced or each.id in wanted
            is_used = is_used and (at is not Column.ROOT_PLAN or each.allow_in_plan_mode)
        if is_used:
            found.append(each)
    return tuple(found)


def identity_headers(step: Step) -> dict[str, str]:
    """Return the headers that identify the chat and its owner to the server."""
    chat = step.chat
    told = {
        "X-Rookery-Owner-Id": str(chat.owner_id),
        "X-Rookery-Chat-Id": str(chat.root_chat_id or chat.id),
    }
    if not chat.is_root:
        told["X-Rookery-Subchat-Id"] = str(chat.id)
    if step.meta.workspace_id is not None:
        told["X-Rookery-Workspace-Id"] = str(step.meta.workspace_id)
    return told


def _with_identity(
    headers: Callable[[], Awaitable[Mapping[str, str]]], told: Mapping[str, str]
) -> Callable[[], Awaitable[Mapping[str, str]]]:
    async def joined() -> Mapping[str, str]:
        own = await headers()
        taken = {name.casefold() for name in own}
        return {**{name: value for name, value in told.items() if name.casefold() not in taken}, **own}

    return joined
