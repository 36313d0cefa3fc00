"""The shared services of all workspace code in one replica, and its counters."""

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
from rookery.store.models.sealed_headers import Sealer
from rookery.store.workspaces import operation_claims, workspaces
from rookery.store.workspaces.workspaces import Workspace
from rookery.telemetry.histogram import Histograms
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.driver_specs import Specs
from rookery.workspaces.drivers.driver_interface import Driver, DriverError, Inventory
from rookery.workspaces.egress.proxy import EgressStats
from rookery.workspaces.errors import AgentCutOff, WorkspaceError, cut_off_sentence
from rookery.workspaces.relayed_connector import Peers

log = get_logger("workspaces")

# Called when the startup script of a workspace has ended, even if it failed.
OnReady: TypeAlias = Callable[[Workspace], Awaitable[None]]
HEALTH_SECONDS = 5.0
START_BOUNDS = (0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0)


async def no_follow_up(workspace: Workspace) -> None:
    """Do nothing. The default of `on_ready`."""


@dataclass(slots=True)
class WorkspaceStats:
    # Counters by driver and result: succeeded, failed, canceled.
    start_seconds: Histograms[tuple[str, str]] = field(default_factory=lambda: Histograms(START_BOUNDS))
    # Numbers of workspaces by driver and status, for the whole deployment. The reconciler counts them.
    workspaces: dict[tuple[str, str], int] = field(default_factory=dict)
    # The number of agents that this replica has cut off.
    cut_off: int = 0
    egress: EgressStats = field(default_factory=EgressStats)


@dataclass(frozen=True, kw_only=True)
class WorkspaceServices:
    """The services of one replica. It executes operations of local workspaces on `node`.

    Agents on other nodes are reached through `peers`. `ring` seals secrets that come from workspaces.
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
    ring: Sealer | None = None

    def driver(self, name: str) -> Driver:
        found = self.drivers.get(name)
        if found is None:
            raise DriverError("driver_unavailable", f"This server has no driver {name}. Choose another template.")
        return found

    async def publish_change(self, conn: Connection, workspace: Workspace, **data: str | int | bool | None) -> None:
        """Publish hints about a changed workspace. Call this after the commit."""
        self.publish(await workspaces.hints_about(conn, workspace, **data))

    def publish(self, hints: Sequence[Hint]) -> None:
        self.publisher.publish(hints)

    async def find_health(self, workspace: Workspace, *, seconds: float = HEALTH_SECONDS) -> Health | None:
        """Return the health of the agent of this boot; None if it does not respond."""
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
        """Store that the agent of this boot broke the protocol, and publish it."""
        log.warning("workspace_cut_off", workspace_id=workspace_id, generation=generation, reason=reason)
        self.stats.cut_off += 1
        async with self.pool.acquire() as conn:
            if await operation_claims.cut_off(conn, workspace_id, generation, error=cut_off_sentence(reason)):
                await self.publish_change(conn, await workspaces.get_workspace(conn, workspace_id))

    @asynccontextmanager
    async def connected(self, workspace: Workspace) -> AsyncIterator[AgentConn]:
        """Open a new connection to the agent of this boot, without a chat."""
        async with self.pool.acquire() as conn:
            spec = await self.specs.for_access(conn, workspace)
        connector = self.driver(workspace.driver).connector(spec)
        http = AgentHttp(connector, token=spec.token, generation=workspace.generation, clock=self.clock)
        try:
            yield AgentConn(http)
        finally:
            await http.close()
