"""The workspace runtime of a replica: its long-lived objects and the loops they need."""

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
from rookery.workspaces.connection import Unreadable
from rookery.workspaces.context import SETTLE_SECONDS, Contexts
from rookery.workspaces.context_watch import ContextWatches
from rookery.workspaces.directory import StoreWorkspaceDirectory
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.egress.sockets import KEEP_SECONDS, EgressSockets
from rookery.workspaces.errors import NoConnection, WorkspaceError
from rookery.workspaces.file_browser import ChatFolders
from rookery.workspaces.git import ChatGit
from rookery.workspaces.operations import Executor
from rookery.workspaces.reconciler import Reconciler
from rookery.workspaces.service import Workspaces
from rookery.workspaces.services import WorkspaceServices

log = get_logger("workspaces")

# No caller waits for it, so it may take longer than the refresh of a turn.
READY_SECONDS = 10.0
# Longer than an MCP server of the workspace gets to start.
ANSWER_SECONDS = 15.0


class WorkspaceRuntime:
    def __init__(self, parts: WorkspaceServices) -> None:
        self.parts = parts
        self.service = Workspaces(parts)
        self.directory = StoreWorkspaceDirectory(parts)
        self.contexts = Contexts(parts.pool, parts.publisher, clock=parts.clock)
        self.watches = ContextWatches(self.contexts, self.directory, clock=parts.clock)
        self.availability = Availability(parts)
        self.git = ChatGit(parts, self.directory)
        self.folders = ChatFolders(self.directory)
        self.executor = Executor(parts)
        self.reconciler = Reconciler(parts, self.executor.readiness)

    def start(self, group: asyncio.TaskGroup, *, is_server: bool) -> list[asyncio.Task[Any]]:
        """Start the loops. A CLI command only carries out operations; reconciling and the rest are for servers."""
        loops: list[asyncio.Task[Any]] = [group.create_task(self.executor.run(), name="workspace-operations")]
        if is_server:
            loops += [
                group.create_task(self.push_templates(), name="templates"),
                group.create_task(availability.log_problems(self.parts.drivers.values()), name="workspace-machine"),
                group.create_task(self.reconciler.run(), name="workspace-reconciler"),
                group.create_task(self.reconciler.run_idle(), name="workspace-idle"),
                *(
                    group.create_task(self._keep(egress_sockets), name="workspace-egress")
                    for egress_sockets in self._egress_sockets()
                ),
            ]
        return loops

    def _egress_sockets(self) -> list[EgressSockets]:
        return [driver.egress_sockets for driver in self.parts.drivers.values() if isinstance(driver, LocalDriver)]

    def add_own_port(self, port: int) -> None:
        """Register a port the server listens on: no exemption lets a workspace reach it."""
        for egress_sockets in self._egress_sockets():
            egress_sockets.add_own_port(port)

    async def _keep(self, egress_sockets: EgressSockets) -> NoReturn:
        """Serve egress. A command serves the workspaces it starts; a server serves all that no other process serves."""
        async for _ in self.parts.clock.ticker(KEEP_SECONDS, "workspace-egress"):
            try:
                await egress_sockets.keep()
            except OSError as error:
                log.warning("egress_not_kept", error=str(error))
            except Exception as error:
                log.exception("egress_not_kept", error)
        raise AssertionError("unreachable")

    async def hear_context(self, workspace: Workspace) -> None:
        """Store the context of a workspace that became ready, and capture it for the chats that wait for it."""
        try:
            location = await self.directory.find(workspace.id)
            if location is None or location.generation != workspace.generation:
                return
            conn = self.directory.connect(location, ChatHeaders())
            await self.contexts.refresh(workspace.id, location.generation, conn, seconds=READY_SECONDS)
        except (Unreadable, NoConnection, DriverError, LookupError) as error:
            log.info("workspace_context_not_heard", workspace_id=workspace.id, error=str(error))

    async def run_agreed_servers(self, workspace_id: UUID) -> None:
        """Make the agent run the approved MCP servers after an owner's decision. Never raises.

        A workspace that does not respond is updated when it responds again.
        """
        try:
            location = await self.directory.find(workspace_id)
            if location is None or location.status != Status.RUNNING or not location.is_reachable:
                return
            async with self.parts.pool.acquire() as conn:
                snapshot = await context.find_snapshot(conn, workspace_id)
            if snapshot is not None and snapshot.generation == location.generation:
                conn_to = self.directory.connect(location, ChatHeaders())
                async with self.parts.clock.deadline(ANSWER_SECONDS, "mcp-servers"):
                    await self.contexts.run_agreed(snapshot, conn_to, wait=SETTLE_SECONDS)
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
        """Push the templates that come with Rookery. On failure those of the previous version stay."""
        try:
            async with self.parts.pool.acquire() as conn:
                await shipped_templates.push(conn, self.parts.publisher)
        except Exception as error:
            log.exception("templates_not_pushed", error)
