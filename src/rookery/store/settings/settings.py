"""Rows of runtime settings: one for each group, and one for each setting of a user. `setting_groups` defines the
groups.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.store.db.pool import Connection

READ = "SELECT value FROM settings WHERE key = $1"
LIST = "SELECT key, value FROM settings"
READ_ROW = "SELECT value, updated_at, updated_by FROM settings WHERE key = $1"
LIST_ROWS = "SELECT key, value, updated_at, updated_by FROM settings WHERE key = ANY ($1::text[])"
# Writes nothing if the value does not change, because clients compare `updated_at`.
WRITE = """
    INSERT INTO settings (key, value, updated_by)
    VALUES ($1, $2, $3)
    ON CONFLICT (key) DO UPDATE
       SET value = excluded.value, updated_at = clock_timestamp(), updated_by = excluded.updated_by
     WHERE settings.value <> excluded.value
    RETURNING key
"""
READ_OF_USER = "SELECT value FROM user_settings WHERE user_id = $1 AND key = $2"
LIST_OF_USER = "SELECT key, value FROM user_settings WHERE user_id = $1"
WRITE_OF_USER = """
    INSERT INTO user_settings (user_id, key, value)
    VALUES ($1, $2, $3)
    ON CONFLICT (user_id, key) DO UPDATE
       SET value = excluded.value, updated_at = clock_timestamp()
     WHERE user_settings.value <> excluded.value
    RETURNING key
"""


class Row(msgspec.Struct, frozen=True):
    value: object
    updated_at: datetime
    updated_by: UUID | None


async def find_setting(conn: Connection, key: str) -> object | None:
    """Return the stored JSON; None if all keys of the group have their defaults."""
    stored = await conn.fetchval(READ, key)
    return None if stored is None else msgspec.json.decode(stored)


async def list_settings(conn: Connection) -> dict[str, object]:
    """Return the stored JSON of all groups that have a row."""
    return {key: msgspec.json.decode(value) for key, value in await conn.fetch(LIST)}


async def find_setting_row(conn: Connection, key: str) -> Row | None:
    record = await conn.fetchrow(READ_ROW, key)
    return None if record is None else Row(msgspec.json.decode(record[0]), record[1], record[2])


async def list_setting_rows(conn: Connection, keys: Collection[str]) -> dict[str, Row]:
    """Return the rows of those groups that have one."""
    records = await conn.fetch(LIST_ROWS, list(keys))
    return {record[0]: Row(msgspec.json.decode(record[1]), record[2], record[3]) for record in records}


async def write_setting(conn: Connection, key: str, *, value: object, by: UUID | None = None) -> bool:
    """Replace a group. Returns False if it did not change."""
    return await conn.fetchval(WRITE, key, msgspec.json.encode(value).decode(), by) is not None


async def find_user_setting(conn: Connection, user_id: UUID, *, key: str) -> object | None:
    stored = await conn.fetchval(READ_OF_USER, user_id, key)
    return None if stored is None else msgspec.json.decode(stored)


async def list_user_settings(conn: Connection, user_id: UUID) -> dict[str, object]:
    return {key: msgspec.json.decode(value) for key, value in await conn.fetch(LIST_OF_USER, user_id)}


async def write_user_setting(conn: Connection, user_id: UUID, *, key: str, value: object) -> bool:
    """Replace a setting of a user. Returns False if it did not change."""
    return await conn.fetchval(WRITE_OF_USER, user_id, key, msgspec.json.encode(value).decode()) is not None
