"""The last list of tools of each server. It is used while the server does not answer.

If the server may give users different lists, each user has a separate one. A list of an older configuration is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from rookery.domain.chat import parts
from rookery.store.db.pool import Connection

FIND = """
    SELECT tools, hash, fetched_at, fresh_until
      FROM mcp_tool_lists
     WHERE server_id = $1
       AND user_id IS NOT DISTINCT FROM $2
       AND config_version = $3
"""
# The server may have been deleted or changed while it was asked.
WRITE = """
    INSERT INTO mcp_tool_lists (server_id, user_id, config_version, tools, hash, fresh_until, fetched_at)
    SELECT id, $2, $3, $4::jsonb -> 'tools', $5, $6, clock_timestamp()
      FROM mcp_servers
     WHERE id = $1
       AND config_version = $3
        ON CONFLICT (server_id, user_id) DO UPDATE
       SET config_version = excluded.config_version, tools = excluded.tools, hash = excluded.hash,
           fresh_until = excluded.fresh_until, fetched_at = excluded.fetched_at
"""


class ToolList(msgspec.Struct, frozen=True):
    """A list in the form in which the server sent it. `fresh_until` is None if the server sets no limit."""

    tools: tuple[dict[str, Any], ...]
    hash: str
    fetched_at: datetime
    fresh_until: datetime | None


class _Stored(msgspec.Struct):
    """The stored form of a list."""

    tools: tuple[dict[str, Any], ...]


async def find_list(conn: Connection, server_id: UUID, user_id: UUID | None, *, config_version: int) -> ToolList | None:
    record = await conn.fetchrow(FIND, server_id, user_id, config_version)
    if record is None:
        return None
    tools = msgspec.json.decode(parts.unescape(record["tools"]), type=tuple[dict[str, Any], ...])
    return ToolList(tools, record["hash"], record["fetched_at"], record["fresh_until"])


async def write_list(
    conn: Connection,
    server_id: UUID,
    user_id: UUID | None,
    tools: Sequence[dict[str, Any]],
    *,
    config_version: int,
    fresh_until: datetime | None = None,
) -> None:
    """Store the list, which replaces the previous one. Nothing is stored if the server has been changed or deleted."""
    stored = parts.to_jsonb(_Stored(tuple(tools)))
    await conn.execute(WRITE, server_id, user_id, config_version, stored, hash_of(tools), fresh_until)


def hash_of(tools: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(tools, key=lambda tool: str(tool.get("name"))))).hexdigest()
