"""Accesses of administrators to a user's chats and account: a chat that was read with a reason, or a password reset.

Users get a list of accesses, and a notice of those since they last dismissed one. Both are read from the audit log.

A person who is not the owner of the account may use a reset link, and must not be able to hide the reset. For
`RESET_NOTICE` after a reset, a dismissal therefore applies only to the session or API token that sends it, and every
new login gets the notice again. A reset ends all earlier sessions and tokens, so a dismissal always comes from a newer
one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import asyncpg
import msgspec

from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.people import audit, users
from rookery.store.people.users import PublicUser

# Chosen: the duration of the longest session.
RESET_NOTICE = timedelta(days=30)

LIST = f"""
    SELECT id, at, actor_id, action, extra
      FROM audit_log
     WHERE subject_id = $1
       AND id < $2
       AND action IN ('{audit.BREAK_GLASS}', '{audit.RESET_PASSWORD}')
     ORDER BY id DESC
     LIMIT $3
"""
# For one family of chats. A password reset gives access to all of them.
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
      LEFT JOIN sessions s ON s.id = $2 AND s.user_id = u.id
      LEFT JOIN api_tokens t ON t.id = $2 AND t.user_id = u.id
      JOIN audit_log a ON a.subject_id = u.id AND a.id > greatest(u.accesses_seen, s.accesses_seen, t.accesses_seen)
     WHERE u.id = $1
       AND a.action IN ('{audit.BREAK_GLASS}', '{audit.RESET_PASSWORD}')
"""
# At most the id of the newest entry, so that a larger number does not hide later entries.
MARK_SEEN = """
    UPDATE {table}
       SET accesses_seen = greatest(
             accesses_seen, least($2, coalesce((SELECT max(id) FROM audit_log WHERE subject_id = $1), 0)))
     WHERE {column} = $1
"""
MARK_SEEN_BY_USER = MARK_SEEN.format(table="users", column="id")
MARK_SEEN_BY_CREDENTIAL = tuple(
    MARK_SEEN.format(table=table, column="user_id") + " AND id = $3" for table in ("sessions", "api_tokens")
)
WAS_RESET = f"""
    SELECT EXISTS (SELECT FROM audit_log WHERE subject_id = $1 AND action = '{audit.RESET_PASSWORD}' AND at > $2)
"""


class AccessKind(StrEnum):
    READ = "read"
    PASSWORD_RESET = "password_reset"  # noqa: S105 -- the name of an event, not a secret


class Access(msgspec.Struct, frozen=True):
    """An administrator read a chat with a reason, or reset the password of its owner.

    `user` is the administrator; it is null if the account is deleted, and for a command on the server's machine.
    `chat_id` and `reason` are null for a reset.
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
    """The accesses since the user last dismissed a notice. Send `through` to dismiss this one.

    For 30 days after a password reset, a notice is dismissed only for the session or token that dismisses it.
    """

    reads: int
    password_resets: int
    last_at: datetime
    through: int


async def list_accesses(
    conn: Connection, user_id: UUID, *, limit: int = 50, cursor: str | None = None, root_id: UUID | None = None
) -> AccessPage:
    """List the accesses to a user's chats and account, or to one family of chats."""
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


async def find_notice(conn: Connection, user_id: UUID, *, credential_id: UUID | None) -> AccessNotice | None:
    """Return the notice for this session or API token; None if all accesses were dismissed."""
    record = await conn.fetchrow(NOTICE, user_id, credential_id)
    assert record is not None
    return None if record[3] is None else AccessNotice(*record)


async def dismiss(conn: Connection, user_id: UUID, *, through: int, credential_id: UUID | None, now: datetime) -> None:
    """Dismiss the notice for all logins of the user, or only for this one if the password was reset recently."""
    through = min(through, audit.MAX_ID)
    if not await conn.fetchval(WAS_RESET, user_id, now - RESET_NOTICE):
        await conn.execute(MARK_SEEN_BY_USER, user_id, through)
        return
    for statement in MARK_SEEN_BY_CREDENTIAL:
        await conn.execute(statement, user_id, through, credential_id)


def _access(record: asyncpg.Record, names: dict[UUID, PublicUser]) -> Access:
    user = None if record["actor_id"] is None else names.get(record["actor_id"])
    if record["action"] == audit.RESET_PASSWORD:
        return Access(record["at"], AccessKind.PASSWORD_RESET, user, None, None)
    extra = msgspec.json.decode(record["extra"])
    return Access(record["at"], AccessKind.READ, user, UUID(extra["chat_id"]), str(extra["reason"]))
