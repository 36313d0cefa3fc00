"""The first administrator: created once, by a user who has the setup token.

The token is in a file of the data directory that only its owner can read, and is printed when the server starts. Each
data directory has its own token. All tokens expire when the first administrator is created.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from datetime import datetime
from pathlib import Path

import asyncpg
import msgspec

from rookery.domain.access.rights import Role, SystemActor, SystemName
from rookery.runtime.clock import Clock
from rookery.store.db.pool import Connection
from rookery.store.people import audit, passwords, sessions, users
from rookery.store.people.audit import NO_REQUEST, Event, RequestInfo
from rookery.store.people.errors import AlreadySetUp, WrongSetupToken
from rookery.store.people.passwords import Passwords
from rookery.store.people.sessions import NewSession
from rookery.store.people.users import User, UserDraft

TOKEN_FILE = "setup-token"  # noqa: S105 -- a file name
LOCK_KEY = 0x726F6F6B_73657475  # "rooksetu"; the one-key space of advisory locks

LOCK = "SELECT pg_advisory_xact_lock($1)"
REMEMBER = "INSERT INTO setup_tokens (token_hash, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING"
# Tokens are found by their hash, so that the duration of the query reveals nothing about the token.
IS_KNOWN = "SELECT EXISTS (SELECT FROM setup_tokens WHERE token_hash = $1)"
FORGET_ALL = "DELETE FROM setup_tokens"


class SetUp(msgspec.Struct, frozen=True):
    user: User
    session: NewSession


async def is_setup_needed(conn: Connection) -> bool:
    return not await users.has_admin(conn)


async def ensure_token(conn: Connection, data_dir: Path, *, now: datetime, configured: str | None = None) -> str | None:
    """Return the token of this data directory, and create it if it is missing.

    If there is an administrator, delete the file and return None. Replicas that start together use the same token.
    `configured` is the token of the start settings, which takes precedence.
    """
    async with conn.transaction():
        await conn.execute(LOCK, LOCK_KEY)
        if await users.has_admin(conn):
            forget_file(data_dir)
            return None
        token = configured or _read_or_make(data_dir / TOKEN_FILE)
        await conn.execute(REMEMBER, _hash(token), now)
        return token


def forget_file(data_dir: Path) -> None:
    """Delete the file of the token, if it exists."""
    (data_dir / TOKEN_FILE).unlink(missing_ok=True)


async def is_token(conn: Connection, token: str) -> bool:
    known: bool = await conn.fetchval(IS_KNOWN, _hash(token))
    return known


async def complete(
    pool: asyncpg.Pool,
    checker: Passwords,
    *,
    token: str,
    draft: UserDraft,
    password: str,
    clock: Clock,
    request: RequestInfo = NO_REQUEST,
) -> SetUp:
    """Create the first administrator and a session. Raises `AlreadySetUp`, `WrongSetupToken` or `InvalidInput`.

    The token is checked before the password is hashed, so that clients without it cannot cause this work.
    """
    async with pool.acquire() as conn:
        await require(conn, token)
    passwords.check(password, names=[name for name in (draft.email, draft.username) if name])
    hashed = await checker.hash(password)
    admin = msgspec.structs.replace(draft, role=Role.ADMIN)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(LOCK, LOCK_KEY)
        await require(conn, token)
        user = await users.create_user(conn, admin, password_hash=hashed)
        await conn.execute(FORGET_ALL)
        now = clock.now()
        event = Event(
            action="user.create",
            resource_type="user",
            resource_id=str(user.id),
            diff=audit.diff("users", None, user),
            extra={"by": "setup"},
        )
        await audit.record(conn, event, actor=SystemActor(SystemName.SETUP), now=now, request=request)
        session = await sessions.create_session(conn, user.id, now=now, ip=request.ip, user_agent=request.user_agent)
    return SetUp(user, session)


async def require(conn: Connection, token: str | None) -> None:
    """Raise `AlreadySetUp` if there is an administrator, or `WrongSetupToken`. A token of None is not checked."""
    is_known = token is None or await is_token(conn, token)
    # Checked after the token: a setup that completes meanwhile deletes the tokens and creates an administrator.
    if await users.has_admin(conn):
        raise AlreadySetUp
    if not is_known:
        raise WrongSetupToken


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.strip().encode("utf-8", "surrogatepass")).digest()


def _read_or_make(path: Path) -> str:
    """Read or create the file. It is written under another name and then linked, so that it is always complete."""
    with contextlib.suppress(FileNotFoundError):
        if token := path.read_text("utf-8").strip():
            return token
        path.unlink()
    token = f"rk_setup_{secrets.token_hex(32)}"
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text("utf-8").strip()
