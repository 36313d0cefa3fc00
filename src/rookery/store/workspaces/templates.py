"""Workspace templates and their revisions. They are stored in the database, so that all nodes use the same ones.

The manifest is JSON that `workspaces.templates` has checked. This module does not read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.access.rights import Role
from rookery.store.db.pool import Connection, atomic
from rookery.store.people.errors import InUse, Missing

MAX_ARCHIVE_BYTES = 8 * 1024 * 1024

# The columns of `Template`, in the order of its fields. The archive is read separately.
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
# The use of each template by this owner and by all users. The counts of this owner cover the last 60 days.
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
# The template is written before its revision. Its foreign key to the revision is checked at the commit.
PUSH = """
    INSERT INTO templates AS t (name, revision, shipped)
    VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE
       SET revision = excluded.revision, shipped = excluded.shipped, updated_at = clock_timestamp()
     WHERE (t.revision, t.shipped) IS DISTINCT FROM (excluded.revision, excluded.shipped)
       AND (t.shipped OR NOT excluded.shipped)
    RETURNING name
"""
PUSH_REVISION = """
    INSERT INTO template_revisions (template, revision, manifest, readme, archive, pushed_by)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (template, revision) DO NOTHING
"""
# Revisions of existing workspaces stay, because a workspace may be started again with its own revision.
PRUNE = """
    DELETE FROM template_revisions r
     WHERE r.template = $1
       AND NOT EXISTS (SELECT FROM templates t WHERE t.name = r.template AND t.revision = r.revision)
       AND NOT EXISTS (SELECT FROM workspaces w WHERE w.template = r.template AND w.template_revision = r.revision)
"""
LOCK = "SELECT name FROM templates WHERE name = $1 FOR UPDATE"
UPDATE = """
    UPDATE templates
       SET enabled = $2, deprecated = $3, agents_allowed = $4, allowed_users = $5, allowed_roles = $6,
           updated_at = clock_timestamp()
     WHERE name = $1
"""
IN_USE = "SELECT count(*) FROM workspaces WHERE template = $1 AND deleted_at IS NULL"
DELETE = "DELETE FROM templates WHERE name = $1"


class TemplateNotFound(Missing):
    """Raised if the template does not exist, or if the caller may not see it."""

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
        """Return whether the template's lists allow this user. `enabled` is not checked."""
        if not self.allowed_users and not self.allowed_roles:
            return True
        return user_id in self.allowed_users or role in self.allowed_roles


class Revision(msgspec.Struct, frozen=True):
    template: str
    revision: str
    manifest: dict[str, Any]
    readme: str
    created_at: datetime


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """A template to store, checked and packed. `manifest` is JSON."""

    name: str
    revision: str
    manifest: str
    readme: str
    archive: bytes


class TemplatePatch(msgspec.Struct, frozen=True, kw_only=True):
    """An administrator's changes to a template. A field that is UNSET keeps its value."""

    enabled: bool | UnsetType = UNSET
    deprecated: bool | UnsetType = UNSET
    agents_allowed: bool | UnsetType = UNSET
    allowed_users: tuple[UUID, ...] | UnsetType = UNSET
    allowed_roles: tuple[str, ...] | UnsetType = UNSET


class Signals(msgspec.Struct, frozen=True):
    """The use of a template, by which templates are ranked.

    `active` and `deleted` count the workspaces of one owner that were used in the last 60 days. `active_users` counts
    all users with a workspace that is not deleted.
    """

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
    """Return all templates in order of their names. The caller checks which of them a user may use."""
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
    """Return the use of each template by name. Templates that were never used are left out."""
    records: Sequence[asyncpg.Record] = await conn.fetch(SIGNALS, owner_id, now)
    return {
        record["template"]: Signals(record["active"], record["deleted"], record["last_used_at"], record["active_users"])
        for record in records
    }


async def push_template(conn: Connection, push: Push, *, by: UUID | None = None, shipped: bool = False) -> bool:
    """Make this the current revision, which new workspaces use. Returns False if nothing changed.

    A template that ships with Rookery never replaces one that an administrator pushed under the same name.
    """
    async with atomic(conn):
        if await conn.fetchval(PUSH, push.name, push.revision, shipped) is None:
            return False
        await conn.execute(PUSH_REVISION, push.name, push.revision, push.manifest, push.readme, push.archive, by)
        await conn.execute(PRUNE, push.name)
    return True


async def update_template(conn: Connection, name: str, patch: TemplatePatch) -> Template:
    async with atomic(conn):
        if await conn.fetchval(LOCK, name) is None:
            raise TemplateNotFound(name)
        current = await get_template(conn, name)
        changes = {key: value for key, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
        wanted = msgspec.structs.replace(current, **changes)
        await conn.execute(
            UPDATE,
            name,
            wanted.enabled,
            wanted.deprecated,
            wanted.agents_allowed,
            list(wanted.allowed_users),
            list(wanted.allowed_roles),
        )
        return await get_template(conn, name)


async def delete_template(conn: Connection, name: str) -> None:
    """Delete the template and its revisions.

    Raises `InUse` if a workspace uses it, or if it ships with Rookery: the next start would restore it.
    """
    async with atomic(conn):
        if await conn.fetchval(LOCK, name) is None:
            raise TemplateNotFound(name)
        if (await get_template(conn, name)).shipped:
            raise InUse("This template ships with Rookery, so the next start would restore it. Disable it instead.")
        if used := await conn.fetchval(IN_USE, name):
            raise InUse(f"{used} workspaces use this template. Delete them first, or disable the template.")
        await conn.execute(DELETE, name)


def from_record(record: asyncpg.Record | Mapping[str, Any]) -> Template:
    values = dict(record)
    values["manifest"] = msgspec.json.decode(values["manifest"])
    values["allowed_users"] = tuple(values["allowed_users"])
    values["allowed_roles"] = tuple(values["allowed_roles"])
    return Template(**values)
