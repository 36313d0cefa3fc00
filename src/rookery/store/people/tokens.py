"""API tokens: credentials for programs, limited by scopes and time. The secret is returned once and is not stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access.rights import Scope, UserActor
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import check_storable
from rookery.store.db.pool import Connection
from rookery.store.people import credentials, users
from rookery.store.people.credentials import Kind
from rookery.store.people.errors import AlreadyExists, QuotaExceeded, TokenExpired, TokenNotFound, Unauthenticated
from rookery.store.people.users import User

DEFAULT_DAYS, MAX_DAYS = 90, 365
MAX_TOKENS = 50
MAX_NAME_CHARS = 64
USED_EVERY = timedelta(minutes=10)
# An expired token stays in the list for this long, so that its owner can see why a program has stopped working.
DEAD_FOR = timedelta(days=7)

# The fields of `Token`, in their order.
COLUMNS = "t.id, t.user_id, t.name, t.scopes, t.created_at, t.expires_at, t.last_used_at"
_WIDTH = 7
COUNT = "SELECT count(*) FROM api_tokens WHERE user_id = $1"
INSERT = f"""
    INSERT INTO api_tokens AS t (id, user_id, name, scopes, secret_hash, created_at, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    RETURNING {COLUMNS}
"""
FIND = f"""
    SELECT {COLUMNS}, t.secret_hash, {users.COLUMNS}
      FROM api_tokens t
      JOIN users u ON u.id = t.user_id
     WHERE t.id = $1
"""
# The row of the user is locked first, as in `logins.end_credentials`. In the other order, the two could deadlock.
TOUCH = """
    WITH seen AS (UPDATE users SET last_seen_at = greatest(last_seen_at, $2) WHERE id = $3 RETURNING id)
    UPDATE api_tokens SET last_used_at = greatest(last_used_at, $2) WHERE id = $1 AND user_id = (SELECT id FROM seen)
"""
OWNER = "SELECT user_id FROM api_tokens WHERE id = $1"
LIST = f"SELECT {COLUMNS} FROM api_tokens t WHERE t.user_id = $1 ORDER BY t.created_at DESC, t.id"
DELETE = f"DELETE FROM api_tokens t WHERE t.id = $1 RETURNING {COLUMNS}"
END_ALL = "DELETE FROM api_tokens WHERE user_id = $1 AND id IS DISTINCT FROM $2 RETURNING id"
PURGE = "DELETE FROM api_tokens WHERE expires_at <= $1"


class Token(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: UUID
    user_id: UUID
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None


class NewToken(msgspec.Struct, frozen=True):
    """A new token. `secret` is its text, which is not stored."""

    token: Token
    secret: str


class AuthenticatedToken(msgspec.Struct, frozen=True):
    token: Token
    user: User

    @property
    def actor(self) -> UserActor:
        return UserActor(self.user.id, self.user.role, self.token.scopes)


async def create_token(
    conn: Connection,
    user_id: UUID,
    *,
    name: str,
    scopes: Collection[Scope],
    now: datetime,
    days: int = DEFAULT_DAYS,
    max_days: int = MAX_DAYS,
    max_tokens: int | None = MAX_TOKENS,
) -> NewToken:
    """Create a token. A user can have at most `max_tokens`; None means no limit."""
    _check(name, scopes, days=days, max_days=max_days)
    credential = credentials.new(Kind.TOKEN)
    async with conn.transaction():
        # The lock serializes concurrent creations, so that the limit is not exceeded.
        await users.lock_user(conn, user_id)
        if max_tokens is not None and await conn.fetchval(COUNT, user_id) >= max_tokens:
            raise QuotaExceeded(f"You have {max_tokens} API tokens, which is the limit. Delete one first.")
        try:
            record = await conn.fetchrow(
                INSERT,
                credential.id,
                user_id,
                name,
                sorted(scopes),
                credential.secret_hash,
                now,
                now + timedelta(days=days),
            )
        except asyncpg.UniqueViolationError:
            raise AlreadyExists("name", f"You already have an API token named {name}. Choose another name.") from None
    assert record is not None
    return NewToken(_token(record), credential.reveal())


async def authenticate(conn: Connection, text: str, *, now: datetime) -> AuthenticatedToken:
    """Return the token and its user. Raises `Unauthenticated` or `TokenExpired`."""
    credential = credentials.parse(Kind.TOKEN, text)
    if credential is None:
        raise Unauthenticated("This is not an API token of Rookery.")
    record = await conn.fetchrow(FIND, credential.id)
    if record is None or not credential.matches(record[_WIDTH]):
        raise Unauthenticated("This API token does not exist. It may have been deleted.")
    token, user = _token(record[:_WIDTH]), users.from_record(record[_WIDTH + 1 :])
    if token.expires_at <= now:
        raise TokenExpired
    if not user.is_active:
        raise Unauthenticated("The account of this API token is disabled.")
    if token.last_used_at is None or now - token.last_used_at >= USED_EVERY:
        await conn.execute(TOUCH, token.id, now, user.id)
    return AuthenticatedToken(token, user)


async def find_owner(conn: Connection, token_id: UUID) -> UUID | None:
    owner: UUID | None = await conn.fetchval(OWNER, token_id)
    return owner


async def list_tokens(conn: Connection, user_id: UUID) -> list[Token]:
    """List the tokens of a user, newest first, including those that expired in the last week."""
    return [_token(record) for record in await conn.fetch(LIST, user_id)]


async def delete_token(conn: Connection, token_id: UUID) -> Token:
    record = await conn.fetchrow(DELETE, token_id)
    if record is None:
        raise TokenNotFound
    return _token(record)


async def delete_tokens(conn: Connection, user_id: UUID, *, but: UUID | None = None) -> list[UUID]:
    """Delete all tokens of a user except `but`. Returns the ids of the deleted ones, for hints."""
    return [record["id"] for record in await conn.fetch(END_ALL, user_id, but)]


async def purge_tokens(conn: Connection, *, now: datetime) -> int:
    """Delete tokens that expired more than a week ago. Returns their number."""
    return int((await conn.execute(PURGE, now - DEAD_FOR)).split()[-1])


def _check(name: str, scopes: Collection[Scope], *, days: int, max_days: int) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS or name != name.strip():
        raise InvalidInput("name", f"A name must have 1 to {MAX_NAME_CHARS} characters, without outer white space.")
    check_storable("name", name)
    if not scopes:
        raise InvalidInput("scopes", "Choose at least one scope.")
    if not 1 <= days <= max_days:
        raise InvalidInput("expires_in_days", f"A token must expire after 1 to {max_days} days.")


def _token(record: Iterable[Any]) -> Token:
    token_id, user_id, name, scopes, created_at, expires_at, last_used_at = record
    return Token(token_id, user_id, name, frozenset(map(Scope, scopes)), created_at, expires_at, last_used_at)
