"""MCP servers with an address that files of workspaces name: their headers come from the agent into rows.

A row exists only after the owner has agreed to the entry, and its headers are sealed. From then on the server is used
like any other, also while the workspace is stopped.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.mcp_consent import Entry
from rookery.store.machine import Publisher
from rookery.store.mcp import project_servers, servers
from rookery.store.models.errors import KeysMissing
from rookery.store.models.sealed_headers import Sealer
from rookery.store.workspaces.context import ContextResource, Snapshot
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.errors import WorkspaceError

log = get_logger("workspaces.project_servers")

# Chosen: more servers than one process serves.
MAX_REMEMBERED = 4096


class ProjectServers:
    """Keeps the rows of agreed entries. There is one object per process."""

    def __init__(self, pool: asyncpg.Pool, publisher: Publisher, *, ring: Sealer | None) -> None:
        self._pool = pool
        self._publisher = publisher
        self._ring = ring
        # What the agent called the headers that the row has. A new digest means new values.
        self._digests: dict[tuple[UUID, str], str] = {}

    async def prepare(self, snapshot: Snapshot, agreed: Collection[str], agent: AgentConn) -> bool:
        """Write the rows of all agreed entries with an address. Return whether one has changed.

        Headers are fetched only if there is no row yet, or if the agent reports other values.
        """
        wanted = [
            (each, each.entry)
            for each in snapshot.resources
            if each.entry is not None and each.entry.url is not None and each.entry.hash in agreed
            if each.status == "ok"
        ]
        if not wanted:
            return False
        async with self._pool.acquire() as conn:
            known = {each.entry_hash for each in await project_servers.list_of_workspace(conn, snapshot.workspace_id)}
        has_changed = False
        for resource, entry in wanted:
            is_written = entry.hash in known and self._digests.get((snapshot.workspace_id, entry.hash)) == resource.hash
            if not is_written:
                has_changed |= await self._write(snapshot.workspace_id, resource, entry, agent)
        if has_changed:
            self._publisher.publish([servers.hint()])
        return has_changed

    async def _write(self, workspace_id: UUID, resource: ContextResource, entry: Entry, agent: AgentConn) -> bool:
        try:
            headers = await agent.mcp_headers(entry) if entry.headers else {}
            if set(headers) != set(entry.headers):
                raise InvalidInput("headers", "The agent returned other headers than the entry names.")
            async with self._pool.acquire() as conn:
                has_changed = await project_servers.write(conn, workspace_id, entry, headers, ring=self._ring)
        except (InvalidInput, KeysMissing, WorkspaceError) as error:
            log.warning("project_server_not_prepared", workspace_id=workspace_id, server=entry.name, error=str(error))
            return False
        if len(self._digests) >= MAX_REMEMBERED:
            self._digests.clear()
        self._digests[workspace_id, entry.hash] = resource.hash
        return has_changed
