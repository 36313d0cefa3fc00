"""Everything about workspaces that lives as long as a replica, and the loops it needs."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn
from uuid import UUID

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.workspaces import context
from rookery.store.workspaces.workspaces import Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces import shipped_templates
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.availability import Availability
from rookery.workspaces.connection import Unreadable
from rookery.workspaces.context import DATABASE_ERRORS, SETTLE_SECONDS, Contexts
from rookery.workspaces.context_watch import ContextWatches
from rookery.workspaces.directory import StorePlaces
from rookery.workspaces.drivers import startup_notice
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.egress.sockets import KEEP_SECONDS, Doors
from rookery.workspaces.errors import NoConnection, WorkspaceError
from rookery.workspaces.file_browser import ChatFolders
from rookery.workspaces.git import ChatGit
from rookery.workspaces.operations import Executor
from rookery.workspaces.reconciler import Reconciler
from rookery.workspaces.service import Workspaces
from rookery.workspaces.services import WorkspaceServices

log = get_logger("workspaces")

# Nobody waits for it, so it may take longer than what a turn waits for.
READY_SECONDS = 10.0
# More than a server of the workspace gets to start.
ANSWER_SECONDS = 15.0


class WorkspaceRuntime:
    def __init__(self, parts: WorkspaceServices) -> None:
        self.parts = parts
        self.service = Workspaces(parts)
        self.places = StorePlaces(parts)
        self.contexts = Contexts(parts.pool, parts.publisher, clock=parts.clock)
        self.watches = ContextWatches(self.contexts, self.places, clock=parts.clock)
        self.availability = Availability(parts)
        self.git = ChatGit(parts, self.places)
        self.folders = ChatFolders(self.places)
        self.executor = Executor(parts)
        self.reconciler = Reconciler(parts, self.executor.readiness)

    def start(self, group: asyncio.TaskGroup, *, is_server: bool) -> list[asyncio.Task[Any]]:
        """The loops of this replica. A command carries out operations while it lives, and looks after nothing else."""
        loops: list[asyncio.Task[Any]] = [group.create_task(self.executor.run(), name="workspace-operations")]
        if is_server:
            loops += [
                group.create_task(self.push_templates(), name="templates"),
                group.create_task(startup_notice.announce(self.parts.drivers.values()), name="workspace-machine"),
                group.create_task(self.reconciler.run(), name="workspace-reconciler"),
                group.create_task(self.reconciler.run_idle(), name="workspace-idle"),
                *(group.create_task(self._keep(doors), name="workspace-egress") for doors in self._doors()),
            ]
        return loops

    def _doors(self) -> list[Doors]:
        return [driver.doors for driver in self.parts.drivers.values() if isinstance(driver, LocalDriver)]

    def add_own_port(self, port: int) -> None:
        """The server listens there: no exemption lets a workspace reach it."""
        for doors in self._doors():
            doors.add_own_port(port)

    async def _keep(self, doors: Doors) -> NoReturn:
        """A command serves those that it starts, and a server all that nobody serves."""
        async for _ in self.parts.clock.ticker(KEEP_SECONDS, "workspace-egress"):
            try:
                await doors.keep()
            except OSError as error:
                log.warning("egress_not_kept", error=str(error))
            except Exception as error:
                log.exception("egress_not_kept", error)
        raise AssertionError("unreachable")

    async def hear_context(self, workspace: Workspace) -> None:
        """A workspace is ready: what it has to tell is kept, and pinned by the chats that wait for it."""
        try:
            place = await self.places.find(workspace.id)
            if place is None or place.generation != workspace.generation:
                return
            conn = self.places.connect(place, ChatHeaders())
            await self.contexts.refresh(workspace.id, place.generation, conn, seconds=READY_SECONDS)
        except (Unreadable, NoConnection, DriverError, LookupError) as error:
            log.info("workspace_context_not_heard", workspace_id=workspace.id, error=str(error))

    async def run_agreed_servers(self, workspace_id: UUID) -> None:
        """An owner has answered about an MCP server: the agent runs what it may run from now on. Never raises.

        A workspace that does not answer hears of it when it does again.
        """
        try:
            place = await self.places.find(workspace_id)
            if place is None or place.status != Status.RUNNING or not place.is_reachable:
                return
            async with self.parts.pool.acquire() as conn:
                snapshot = await context.find_snapshot(conn, workspace_id)
            if snapshot is not None and snapshot.generation == place.generation:
                conn_to = self.places.connect(place, ChatHeaders())
                async with self.parts.clock.deadline(ANSWER_SECONDS, "mcp-servers"):
                    await self.contexts.run_agreed(snapshot, conn_to, wait=SETTLE_SECONDS)
        except (Unreadable, WorkspaceError, DriverError, DeadlineExceeded, LookupError, *DATABASE_ERRORS) as error:
            log.info("mcp_servers_not_run", workspace_id=workspace_id, error=str(error) or type(error).__name__)

    async def close(self) -> None:
        await self.watches.close()
        await self.places.close()
        for doors in self._doors():
            await doors.close()
        for driver in self.parts.drivers.values():
            if isinstance(driver, SshDriver):
                await driver.close()

    async def push_templates(self) -> None:
        """Templates that come with Rookery. A failure leaves those of the version before."""
        try:
            async with self.parts.pool.acquire() as conn:
                await shipped_templates.push(conn, self.parts.publisher)
        except Exception as error:
            log.exception("templates_not_pushed", error)
