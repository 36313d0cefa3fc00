"""Where turns and routers find workspaces and begin connections: the `Places` of `dialing`, over the database."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from rookery.chat.errors import ChatNotFound
from rookery.chat.messages import ChatId
from rookery.log import get_logger
from rookery.store import workspace_context, workspace_operations, workspaces
from rookery.store.errors import StoreError
from rookery.store.workspaces import Workspace
from rookery.workspaces.agent_http import AgentPools, ChatHeaders
from rookery.workspaces.answers import Health
from rookery.workspaces.conn import AgentConn
from rookery.workspaces.context import hint_of
from rookery.workspaces.dialing import Place, Unreadable
from rookery.workspaces.drivers.protocol import WorkspaceSpec
from rookery.workspaces.parts import WorkspaceParts

log = get_logger("workspaces.places")

_DATABASE_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, StoreError)


class StorePlaces:
    """One per replica. Remembers the last spec of each workspace it looked up, for `connect`."""

    def __init__(self, parts: WorkspaceParts) -> None:
        self._parts = parts
        self._pools = AgentPools(parts.clock)
        self._specs: dict[UUID, tuple[str, WorkspaceSpec]] = {}

    async def find_binding(self, chat_id: ChatId) -> UUID | None:
        try:
            async with self._parts.pool.acquire() as conn:
                return (await workspace_context.read_pin(conn, chat_id)).workspace_id
        except ChatNotFound:
            return None
        except _DATABASE_ERRORS as error:
            raise Unreadable("The database does not answer.") from error

    async def find(self, workspace_id: UUID) -> Place | None:
        try:
            async with self._parts.pool.acquire() as conn:
                row = await workspaces.find_workspace(conn, workspace_id)
                if row is None:
                    return None
                open_one = await workspace_operations.find_open(conn, workspace_id)
                if row.is_running:
                    self._specs[workspace_id] = (row.driver, await self._parts.specs.plain(conn, row))
        except _DATABASE_ERRORS as error:
            raise Unreadable("The database does not answer.") from error
        return self._place(row, None if open_one is None else open_one.kind)

    def connect(self, place: Place, chat: ChatHeaders) -> AgentConn:
        driver, spec = self._specs[place.id]
        pool = self._pools.find(place.id, spec.generation)
        if pool is None:
            connector = self._parts.driver(driver).connector(spec)
            pool = self._pools.get(place.id, spec.generation, token=spec.token, connector=connector)
        return AgentConn(pool, chat)

    def release(self, place: Place) -> None:
        self._pools.drop(place.id, place.generation)

    async def connected(self, chat_id: ChatId, place: Place, health: Health) -> None:
        """Bumps the last use and follows the generation; a new generation with a snapshot is pinned anew."""
        try:
            async with self._parts.pool.acquire() as conn:
                await workspaces.touch(conn, place.id, now=self._parts.clock.now())
                is_new = await workspace_context.write_generation(
                    conn, chat_id, workspace_id=place.id, generation=place.generation
                )
                snapshot = await workspace_context.find_snapshot(conn, place.id) if is_new else None
                if snapshot is not None and snapshot.generation == place.generation:
                    pinned = await workspace_context.pin(conn, chat_id)
                    if pinned is not None:
                        self._parts.publisher.publish([hint_of(pinned)])
        except (*_DATABASE_ERRORS, ChatNotFound) as error:
            log.warning("workspace_use_not_noted", workspace_id=place.id, chat_id=chat_id, error=str(error))

    async def close(self) -> None:
        await self._pools.close()

    def _place(self, row: Workspace, operation: str | None) -> Place:
        return Place(
            id=row.id,
            name=row.name,
            status=row.status,
            generation=row.generation,
            agent_state=row.agent_state,
            endpoint=row.endpoint,
            error=row.error,
            operation=operation,
            is_here=row.node in (None, self._parts.node),
            started_at=row.started_at,
            last_seen_at=row.last_seen_at,
        )
