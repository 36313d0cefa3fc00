"""One-time links, with which a user chooses a password within 24 hours. A new link replaces the user's previous one."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.store.db.pool import Connection
from rookery.store.people import credentials, users
from rookery.store.people.credentials import Credential, Kind
from rookery.store.people.errors import LinkInvalid
from rookery.store.people.users import User

LIFETIME = timedelta(hours=24)

REPLACE = """
    INSERT INTO one_time_links (id, user_id, kind, secret_hash, created_by, created_at, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (user_id) DO UPDATE
       SET id = excluded.id, kind = excluded.kind, secret_hash = excluded.secret_hash,
           created_by = excluded.created_by, created_at = excluded.created_at, expires_at = excluded.expires_at
"""
FIND = f"""
    SELECT l.secret_hash, l.kind, l.expires_at, {users.COLUMNS}
      FROM one_time_links l
      JOIN users u ON u.id = l.user_id
     WHERE l.id = $1
"""
# The row is deleted, so that of two concurrent uses only one succeeds.
USE = "DELETE FROM one_time_links WHERE id = $1 AND secret_hash = $2 AND expires_at > $3 RETURNING user_id"
PURGE = "DELETE FROM one_time_links WHERE expires_at <= $1"


class LinkKind(StrEnum):
    INVITE = "invite"
    RESET = "reset"


class NewLink(msgspec.Struct, frozen=True):
    """A new link. `secret` is for the fragment of a URL, which browsers do not send to servers."""

    secret: str
    expires_at: datetime


class Link(msgspec.Struct, frozen=True):
    """A valid link."""

    user: User
    kind: LinkKind
    expires_at: datetime


async def create_link(
    conn: Connection, user_id: UUID, *, kind: LinkKind, now: datetime, by: UUID | None = None
) -> NewLink:
    credential = credentials.new(Kind.LINK)
    expires_at = now + LIFETIME
    await conn.execute(REPLACE, credential.id, user_id, kind, credential.secret_hash, by, now, expires_at)
    return NewLink(credential.reveal(), expires_at)


async def find_link(conn: Connection, secret: str, *, now: datetime) -> Link:
    """Return the link without using it. Raises `LinkInvalid`."""
    credential = _parsed(secret)
    record = await conn.fetchrow(FIND, credential.id)
    if record is None or not credential.matches(record[0]) or record[2] <= now:
        raise LinkInvalid
    user = users.from_record(record[3:])
    if not user.is_active:
        raise LinkInvalid
    return Link(user, LinkKind(record[1]), record[2])


async def use_link(conn: Connection, secret: str, *, password_hash: str, now: datetime) -> UUID:
    """Set the password and delete the link. The caller ends the user's sessions in the same transaction."""
    credential = _parsed(secret)
    async with conn.transaction():
        user_id: UUID | None = await conn.fetchval(USE, credential.id, credential.secret_hash, now)
        if user_id is None:
            raise LinkInvalid
        await users.set_password_hash(conn, user_id, password_hash=password_hash)
        return user_id


async def purge_links(conn: Connection, *, now: datetime) -> int:
    return int((await conn.execute(PURGE, now)).split()[-1])


def _parsed(secret: str) -> Credential:
    credential = credentials.parse(Kind.LINK, secret)
    if credential is None:
        raise LinkInvalid
    return credential
