"""Workspace context: the snapshot that each workspace reports, and the copy that each chat captures.

A captured copy is replaced as a whole, and never by an older snapshot. A write of the copy increments only the chat's
`meta_version` (by trigger).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection, atomic

# A snapshot of an older boot or with a lower version never replaces the stored one.
WRITE_SNAPSHOT = """
    INSERT INTO workspace_context AS c (workspace_id, generation, version, hash, error, resources, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (workspace_id) DO UPDATE
       SET generation = excluded.generation, version = excluded.version, hash = excluded.hash, error = excluded.error,
           resources = excluded.resources, updated_at = excluded.updated_at
     WHERE (excluded.generation, excluded.version) >= (c.generation, c.version)
    RETURNING workspace_id
"""
READ_SNAPSHOT = """
    SELECT workspace_id, generation, version, hash, error, resources, updated_at
      FROM workspace_context
     WHERE workspace_id = $1
"""
READ_CAPTURED = """
    SELECT workspace_id, workspace_generation, context_hash, context_workspace_id, context_generation,
           context_dirty_since, context_error, context_servers
      FROM chats
     WHERE id = $1
"""
LOCK_CAPTURED = f"{READ_CAPTURED} FOR NO KEY UPDATE"
RESOURCES = """
    SELECT ordinal, kind, source, name, description, body, hash, size, status, error, tools, entry
      FROM chat_context_resources
     WHERE chat_id = $1
     ORDER BY ordinal
"""
WRITE_CAPTURED = """
    UPDATE chats
       SET context_hash = $2, context_workspace_id = $3, context_generation = $4, context_dirty_since = NULL,
           context_error = $5
     WHERE id = $1
    RETURNING id, owner_id, snapshot_version
"""
CLEAR_RESOURCES = "DELETE FROM chat_context_resources WHERE chat_id = $1"
ADD_RESOURCE = """
    INSERT INTO chat_context_resources
           (chat_id, ordinal, kind, source, name, description, body, hash, size, status, error, tools, entry)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
"""
# Every change of the binding also drops the captured context: its instructions belong to the old workspace.
BIND = """
    UPDATE chats
       SET workspace_id = $2, workspace_generation = NULL, context_hash = NULL, context_workspace_id = NULL,
           context_generation = NULL, context_dirty_since = NULL, context_error = NULL
     WHERE id = $1
    RETURNING id
"""
WRITE_GENERATION = """
    UPDATE chats
       SET workspace_generation = $3
     WHERE id = $1
       AND workspace_id = $2
       AND workspace_generation IS DISTINCT FROM $3
    RETURNING id
"""
# Only copies of this workspace are marked. The mark keeps its first time, and the copy is not changed.
MARK_DIRTY = """
    UPDATE chats
       SET context_dirty_since = $3
     WHERE workspace_id = $1
       AND context_workspace_id = $1
       AND context_hash <> $2
       AND context_dirty_since IS NULL
       AND NOT archived
    RETURNING id, owner_id, snapshot_version
"""
LIST_UNCAPTURED = """
    SELECT id
      FROM chats
     WHERE workspace_id = $1
       AND context_hash IS NULL
       AND NOT archived
"""
LIST_BOUND = "SELECT id FROM chats WHERE workspace_id = $1 AND NOT archived ORDER BY id"
REMOVE_SERVER = "DELETE FROM chat_context_resources WHERE chat_id = $1 AND kind = 'mcp_server' AND source = $2"
BUMP_SERVERS = """
    UPDATE chats
       SET context_servers = context_servers + 1
     WHERE id = $1
    RETURNING id, owner_id, snapshot_version
"""


class ContextResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource that the agent found: an instruction file, a skill or an MCP server.

    `body` is set only for readable instruction files and skills, `entry` only for MCP servers. The status of a server
    is `pending` until it runs.
    """

    ordinal: int
    kind: str
    source: str
    name: str | None = None
    description: str | None = None
    body: str | None = None
    hash: str = ""
    size: int = 0
    status: str = "ok"
    error: str | None = None
    tools: list[dict[str, Any]] | None = None
    entry: Entry | None = None

    @property
    def is_server(self) -> bool:
        """Return whether the resource is an MCP server that needs the owner's consent."""
        return self.kind == "mcp_server" and self.entry is not None


class Snapshot(msgspec.Struct, frozen=True):
    """The newest snapshot that the agent of a workspace has reported."""

    workspace_id: UUID
    generation: int
    version: int
    hash: str
    error: str | None
    resources: tuple[ContextResource, ...]
    updated_at: datetime


class CaptureState(msgspec.Struct, frozen=True):
    """The workspace that a chat is bound to, and the context that it has captured.

    `hash` is None if nothing is captured. `servers` counts changes of the workspace's MCP servers and consents.
    """

    workspace_id: UUID | None
    workspace_generation: int | None
    hash: str | None
    context_workspace_id: UUID | None
    context_generation: int | None
    dirty_since: datetime | None
    error: str | None
    servers: int = 0


class ContextChange(msgspec.Struct, frozen=True):
    """A chat whose captured context was replaced or became outdated. Its watchers must be notified."""

    chat_id: UUID
    owner_id: UUID
    snapshot_version: int


_resources = msgspec.json.Decoder(tuple[ContextResource, ...])


async def write_snapshot(conn: Connection, snapshot: Snapshot) -> bool:
    """Store the snapshot that an agent has sent. Returns False if a newer one is stored."""
    written = await conn.fetchval(
        WRITE_SNAPSHOT,
        snapshot.workspace_id,
        snapshot.generation,
        snapshot.version,
        snapshot.hash,
        snapshot.error,
        msgspec.json.encode(snapshot.resources).decode(),
        snapshot.updated_at,
    )
    return written is not None


async def find_snapshot(conn: Connection, workspace_id: UUID) -> Snapshot | None:
    record = await conn.fetchrow(READ_SNAPSHOT, workspace_id)
    if record is None:
        return None
    values = dict(record)
    values["resources"] = _resources.decode(values["resources"])
    return Snapshot(**values)


async def read_capture_state(conn: Connection, chat_id: ChatId) -> CaptureState:
    record = await conn.fetchrow(READ_CAPTURED, chat_id)
    if record is None:
        raise ChatNotFound(chat_id)
    return CaptureState(*record)


async def list_resources(conn: Connection, chat_id: ChatId) -> list[ContextResource]:
    """Return the captured resources of the chat, in the order of the prompt."""
    found = []
    for record in await conn.fetch(RESOURCES, chat_id):
        values = dict(record)
        values["tools"] = None if values["tools"] is None else msgspec.json.decode(values["tools"])
        values["entry"] = None if values["entry"] is None else msgspec.json.decode(values["entry"], type=Entry)
        found.append(ContextResource(**values))
    return found


async def capture(conn: Connection, chat_id: ChatId) -> ContextChange | None:
    """Capture the newest snapshot of the chat's workspace. The caller notifies the chat's watchers.

    Returns None and writes nothing if there is no snapshot. An empty copy would count as captured, so the chat would
    not capture the context once the workspace is ready. The lock on the chat's row keeps the chat bound to the same
    workspace meanwhile.
    """
    async with atomic(conn):
        record = await conn.fetchrow(LOCK_CAPTURED, chat_id)
        if record is None:
            raise ChatNotFound(chat_id)
        workspace_id = record["workspace_id"]
        snapshot = await find_snapshot(conn, workspace_id) if workspace_id is not None else None
        if snapshot is None:
            return None
        written = await conn.fetchrow(
            WRITE_CAPTURED, chat_id, snapshot.hash, workspace_id, snapshot.generation, snapshot.error
        )
        await _replace(conn, chat_id, snapshot.resources)
    assert written is not None, "the row is locked"
    return ContextChange(*written)


async def bind(conn: Connection, chat_id: ChatId, workspace_id: UUID | None) -> None:
    """Bind the chat to another workspace or to none, and delete its captured context. The caller notifies watchers."""
    async with atomic(conn):
        if await conn.fetchval(BIND, chat_id, workspace_id) is None:
            raise ChatNotFound(chat_id)
        await conn.execute(CLEAR_RESOURCES, chat_id)


async def write_generation(conn: Connection, chat_id: ChatId, *, workspace_id: UUID, generation: int) -> bool:
    """Store the boot that the chat uses. Returns False if it was already stored or the chat has another workspace."""
    return await conn.fetchval(WRITE_GENERATION, chat_id, workspace_id, generation) is not None


async def mark_dirty(conn: Connection, workspace_id: UUID, *, context_hash: str, now: datetime) -> list[ContextChange]:
    """Mark the chats of a workspace whose captured context differs from its current one.

    Returns the newly marked chats. The caller notifies their watchers.
    """
    return [ContextChange(*record) for record in await conn.fetch(MARK_DIRTY, workspace_id, context_hash, now)]


async def list_uncaptured(conn: Connection, workspace_id: UUID) -> list[ChatId]:
    """Return the chats that are bound to the workspace and have not captured its context."""
    return [ChatId(record["id"]) for record in await conn.fetch(LIST_UNCAPTURED, workspace_id)]


async def add_servers(conn: Connection, snapshot: Snapshot) -> list[ContextChange]:
    """Record a change of a workspace's MCP servers in its chats. The caller notifies their watchers.

    A captured context keeps its tools. A server that now runs is added to it, if the context does not have the server
    or has it with another entry.
    """
    running = [each for each in snapshot.resources if each.is_server and each.status == "ok"]
    marked = []
    async with atomic(conn):
        for record in await conn.fetch(LIST_BOUND, snapshot.workspace_id):
            captured = await conn.fetchrow(LOCK_CAPTURED, record["id"])
            if captured is None or captured["workspace_id"] != snapshot.workspace_id:
                continue
            if captured["context_workspace_id"] == snapshot.workspace_id:
                await _add_running(conn, record["id"], running)
            bumped = await conn.fetchrow(BUMP_SERVERS, record["id"])
            assert bumped is not None, "the row is locked"
            marked.append(ContextChange(*bumped))
    return marked


async def bump_servers(conn: Connection, workspace_id: UUID) -> list[ContextChange]:
    """Record in the chats of a workspace that a consent to its MCP servers changed. The caller notifies watchers."""
    bumped = [await conn.fetchrow(BUMP_SERVERS, record["id"]) for record in await conn.fetch(LIST_BOUND, workspace_id)]
    return [ContextChange(*record) for record in bumped if record is not None]


async def _add_running(conn: Connection, chat_id: ChatId, running: Sequence[ContextResource]) -> None:
    known = await list_resources(conn, chat_id)
    kept = {(each.source, each.entry.hash) for each in known if each.entry is not None and each.status == "ok"}
    ordinal = max((each.ordinal for each in known), default=-1)
    for each in running:
        if each.entry is not None and (each.source, each.entry.hash) not in kept:
            ordinal += 1
            await conn.execute(REMOVE_SERVER, chat_id, each.source)
            await _add(conn, chat_id, [msgspec.structs.replace(each, ordinal=ordinal)])


async def _replace(conn: Connection, chat_id: ChatId, resources: Sequence[ContextResource]) -> None:
    await conn.execute(CLEAR_RESOURCES, chat_id)
    await _add(conn, chat_id, resources)


async def _add(conn: Connection, chat_id: ChatId, resources: Sequence[ContextResource]) -> None:
    await conn.executemany(
        ADD_RESOURCE,
        [
            (
                chat_id,
                each.ordinal,
                each.kind,
                each.source,
                each.name,
                each.description,
                each.body,
                each.hash,
                each.size,
                each.status,
                each.error,
                None if each.tools is None else msgspec.json.encode(each.tools).decode(),
                None if each.entry is None else msgspec.json.encode(each.entry).decode(),
            )
            for each in resources
        ],
    )
