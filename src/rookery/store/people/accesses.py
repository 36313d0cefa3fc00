"""Administrators' accesses to a user's account and chats: reading a chat with a stated reason, or resetting the
password. Users see the list, and a notice about accesses since they last dismissed one.

All of it is read from the audit log, by the column of the affected user.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.people import audit, users
from rookery.store.people.users import PublicUser

LIST = f"""
    SELECT id, at, actor_id, action, extra
      FROM audit_log
     WHERE subject_id = $1
       AND id < $2
       AND action IN ('{audit.BREAK_GLASS}', '{audit.RESET_PASSWORD}')
     ORDER BY id DESC
     LIMIT $3
"""
# For one family of chats. A reset password may have opened any of them.
LIST_OF_CHAT = f"""
    SELECT id, at, actor_id, action, extra
      FROM audit_log
     WHERE id < $3
       AND (resource_type = 'chat' AND resource_id = $2::uuid::text AND action = '{audit.BREAK_GLASS}'
            OR subject_id = $1 AND action = '{audit.RESET_PASSWORD}')
     ORDER BY id DESC
     LIMIT $4
"""
NOTICE = f"""
    SELECT count(*) FILTER (WHERE a.action = '{audit.BREAK_GLASS}'),
           count(*) FILTER (WHERE a.action = '{audit.RESET_PASSWORD}'),
           max(a.at), max(a.id)
      FROM users u
      JOIN audit_log a ON a.subject_id = u.id AND a.id > u.accesses_seen
     WHERE u.id = $1
       AND a.action IN ('{audit.BREAK_GLASS}', '{audit.RESET_PASSWORD}')
"""
# Never beyond the newest entry: a number from the future must not hide later ones.
MARK_SEEN = """
    UPDATE users
       SET accesses_seen = greatest(
             accesses_seen, least($2, coalesce((SELECT max(id) FROM audit_log WHERE subject_id = $1), 0)))
     WHERE id = $1
"""


class AccessKind(StrEnum):
    READ = "read"
    PASSWORD_RESET = "password_reset"  # noqa: S105 -- the name of an event, not a secret


class Access(msgspec.Struct, frozen=True):
    """An administrator read a chat with a stated reason, or reset the password of its owner.

    `user` is the administrator: null if the account is gone, or for a command on the server's machine. `chat_id` and
    `reason` are null for a reset.
    """

    at: datetime
    kind: AccessKind
    user: PublicUser | None
    chat_id: UUID | None
    reason: str | None


class AccessPage(msgspec.Struct, frozen=True):
    """A page of accesses, newest first."""

    items: tuple[Access, ...]
    next_cursor: str | None


class AccessNotice(msgspec.Struct, frozen=True):
    """The accesses since the user last dismissed a notice. Send `through` to dismiss this one."""

    reads: int
    password_resets: int
    last_at: datetime
    through: int


async def list_accesses(
    conn: Connection, user_id: UUID, *, limit: int = 50, cursor: str | None = None, root_id: UUID | None = None
) -> AccessPage:
    """List the accesses of a user, or of one family of the user's chats."""
    page_cursors.check_limit(limit, audit.MAX_LIMIT)
    before = page_cursors.decode(cursor, audit.RowId) if cursor is not None else audit.MAX_ID
    if root_id is None:
        records = await conn.fetch(LIST, user_id, before, limit + 1)
    else:
        records = await conn.fetch(LIST_OF_CHAT, user_id, root_id, before, limit + 1)
    found = records[:limit]
    names = await users.find_names(conn, [each["actor_id"] for each in found if each["actor_id"]])
    last = page_cursors.encode(found[-1]["id"]) if len(records) > limit else None
    return AccessPage(tuple(_access(each, names) for each in found), last)


async def find_notice(conn: Connection, user_id: UUID) -> AccessNotice | None:
    """Return the notice; None if there is nothing that the user was not shown."""
    record = await conn.fetchrow(NOTICE, user_id)
    assert record is not None
    return None if record[3] is None else AccessNotice(*record)


async def mark_seen(conn: Connection, user_id: UUID, *, through: int) -> None:
    await conn.execute(MARK_SEEN, user_id, min(through, audit.MAX_ID))


def _access(record: asyncpg.Record, names: dict[UUID, PublicUser]) -> Access:
    user = None if record["actor_id"] is None else names.get(record["actor_id"])
    if record["action"] == audit.RESET_PASSWORD:
        return Access(record["at"], AccessKind.PASSWORD_RESET, user, None, None)
    extra = msgspec.json.decode(record["extra"])
    return Access(record["at"], AccessKind.READ, user, UUID(extra["chat_id"]), str(extra["reason"]))
