"""Users and connection pools for tests of accounts and rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

from rookery.domain.access.rights import Role
from rookery.store.db.pool import Connection
from rookery.store.people import users
from rookery.store.people.passwords import Passwords
from rookery.store.people.users import Status, User, UserDraft, UserPatch

PASSWORD = "tortoise-lamp-42"
CHEAP_KIB = 64  # what a hash costs is argon2's affair; tests of rules need not wait for it


@asynccontextmanager
async def open_pool(url: str, *, size: int = 8) -> AsyncIterator[asyncpg.Pool]:
    pool = await asyncpg.create_pool(url, min_size=1, max_size=size)
    try:
        yield pool
    finally:
        await pool.close()


def cheap_passwords() -> Passwords:
    return Passwords(memory_kib=CHEAP_KIB)


async def person(
    conn: Connection,
    name: str | None = None,
    *,
    role: Role = Role.MEMBER,
    password_hash: str | None = None,
    disabled: bool = False,
) -> User:
    username = name or f"u-{uuid4().hex[:12]}"
    draft = UserDraft(email=f"{username}@example.org", username=username, name=username.title(), role=role)
    user = await users.create_user(conn, draft, password_hash=password_hash)
    if not disabled:
        return user
    return (await users.update_user(conn, user.id, patch=UserPatch(status=Status.DISABLED))).after
