"""Repair of email addresses that older versions stored as typed: they are brought into normal form at each start."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access.account_names import normal_name
from rookery.domain.chat.errors import InvalidInput
from rookery.store.db.pool import Connection
from rookery.store.people import users

# The older of two accounts with the same normal form gets it.
ADDRESSES = "SELECT id, email FROM users WHERE email IS NOT NULL ORDER BY created_at, id"
# A version that runs beside this one may have changed the address meanwhile.
REWRITE = "UPDATE users SET email = $2 WHERE id = $1 AND email = $3 RETURNING true"


class NameRepair(msgspec.Struct, frozen=True):
    """The ids of accounts whose address was rewritten, and of those that had to keep theirs."""

    rewritten: tuple[UUID, ...]
    left: tuple[UUID, ...]


async def repair_names(conn: Connection) -> NameRepair:
    """Rewrite the addresses that are not in normal form. Replicas that start together do it one after the other.

    An address stays as it is if another account has the normal form, or if that form is not an address. Its owner logs
    in with the stored address.
    """
    rewritten: list[UUID] = []
    left: list[UUID] = []
    async with conn.transaction():
        await conn.execute(users.LOCK, users.LOCK_KEY)
        for user_id, email in await conn.fetch(ADDRESSES):
            if (normal := normal_name(email)) == email:
                continue
            try:
                users.check_email(normal)
                async with conn.transaction():
                    if await conn.fetchval(REWRITE, user_id, normal, email):
                        rewritten.append(user_id)
            except (InvalidInput, asyncpg.UniqueViolationError):
                left.append(user_id)
    return NameRepair(tuple(rewritten), tuple(left))
