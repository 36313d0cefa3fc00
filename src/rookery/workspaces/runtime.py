"""The workspace runtime of a replica: all long-lived objects for workspaces, and their loops."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn
from uuid import UUID

from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.workspaces import context
from rookery.store.workspaces.workspaces import Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces import availability, shipped_templates
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.availability import Availability
from rookery.workspaces.chat_repositories import ChatGit
from rookery.workspaces.connection import Unreadable
from rookery.workspaces.context import SETTLE_SECONDS, Contexts
from rookery.workspaces.context_watch import ContextWatches
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.egress.sockets import RECONCILE_SECONDS, EgressSockets
from rookery.workspaces.errors import NoConnection, WorkspaceError
from rookery.workspaces.file_browser import ChatFolders
from rookery.workspaces.operation_executor import Executor
from rookery.workspaces.operation_requests import Workspaces
from rookery.workspaces.project_servers import ProjectServers
from rookery.workspaces.reconciler import Reconciler
from rookery.workspaces.shared_services import WorkspaceServices
from rookery.workspaces.workspace_lookup import StoreWorkspaceDirectory

log = get_logger("workspaces")

# No turn waits for this refresh, so it may take longer.
READY_SECONDS = 10.0
# Longer than SETTLE_SECONDS.
ANSWER_SECONDS = 15.0


class WorkspaceRuntime:
    def __init__(self, parts: WorkspaceServices) -> None:
        self.parts = parts
        self.service = Workspaces(parts)
        self.directory = StoreWorkspaceDirectory(parts)
        self.contexts = Contexts(
            parts.pool,
            parts.publisher,
            clock=parts.clock,
            project_servers=ProjectServers(parts.pool, parts.publisher, ring=parts.ring),
        )
        self.watches = ContextWatches(self.contexts, self.directory, clock=parts.clock)
        self.availability = Availability(parts)
        self.git = ChatGit(parts, self.directory)
        self.folders = ChatFolders(self.directory)
        self.executor = Executor(parts)
        self.reconciler = Reconciler(parts, self.executor.readiness)

    def start(self, group: asyncio.TaskGroup, *, is_server: bool) -> list[asyncio.Task[Any]]:
        """Start the loops. A CLI command executes operations only. A server also runs the other loops."""
        loops: list[asyncio.Task[Any]] = [group.create_task(self.executor.run(), name="workspace-operations")]
        if is_server:
            loops += [
                group.create_task(self.push_templates(), name="templates"),
                group.create_task(availability.log_problems(self.parts.drivers.values()), name="workspace-machine"),
                group.create_task(self.reconciler.run(), name="workspace-reconciler"),
                group.create_task(self.reconciler.run_idle(), name="workspace-idle"),
                *(
                    group.create_task(self._reconcile_egress(egress_sockets), name="workspace-egress")
                    for egress_sockets in self._egress_sockets()
                ),
            ]
        return loops

    def _egress_sockets(self) -> list[EgressSockets]:
        return [driver.egress_sockets for driver in self.parts.drivers.values() if isinstance(driver, LocalDriver)]

    def add_own_port(self, port: int) -> None:
        """Add a port of the server, which workspaces can never reach."""
        for egress_sockets in self._egress_sockets():
            egress_sockets.add_own_port(port)

    async def _reconcile_egress(self, egress_sockets: EgressSockets) -> NoReturn:
        """Serve the egress sockets of all workspaces that no other process serves."""
        async for _ in self.parts.clock.ticker(RECONCILE_SECONDS, "workspace-egress"):
            try:
                await egress_sockets.reconcile()
            except OSError as error:
                log.warning("egress_not_kept", error=str(error))
            except Exception as error:
                log.exception("egress_not_kept", error)
        raise AssertionError("unreachable")

    async def refresh_context(self, workspace: Workspace) -> None:
        """Fetch and store the context of a workspace that has become ready."""
        try:
            location = await self.directory.find(workspace.id)
            if location is None or location.generation != workspace.generation:
                return
            conn = self.directory.connect(location, ChatHeaders())
            await self.contexts.refresh(workspace.id, location.generation, conn, seconds=READY_SECONDS)
        except (Unreadable, NoConnection, DriverError, LookupError) as error:
            log.info("workspace_context_not_heard", workspace_id=workspace.id, error=str(error))

    async def run_agreed_servers(self, workspace_id: UUID) -> None:
        """Send a decision of the owner about MCP servers to the agent. Errors are only logged.

        A workspace that does not respond gets the decision with its next context refresh.
        """
        try:
            location = await self.directory.find(workspace_id)
            if location is None or location.status != Status.RUNNING or not location.is_reachable:
                return
            async with self.parts.pool.acquire() as conn:
                snapshot = await context.find_snapshot(conn, workspace_id)
            if snapshot is not None and snapshot.generation == location.generation:
                agent = self.directory.connect(location, ChatHeaders())
                async with self.parts.clock.deadline(ANSWER_SECONDS, "mcp-servers"):
                    await self.contexts.run_agreed(snapshot, agent, wait=SETTLE_SECONDS)
        except (Unreadable, WorkspaceError, DriverError, LookupError, *DATABASE_ERRORS) as error:
            log.info("mcp_servers_not_run", workspace_id=workspace_id, error=str(error) or type(error).__name__)

    async def close(self) -> None:
        await self.watches.close()
        await self.directory.close()
        for egress_sockets in self._egress_sockets():
            await egress_sockets.close()
        for driver in self.parts.drivers.values():
            if isinstance(driver, SshDriver):
                await driver.close()

    async def push_templates(self) -> None:
        """Store the templates that come with Rookery. If that fails, the stored ones stay."""
        try:
            async with self.parts.pool.acquire() as conn:
                await shipped_templates.push(conn, self.parts.publisher)
        except Exception as error:
            log.exception("templates_not_pushed", error)
