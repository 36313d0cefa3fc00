"""Custom kinds of subagents: those of the deployment, and those of each user."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content.agent_kinds import KindDefinition
from rookery.store.db.pool import Connection

# The kind of the hint that announces a change.
HINT = "agent_kind"
# The limit of kinds per user, and of the deployment.
MAX_KINDS = 50

_COLUMNS = """
    owner_id, name, description, prompt, model_config_id, reasoning_effort, tools, read_only, max_minutes, updated_at
"""
LIST = f"""
    SELECT {_COLUMNS}
      FROM agent_kinds
     WHERE owner_id IS NULL OR owner_id = $1
     ORDER BY owner_id NULLS FIRST, name
"""
COUNT = "SELECT count(*) FROM agent_kinds WHERE owner_id IS NOT DISTINCT FROM $1 AND name <> $2"
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('agent_kinds:' || coalesce($1::text, ''), 0))"
WRITE = f"""
    INSERT INTO agent_kinds
           (owner_id, name, description, prompt, model_config_id, reasoning_effort, tools, read_only, max_minutes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (owner_id, name) DO UPDATE
       SET description = excluded.description,
           prompt = excluded.prompt,
           model_config_id = excluded.model_config_id,
           reasoning_effort = excluded.reasoning_effort,
           tools = excluded.tools,
           read_only = excluded.read_only,
           max_minutes = excluded.max_minutes,
           updated_at = clock_timestamp()
    RETURNING {_COLUMNS}
"""
DELETE = "DELETE FROM agent_kinds WHERE owner_id IS NOT DISTINCT FROM $1 AND name = $2 RETURNING true"


class StoredKind(msgspec.Struct, frozen=True):
    """A stored kind. `owner_id` is None for kinds of the deployment."""

    owner_id: UUID | None
    name: str
    description: str
    prompt: str
    model_config_id: UUID | None
    reasoning_effort: Effort | None
    tools: tuple[str, ...] | None
    read_only: bool
    max_minutes: int | None
    updated_at: datetime


def _kind(record: asyncpg.Record) -> StoredKind:
    return msgspec.convert(dict(zip(StoredKind.__struct_fields__, record, strict=True)), StoredKind)


async def list_kinds(conn: Connection, owner_id: UUID) -> list[StoredKind]:
    """Return the kinds of the deployment, then those of this user, by name."""
    return [_kind(record) for record in await conn.fetch(LIST, owner_id)]


async def write_kind(
    conn: Connection, owner_id: UUID | None, kind: KindDefinition, *, model_config_id: UUID | None
) -> StoredKind:
    """Create or replace a kind.

    Call it in a transaction, so that concurrent writers cannot exceed the limit together.
    """
    await conn.execute(LOCK, None if owner_id is None else str(owner_id))
    if await conn.fetchval(COUNT, owner_id, kind.name) >= MAX_KINDS:
        raise InvalidInput("name", f"There can be {MAX_KINDS} kinds. Delete one first.")
    record = await conn.fetchrow(
        WRITE,
        owner_id,
        kind.name,
        kind.description,
        kind.prompt,
        model_config_id,
        kind.reasoning_effort,
        None if kind.tools is None else list(kind.tools),
        kind.read_only,
        kind.max_minutes,
    )
    assert record is not None
    return _kind(record)


async def delete_kind(conn: Connection, owner_id: UUID | None, name: str) -> bool:
    """Delete a kind. Return whether it existed."""
    return bool(await conn.fetchval(DELETE, owner_id, name))
