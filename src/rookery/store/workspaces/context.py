"""Workspace context: the snapshot that each workspace reports, and the copy that each chat captures.

A captured copy is replaced as a whole and never by an older snapshot. Writing it is metadata: it moves only
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
from rookery.store.db.nested_transaction import atomic
from rookery.store.db.pool import Connection

# A lower version or an older boot never overwrites the stored snapshot.
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
READ_PIN = """
    SELECT workspace_id, workspace_generation, context_hash, context_workspace_id, context_generation,
           context_dirty_since, context_error, context_servers
      FROM chats
     WHERE id = $1
"""
LOCK_PIN = f"{READ_PIN} FOR NO KEY UPDATE"
RESOURCES = """
    SELECT ordinal, kind, source, name, description, body, hash, size, status, error, tools, entry
      FROM chat_context_resources
     WHERE chat_id = $1
     ORDER BY ordinal
"""
WRITE_PIN = """
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
# One function for every change of the binding: the old project's instructions must not be seen in the new one.
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
# Once, and only for copies of this workspace; the copy itself stays as it is.
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
LIST_UNPINNED = """
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
    """One resource that the agent found. `body` is only set for readable instruction files and skills.

    `entry` is that of an MCP server, which is `pending` until it runs.
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
        """Whether the resource is an MCP server that needs the owner's consent."""
        return self.kind == "mcp_server" and self.entry is not None


class Snapshot(msgspec.Struct, frozen=True):
    """The newest snapshot that an agent reported. `resources` are the stored JSON, as `ContextResource`s."""

    workspace_id: UUID
    generation: int
    version: int
    hash: str
    error: str | None
    resources: tuple[ContextResource, ...]
    updated_at: datetime


class Pin(msgspec.Struct, frozen=True):
    """The context that a chat has captured, and its relation to the binding. `hash` is None if there is none."""

    workspace_id: UUID | None
    workspace_generation: int | None
    hash: str | None
    pinned_workspace_id: UUID | None
    pinned_generation: int | None
    dirty_since: datetime | None
    error: str | None
    servers: int = 0


class Marked(msgspec.Struct, frozen=True):
    """A chat whose captured context was replaced or is outdated, for notifying its watchers."""

    chat_id: UUID
    owner_id: UUID
    snapshot_version: int


_resources = msgspec.json.Decoder(tuple[ContextResource, ...])


async def write_snapshot(conn: Connection, snapshot: Snapshot) -> bool:
    """Store the snapshot that an agent has sent. Return False, and store nothing, if a newer one is stored."""
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


async def read_pin(conn: Connection, chat_id: ChatId) -> Pin:
    record = await conn.fetchrow(READ_PIN, chat_id)
    if record is None:
        raise ChatNotFound(chat_id)
    return Pin(*record)


async def list_resources(conn: Connection, chat_id: ChatId) -> list[ContextResource]:
    """Return the captured resources of the chat, in the order of its prompt."""
    found = []
    for record in await conn.fetch(RESOURCES, chat_id):
        values = dict(record)
        values["tools"] = None if values["tools"] is None else msgspec.json.decode(values["tools"])
        values["entry"] = None if values["entry"] is None else msgspec.json.decode(values["entry"], type=Entry)
        found.append(ContextResource(**values))
    return found


async def pin(conn: Connection, chat_id: ChatId) -> Marked | None:
    """Capture the newest snapshot of the chat's workspace; None if there is none, and then nothing is written.

    The caller notifies the chat's watchers.

    An empty copy would block the one that comes when the workspace is ready. The chat's row is locked first and the
    snapshot read in one statement, so a copy is never a mixture of two snapshots, nor of an old binding.
    """
    async with atomic(conn):
        record = await conn.fetchrow(LOCK_PIN, chat_id)
        if record is None:
            raise ChatNotFound(chat_id)
        workspace_id = record["workspace_id"]
        snapshot = await find_snapshot(conn, workspace_id) if workspace_id is not None else None
        if snapshot is None:
            return None
        written = await conn.fetchrow(
            WRITE_PIN, chat_id, snapshot.hash, workspace_id, snapshot.generation, snapshot.error
        )
        await _replace(conn, chat_id, snapshot.resources)
    assert written is not None, "the row is locked"
    return Marked(*written)


async def unpin(conn: Connection, chat_id: ChatId) -> None:
    """Drop the captured context; the next turn captures it again."""
    async with atomic(conn):
        await conn.execute(WRITE_PIN, chat_id, None, None, None, None)
        await conn.execute(CLEAR_RESOURCES, chat_id)


async def bind(conn: Connection, chat_id: ChatId, workspace_id: UUID | None) -> None:
    """Bind the chat to another workspace, or none, and drop its captured context. The caller notifies its watchers."""
    async with atomic(conn):
        if await conn.fetchval(BIND, chat_id, workspace_id) is None:
            raise ChatNotFound(chat_id)
        await conn.execute(CLEAR_RESOURCES, chat_id)


async def write_generation(conn: Connection, chat_id: ChatId, *, workspace_id: UUID, generation: int) -> bool:
    """Store the boot that the chat uses. Return False if it is stored already, or the chat has another workspace."""
    return await conn.fetchval(WRITE_GENERATION, chat_id, workspace_id, generation) is not None


async def mark_dirty(conn: Connection, workspace_id: UUID, *, context_hash: str, now: datetime) -> list[Marked]:
    """Mark the chats of a workspace whose captured context differs from its current one.

    Return the newly marked chats; the caller notifies their watchers. Chats that are already marked keep their time.
    """
    return [Marked(*record) for record in await conn.fetch(MARK_DIRTY, workspace_id, context_hash, now)]


async def list_unpinned(conn: Connection, workspace_id: UUID) -> list[ChatId]:
    """List chats that are bound to the workspace and wait for their context."""
    return [ChatId(record["id"]) for record in await conn.fetch(LIST_UNPINNED, workspace_id)]


async def add_servers(conn: Connection, snapshot: Snapshot) -> list[Marked]:
    """Record a change of a workspace's MCP servers for its chats. The caller notifies their watchers.

    A captured context keeps its tools. It gets servers that run now and did not when it was captured, or had another
    entry.
    """
    running = [each for each in snapshot.resources if each.is_server and each.status == "ok"]
    marked = []
    async with atomic(conn):
        for record in await conn.fetch(LIST_BOUND, snapshot.workspace_id):
            pin = await conn.fetchrow(LOCK_PIN, record["id"])
            if pin is None or pin["workspace_id"] != snapshot.workspace_id:
                continue
            if pin["context_workspace_id"] == snapshot.workspace_id:
                await _add_running(conn, record["id"], running)
            bumped = await conn.fetchrow(BUMP_SERVERS, record["id"])
            assert bumped is not None, "the row is locked"
            marked.append(Marked(*bumped))
    return marked


async def bump_servers(conn: Connection, workspace_id: UUID) -> list[Marked]:
    """Record an answer about the servers of a workspace. The caller notifies the watchers of its chats."""
    bumped = [await conn.fetchrow(BUMP_SERVERS, record["id"]) for record in await conn.fetch(LIST_BOUND, workspace_id)]
    return [Marked(*record) for record in bumped if record is not None]


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
