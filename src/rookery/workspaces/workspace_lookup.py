"""Lookup of workspaces and their agents: the `WorkspaceDirectory` that reads the database.

`find_reachable` and `require_reachable` return a workspace that is running and reachable, for file and git views.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.workspaces import context, operation_rows, workspaces
from rookery.store.workspaces.workspaces import Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentPools, ChatHeaders
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.connection import Reach, Unreadable, WorkspaceLocation
from rookery.workspaces.context import hint_of
from rookery.workspaces.drivers.driver_interface import Connector, WorkspaceSpec
from rookery.workspaces.errors import NotWatchable
from rookery.workspaces.relayed_connector import RelayedConnector
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.workspace_lookup")


class StoreWorkspaceDirectory:
    """The directory of one replica. `find` caches the spec of a running workspace, which `connect` needs."""

    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts
        self._pools = AgentPools(parts.clock, self.cut_off)
        self._marking: set[asyncio.Task[None]] = set()
        self._specs: dict[UUID, tuple[Workspace, WorkspaceSpec]] = {}

    async def find_binding(self, chat_id: ChatId) -> UUID | None:
        try:
            async with self._parts.pool.acquire() as conn:
                return (await context.read_capture_state(conn, chat_id)).workspace_id
        except ChatNotFound:
            return None
        except DATABASE_ERRORS as error:
            raise Unreadable("The database does not answer.") from error

    async def find(self, workspace_id: UUID) -> WorkspaceLocation | None:
        try:
            async with self._parts.pool.acquire() as conn:
                row = await workspaces.find_workspace(conn, workspace_id)
                if row is None:
                    return None
                open_one = await operation_rows.find_open(conn, workspace_id)
                if row.is_running:
                    self._specs[workspace_id] = (row, await self._parts.specs.for_access(conn, row))
            reach = await self._reach(row)
        except DATABASE_ERRORS as error:
            raise Unreadable("The database does not answer.") from error
        return self._location(row, None if open_one is None else open_one.kind, reach)

    def connect(self, location: WorkspaceLocation, chat: ChatHeaders) -> AgentConn:
        row, spec = self._specs[location.id]
        pool = self._pools.find(location.id, spec.generation)
        if pool is None:
            connector = self._connector(row, spec)
            pool = self._pools.get(location.id, spec.generation, token=spec.token, connector=connector)
        return AgentConn(pool, chat)

    def _connector(self, row: Workspace, spec: WorkspaceSpec) -> Connector:
        parts = self._parts
        if row.node in (None, parts.node) or parts.peers is None:
            return parts.driver(row.driver).connector(spec)
        return RelayedConnector(parts.peers, row.node or "", row.id, parts.clock)

    async def find_own(self, workspace_id: UUID) -> Connector | None:
        """Return a connector to an agent on this machine, for a relayed request; None if it does not run here."""
        parts = self._parts
        try:
            async with parts.pool.acquire() as conn:
                row = await workspaces.find_workspace(conn, workspace_id)
                if row is None or not row.is_running or row.node != parts.node:
                    return None
                spec = await parts.specs.for_access(conn, row)
        except DATABASE_ERRORS as error:
            log.warning("workspace_unread", workspace_id=workspace_id, error=str(error))
            return None
        return parts.driver(row.driver).connector(spec)

    async def _reach(self, row: Workspace) -> Reach:
        parts = self._parts
        if row.node in (None, parts.node):
            return Reach.HERE
        if not row.is_running or parts.peers is None:
            return Reach.OUT_OF_REACH
        found = await parts.peers.of_node(row.node or "")
        if not found:
            return Reach.OFFLINE
        return Reach.RELAYED if any(peer.url is not None for peer in found) else Reach.OUT_OF_REACH

    def release(self, location: WorkspaceLocation) -> None:
        self._pools.drop(location.id, location.generation)

    async def record_use(self, chat_id: ChatId, location: WorkspaceLocation, health: Health) -> None:
        """Store that the chat uses this boot of the workspace.

        If the boot is new for the chat, and its context is already stored, the chat captures it.
        """
        try:
            async with self._parts.pool.acquire() as conn:
                await workspaces.touch(conn, location.id, now=self._parts.clock.now())
                is_new = await context.write_generation(
                    conn, chat_id, workspace_id=location.id, generation=location.generation
                )
                snapshot = await context.find_snapshot(conn, location.id) if is_new else None
                if snapshot is not None and snapshot.generation == location.generation:
                    captured = await context.capture(conn, chat_id)
                    if captured is not None:
                        self._parts.publisher.publish([hint_of(captured)])
        except (*DATABASE_ERRORS, ChatNotFound) as error:
            log.warning("workspace_use_not_noted", workspace_id=location.id, chat_id=chat_id, error=str(error))

    async def close(self) -> None:
        await self._pools.close()
        if self._marking:
            await asyncio.wait(self._marking)

    def cut_off(self, workspace_id: UUID, generation: int, reason: str) -> None:
        """Start a task that marks a workspace whose agent broke the protocol."""
        task = asyncio.create_task(self._mark(workspace_id, generation, reason), name=f"cut-off:{workspace_id}")
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)

    async def _mark(self, workspace_id: UUID, generation: int, reason: str) -> None:
        try:
            await self._parts.cut_off(workspace_id, generation, reason)
        except DATABASE_ERRORS as error:
            # This replica sends no further requests anyway. Other replicas detect the violation themselves.
            log.warning("workspace_not_marked", workspace_id=workspace_id, error=str(error))

    def _location(self, row: Workspace, operation: str | None, reach: Reach) -> WorkspaceLocation:
        return WorkspaceLocation(
            id=row.id,
            name=row.name,
            status=row.status,
            generation=row.generation,
            agent_state=row.agent_state,
            endpoint=row.endpoint,
            error=row.error,
            operation=operation,
            reach=reach,
            started_at=row.started_at,
            last_seen_at=row.last_seen_at,
            directory=row.directory,
            disk_warning=row.disk_warning,
            home=row.home,
        )


async def find_reachable(directory: StoreWorkspaceDirectory, chat_id: ChatId) -> WorkspaceLocation:
    """Return the location of the chat's workspace. Raise `NotWatchable` if it is not running or not reachable."""
    try:
        workspace_id = await directory.find_binding(chat_id)
    except Unreadable as error:
        raise _not_readable(error) from error
    if workspace_id is None:
        raise NotWatchable("no_workspace", "This chat has no workspace.")
    return await require_reachable(directory, workspace_id)


async def require_reachable(directory: StoreWorkspaceDirectory, workspace_id: UUID) -> WorkspaceLocation:
    """Return the location of the workspace. Raise `NotWatchable` if it is not running or not reachable."""
    try:
        location = await directory.find(workspace_id)
    except Unreadable as error:
        raise _not_readable(error) from error
    if location is None or location.status == Status.DELETED:
        raise NotWatchable("no_workspace", "This workspace does not exist any more.")
    if location.status != Status.RUNNING:
        raise NotWatchable("workspace_not_running", f"The workspace {location.name} is not running. Start it first.")
    if not location.is_reachable:
        message = f"The workspace {location.name} is on another machine, which this server cannot reach."
        raise NotWatchable("agent_unreachable", message)
    return location


def _not_readable(error: Unreadable) -> NotWatchable:
    return NotWatchable("agent_unreachable", f"The state of the workspace cannot be read: {error}")
