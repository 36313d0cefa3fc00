"""Workspace templates and their revisions. The database is the source, so that all nodes agree.

The manifest is kept as the JSON of what `workspaces.templates` parsed; nothing here looks into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.chat.rights import Role
from rookery.store.access_errors import Missing
from rookery.store.pool import Connection

MAX_ARCHIVE_BYTES = 8 * 1024 * 1024

# The fields of `Template`, in its order. The archive is read by itself.
COLUMNS = (
    "t.name, t.revision, t.enabled, t.deprecated, t.agents_allowed, t.allowed_users, t.allowed_roles, t.shipped, "
    "t.created_at, t.updated_at, r.manifest, r.readme"
)
FROM = "FROM templates t JOIN template_revisions r ON r.template = t.name AND r.revision = t.revision"
FIND = f"SELECT {COLUMNS} {FROM} WHERE t.name = $1"
LIST = f"SELECT {COLUMNS} {FROM} ORDER BY t.name"
FIND_REVISION = """
    SELECT template, revision, manifest, readme, created_at
      FROM template_revisions
     WHERE template = $1
       AND revision = $2
"""
ARCHIVE = "SELECT archive FROM template_revisions WHERE template = $1 AND revision = $2"
# How much this owner, and everybody, uses each template. Only the last 60 days count as use.
SIGNALS = """
    SELECT w.template,
           count(*) FILTER (WHERE mine AND recent AND w.deleted_at IS NULL) AS active,
           count(*) FILTER (WHERE mine AND recent AND w.deleted_at IS NOT NULL) AS deleted,
           max(w.last_used_at) FILTER (WHERE mine) AS last_used_at,
           count(DISTINCT w.owner_id) FILTER (WHERE w.deleted_at IS NULL) AS active_users
      FROM workspaces w,
           LATERAL (SELECT w.owner_id = $1 AS mine, w.last_used_at >= $2::timestamptz - interval '60 days' AS recent) u
     WHERE w.template IS NOT NULL
     GROUP BY w.template
"""


class TemplateNotFound(Missing):
    """Not there, or not the caller's to know."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"There is no template {name}.")


class Template(msgspec.Struct, frozen=True):
    """A template with its current revision."""

    name: str
    revision: str
    enabled: bool
    deprecated: bool
    agents_allowed: bool
    allowed_users: tuple[UUID, ...]
    allowed_roles: tuple[str, ...]
    shipped: bool
    created_at: datetime
    updated_at: datetime
    manifest: dict[str, Any]
    readme: str

    def is_allowed(self, user_id: UUID, role: Role) -> bool:
        """Whether this person may make workspaces of it while it is enabled."""
        if not self.allowed_users and not self.allowed_roles:
            return True
        return user_id in self.allowed_users or role in self.allowed_roles


class Revision(msgspec.Struct, frozen=True):
    template: str
    revision: str
    manifest: dict[str, Any]
    readme: str
    created_at: datetime


class Signals(msgspec.Struct, frozen=True):
    """How much a template is used: by one owner in the last 60 days, and by how many users with a live workspace."""

    active: int = 0
    deleted: int = 0
    last_used_at: datetime | None = None
    active_users: int = 0


async def find_template(conn: Connection, name: str) -> Template | None:
    record = await conn.fetchrow(FIND, name)
    return None if record is None else from_record(record)


async def get_template(conn: Connection, name: str) -> Template:
    found = await find_template(conn, name)
    if found is None:
        raise TemplateNotFound(name)
    return found


async def list_templates(conn: Connection) -> list[Template]:
    """All of them, by name. Who may use which is the caller's to check."""
    return [from_record(record) for record in await conn.fetch(LIST)]


async def find_revision(conn: Connection, name: str, revision: str) -> Revision | None:
    record = await conn.fetchrow(FIND_REVISION, name, revision)
    if record is None:
        return None
    values = dict(record)
    values["manifest"] = msgspec.json.decode(values["manifest"])
    return Revision(**values)


async def load_archive(conn: Connection, name: str, revision: str) -> bytes | None:
    data = await conn.fetchval(ARCHIVE, name, revision)
    return None if data is None else bytes(data)


async def list_signals(conn: Connection, owner_id: UUID, *, now: datetime) -> dict[str, Signals]:
    """By template; those that nobody uses are not in it."""
    records: Sequence[asyncpg.Record] = await conn.fetch(SIGNALS, owner_id, now)
    return {
        record["template"]: Signals(record["active"], record["deleted"], record["last_used_at"], record["active_users"])
        for record in records
    }


def from_record(record: asyncpg.Record | Mapping[str, Any]) -> Template:
    values = dict(record)
    values["manifest"] = msgspec.json.decode(values["manifest"])
    values["allowed_users"] = tuple(values["allowed_users"])
    values["allowed_roles"] = tuple(values["allowed_roles"])
    return Template(**values)
