"""The dependencies that all workspace code of one replica shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

import asyncpg

from rookery.runtime.clock import Clock
from rookery.store.db.hints import Hint
from rookery.store.db.pool import Connection
from rookery.store.db.pubsub import Bus
from rookery.store.machine import Publisher
from rookery.store.workspaces import claims, workspaces
from rookery.store.workspaces.workspaces import Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.driver_specs import Specs
from rookery.workspaces.drivers.protocol import Driver, DriverError, Inventory
from rookery.workspaces.errors import AgentCutOff, WorkspaceError, cut_off_sentence
from rookery.workspaces.relay import Peers
from rookery.workspaces.stats import WorkspaceStats

log = get_logger("workspaces")

# Called when the startup script of a workspace is over, whatever its result.
OnReady: TypeAlias = Callable[[Workspace], Awaitable[None]]
HEALTH_SECONDS = 5.0


async def no_follow_up(workspace: Workspace) -> None:
    """Do nothing; for replicas that store nothing else about workspaces."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceServices:
    """`node` is the host whose local workspaces this replica acts on; those of other hosts are reached through
    `peers`.
    """

    replica_id: UUID
    node: str
    pool: asyncpg.Pool
    publisher: Publisher
    bus: Bus
    clock: Clock
    specs: Specs
    drivers: Mapping[str, Driver]
    inventories: Sequence[Inventory] = ()
    shared_folders: Sequence[str] = ()
    stats: WorkspaceStats = field(default_factory=WorkspaceStats)
    on_ready: OnReady = no_follow_up
    peers: Peers | None = None

    def driver(self, name: str) -> Driver:
        found = self.drivers.get(name)
        if found is None:
            raise DriverError("driver_unavailable", f"This server has no driver {name}. Choose another template.")
        return found

    async def tell(self, conn: Connection, workspace: Workspace, **data: str | int | bool | None) -> None:
        """Publish that a workspace changed, after the commit of that change."""
        self.publish(await workspaces.hints_about(conn, workspace, **data))

    def publish(self, hints: Sequence[Hint]) -> None:
        self.publisher.publish(hints)

    async def find_health(self, workspace: Workspace, *, seconds: float = HEALTH_SECONDS) -> Health | None:
        """Return the health of this boot's agent; None when it does not respond."""
        try:
            async with self.connected(workspace) as agent:
                health = await agent.health(seconds=seconds)
        except AgentCutOff as error:
            await self.cut_off(workspace.id, workspace.generation, error.reason)
            return None
        except (WorkspaceError, DriverError, OSError) as error:
            log.debug("workspace_agent_silent", workspace_id=workspace.id, error=str(error))
            return None
        return health if health.generation == workspace.generation else None

    async def cut_off(self, workspace_id: UUID, generation: int, reason: str) -> None:
        """Mark a workspace whose agent broke the protocol, for all replicas and for its viewers."""
        log.warning("workspace_cut_off", workspace_id=workspace_id, generation=generation, reason=reason)
        self.stats.cut_off += 1
        async with self.pool.acquire() as conn:
            if await claims.cut_off(conn, workspace_id, generation, error=cut_off_sentence(reason)):
                await self.tell(conn, await workspaces.get_workspace(conn, workspace_id))

    @asynccontextmanager
    async def connected(self, workspace: Workspace) -> AsyncIterator[AgentConn]:
        """Open a separate connection to the agent of this boot, for no chat."""
        async with self.pool.acquire() as conn:
            spec = await self.specs.plain(conn, workspace)
        connector = self.driver(workspace.driver).connector(spec)
        http = AgentHttp(connector, token=spec.token, generation=workspace.generation, clock=self.clock)
        try:
            yield AgentConn(http)
        finally:
            await http.close()
