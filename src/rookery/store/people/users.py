"""User accounts: create, find, change and delete. Passwords are stored as hashes only.

One advisory lock serializes changes of role and status. It protects the last active administrator, even if two
administrators demote each other concurrently.

`operator` is the user who owns the chats of `rookery admin run`. It is an ordinary row, so limits, costs and lists
apply to it. It has no password, so it cannot log in.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.access.account_names import normal_name
from rookery.domain.access.rights import Role, UserActor
from rookery.domain.chat.errors import InvalidInput
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection, atomic
from rookery.store.people.errors import AlreadyExists, InUse, LastAdmin, UserNotFound

LOCK_KEY = 0x726F6F6B_75736572  # "rookuser"; the one-key space of advisory locks
USERNAME = re.compile(r"[a-z0-9](-?[a-z0-9]){0,31}")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
MAX_NAME_CHARS, MAX_EMAIL_CHARS, MAX_USERNAME_CHARS = 200, 254, 32
MAX_LIMIT = 200
DIRECTORY_LIMIT = 20
MIN_DIRECTORY_CHARS = 2

_CONTROLS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

# The fields of `User`, in their order.
COLUMNS = "u.id, u.username, u.name, u.email, u.role, u.status, u.spend_limit_micros, u.created_at, u.last_seen_at"
LOCK = "SELECT pg_advisory_xact_lock($1)"
FIND = f"SELECT {COLUMNS} FROM users u WHERE u.id = $1"
# Returns candidates by the index; `lower()` may treat different names as equal. $1 is the login as typed, for addresses
# of older versions that are not in normal form, and $2 is its normal form.
FIND_BY_EMAIL, FIND_BY_USERNAME = (
    f"""
    SELECT {COLUMNS}, u.password_hash, u.{column}
      FROM users u
     WHERE lower(u.{column}) IN (lower($1), lower($2))
     ORDER BY lower(u.{column}) = lower($1) DESC
    """
    for column in ("email", "username")
)
FIND_HASH = "SELECT password_hash FROM users WHERE id = $1"
LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
# Only administrators count, because commands on the machine create the operator, who cannot log in.
HAS_ADMIN = "SELECT EXISTS (SELECT FROM users WHERE role = 'admin')"
INSERT = f"""
    INSERT INTO users AS u (username, name, email, role, password_hash)
    VALUES ($1, $2, $3, $4, $5)
    RETURNING {COLUMNS}
"""
UPDATE = f"""
    UPDATE users u
       SET username = $2, name = $3, email = $4, role = $5, status = $6, spend_limit_micros = $7,
           disabled_at = CASE WHEN $6 = 'disabled' THEN coalesce(disabled_at, clock_timestamp()) END
     WHERE u.id = $1
    RETURNING {COLUMNS}
"""
SET_PASSWORD = "UPDATE users SET password_hash = $2 WHERE id = $1 RETURNING true"  # noqa: S105 -- SQL
OTHER_ADMINS = "SELECT EXISTS (SELECT FROM users WHERE role = 'admin' AND status = 'active' AND id <> $1)"
LIST = f"""
    SELECT {COLUMNS}
      FROM users u
     WHERE (lower(u.username), u.id) > ($1, $2)
       AND ($3::text IS NULL
            OR position(lower($3) IN lower(u.username || ' ' || u.name || ' ' || coalesce(u.email, ''))) > 0)
       AND ($4::text IS NULL OR u.role = $4)
       AND ($5::text IS NULL OR u.status = $5)
     ORDER BY lower(u.username), u.id
     LIMIT $6
"""
DIRECTORY = """
    SELECT id, username, name
      FROM users
     WHERE status = 'active'
       AND (position(lower($1) IN lower(username || ' ' || name)) > 0 OR email = $2)
     ORDER BY lower(username), id
     LIMIT $3
"""
NAMES = "SELECT id, username, name FROM users WHERE id = ANY ($1::uuid[])"
HAS_WORKSPACES = "SELECT EXISTS (SELECT FROM workspaces WHERE owner_id = $1 AND deleted_at IS NULL)"
DELETE = "DELETE FROM users WHERE id = $1"
# Ordered by age. If the addresses of two accounts have the same normal form, the older account gets it.
ADDRESSES = "SELECT id, email FROM users WHERE email IS NOT NULL ORDER BY created_at, id"
# Compares the old address, because a replica of an older version may have changed it meanwhile.
REWRITE = "UPDATE users SET email = $2 WHERE id = $1 AND email = $3 RETURNING true"
OPERATOR = "operator"
FIND_OPERATOR = "SELECT id FROM users WHERE lower(username) = lower($1)"
# In a new database, two commands may insert the row concurrently.
INSERT_OPERATOR = """
    INSERT INTO users (username)
    VALUES ($1)
        ON CONFLICT ((lower(username))) DO NOTHING
"""


class Status(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"


class User(msgspec.Struct, frozen=True):
    id: UUID
    username: str
    name: str
    email: str | None
    role: Role
    status: Status
    spend_limit_micros: int | None
    created_at: datetime
    last_seen_at: datetime | None

    @property
    def is_active(self) -> bool:
        return self.status is Status.ACTIVE

    @property
    def is_active_admin(self) -> bool:
        return self.is_active and self.role is Role.ADMIN

    @property
    def actor(self) -> UserActor:
        """Return the user as an actor with all scopes, as for a session."""
        return UserActor(self.id, self.role)


class PublicUser(msgspec.Struct, frozen=True):
    """The fields of a user that all users may see."""

    id: UUID
    username: str
    name: str


class UserDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An account to create. Without a username, one is derived from the email address."""

    email: str
    username: str | None = None
    name: str = ""
    role: Role = Role.MEMBER


class UserPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of an account. UNSET means no change."""

    name: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    username: str | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    spend_limit_micros: int | UnsetType | None = UNSET

    @property
    def is_administrative(self) -> bool:
        """Return whether the patch changes fields that only administrators may change."""
        return any(value is not UNSET for value in (self.role, self.status, self.spend_limit_micros))


class UserChange(msgspec.Struct, frozen=True):
    before: User
    after: User

    @property
    def changes_access(self) -> bool:
        """Return whether the role or the status has changed. Then the sessions of the user must end."""
        return (self.before.role, self.before.status) != (self.after.role, self.after.status)


class UserPage(msgspec.Struct, frozen=True):
    users: tuple[User, ...]
    next_cursor: str | None


async def create_user(conn: Connection, draft: UserDraft, *, password_hash: str | None = None) -> User:
    check_email(draft.email)
    check_name(draft.name)
    if draft.username is not None:
        check_username(draft.username)
        return await _insert(conn, draft, draft.username, password_hash=password_hash)
    for username in _username_candidates(draft.email):
        try:
            return await _insert(conn, draft, username, password_hash=password_hash)
        except AlreadyExists as error:
            if error.field != "username":
                raise
    raise AlreadyExists("username", "No free username could be derived from the email address. Choose one.")


async def find_user(conn: Connection, user_id: UUID) -> User | None:
    record = await conn.fetchrow(FIND, user_id)
    return None if record is None else from_record(record)


async def get_user(conn: Connection, user_id: UUID) -> User:
    user = await find_user(conn, user_id)
    if user is None:
        raise UserNotFound(user_id)
    return user


async def find_by_login(conn: Connection, login: str) -> tuple[User, str | None] | None:
    """Return the account with this email address or username, and its password hash."""
    if _CONTROLS.search(login):
        return None
    wanted = normal_name(login)
    # A username has no @, so a login names at most one account.
    statement = FIND_BY_EMAIL if "@" in wanted else FIND_BY_USERNAME
    for *record, password_hash, stored in await conn.fetch(statement, login.strip(), wanted):
        if normal_name(stored) == wanted:
            return from_record(record), password_hash
    return None


async def find_password_hash(conn: Connection, user_id: UUID) -> str | None:
    stored: str | None = await conn.fetchval(FIND_HASH, user_id)
    return stored


async def lock_user(conn: Connection, user_id: UUID) -> None:
    """Lock the row of the user until the transaction ends, to serialize the creation and end of credentials."""
    await conn.execute(LOCK_USER, user_id)


async def has_admin(conn: Connection) -> bool:
    found: bool = await conn.fetchval(HAS_ADMIN)
    return found


async def set_password_hash(conn: Connection, user_id: UUID, *, password_hash: str) -> None:
    if await conn.fetchval(SET_PASSWORD, user_id, password_hash) is None:
        raise UserNotFound(user_id)


async def update_user(conn: Connection, user_id: UUID, *, patch: UserPatch) -> UserChange:
    """Change an account. The caller ends sessions and publishes hints."""
    async with atomic(conn):
        await conn.execute(LOCK, LOCK_KEY)
        before = await get_user(conn, user_id)
        given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
        if "email" in given and given["email"] != before.email:
            check_email(given["email"])
            given["email"] = normal_name(given["email"])
        wanted = msgspec.structs.replace(before, **given)
        _check(before, wanted)
        if before.is_active_admin and not wanted.is_active_admin:
            await _require_other_admin(conn, user_id)
        return UserChange(before, before if wanted == before else await _update(conn, wanted))


async def delete_user(conn: Connection, user_id: UUID) -> User:
    """Delete a disabled account. The caller has deleted its chats before."""
    async with atomic(conn):
        await conn.execute(LOCK, LOCK_KEY)
        user = await get_user(conn, user_id)
        if user.is_active:
            raise InUse("Only a disabled user can be deleted. Disable the account first.")
        if await conn.fetchval(HAS_WORKSPACES, user_id):
            raise InUse("This user still has workspaces. Delete them first.")
        await conn.execute(DELETE, user_id)
        return user


async def list_users(
    conn: Connection,
    *,
    q: str | None = None,
    role: Role | None = None,
    status: Status | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> UserPage:
    """List accounts by username. `q` is a part of the username, name or email address, regardless of case."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    after, after_id = page_cursors.decode(cursor, tuple[str, UUID]) if cursor is not None else ("", UUID(int=0))
    records = await conn.fetch(LIST, after, after_id, _searchable(q), role, status, limit + 1)
    found = tuple(map(from_record, records[:limit]))
    last = found[-1] if len(records) > limit else None
    return UserPage(found, None if last is None else page_cursors.encode((last.username.lower(), last.id)))


async def search_directory(conn: Connection, q: str) -> list[PublicUser]:
    """Return active users whose name or username contains this text, and the one with exactly this email address.

    A part of an address finds no user, so that addresses cannot be guessed step by step.
    """
    if len(q.strip()) < MIN_DIRECTORY_CHARS:
        raise InvalidInput("q", f"Type at least {MIN_DIRECTORY_CHARS} characters of a name.")
    text = _searchable(q.strip())
    # The normal form of a long text takes long, and no address is that long.
    is_address = len(q) <= MAX_EMAIL_CHARS and not _CONTROLS.search(q)
    address = normal_name(q.strip()) if is_address else None
    records = await conn.fetch(DIRECTORY, text, address, DIRECTORY_LIMIT)
    return [PublicUser(*record) for record in records]


async def find_names(conn: Connection, user_ids: list[UUID]) -> dict[UUID, PublicUser]:
    """Return the names of the users that exist."""
    return {record["id"]: PublicUser(*record) for record in await conn.fetch(NAMES, user_ids)}


def from_record(record: Iterable[Any]) -> User:
    """Return the user of a record of `COLUMNS`. An unknown role or status of a newer version gets the fewest rights."""
    user_id, username, name, email, role, status, limit, created_at, last_seen_at = record
    known_role = Role(role) if role in set(Role) else Role.MEMBER
    known_status = Status.ACTIVE if status == Status.ACTIVE else Status.DISABLED
    return User(user_id, username, name, email, known_role, known_status, limit, created_at, last_seen_at)


async def _require_other_admin(conn: Connection, user_id: UUID) -> None:
    if not await conn.fetchval(OTHER_ADMINS, user_id):
        raise LastAdmin


async def _insert(conn: Connection, draft: UserDraft, username: str, *, password_hash: str | None) -> User:
    return await _write(conn, INSERT, username, draft.name, normal_name(draft.email), draft.role, password_hash)


async def _update(conn: Connection, user: User) -> User:
    return await _write(
        conn, UPDATE, user.id, user.username, user.name, user.email, user.role, user.status, user.spend_limit_micros
    )


async def _write(conn: Connection, statement: str, *values: object) -> User:
    try:
        # In a savepoint, so that the caller's transaction can continue if a name is taken.
        async with atomic(conn):
            record = await conn.fetchrow(statement, *values)
    except asyncpg.UniqueViolationError as error:
        taken = {
            "users_username": ("username", "This username is taken. Choose another."),
            "users_email": ("email", "Another account has this email address."),
        }
        if error.constraint_name not in taken:
            raise
        raise AlreadyExists(*taken[error.constraint_name]) from None
    assert record is not None
    return from_record(record)


def _check(before: User, wanted: User) -> None:
    """Check only changed fields, because an account of an older version may have values that are no longer allowed."""
    if wanted.username != before.username:
        check_username(wanted.username)
    if wanted.name != before.name:
        check_name(wanted.name)
    limit = wanted.spend_limit_micros
    if limit is not None and not 0 < limit < 2**53:
        raise InvalidInput(
            "spend_limit_micros", "A spend limit must be a number of micro-dollars above 0, or null for no limit."
        )


def check_email(email: str) -> None:
    """Raise `InvalidInput` if the normal form, which is stored, is not an email address or is too long."""
    is_address = len(email) <= MAX_EMAIL_CHARS and not _CONTROLS.search(email)
    normal = normal_name(email) if is_address else ""
    if len(normal) > MAX_EMAIL_CHARS or not EMAIL.fullmatch(normal):
        raise InvalidInput("email", "This is not an email address. Write it as name@example.org.")


def check_username(username: str) -> None:
    if not USERNAME.fullmatch(username) or len(username) > MAX_USERNAME_CHARS:
        raise InvalidInput(
            "username", f"A username has at most {MAX_USERNAME_CHARS} characters: a-z, 0-9 and single inner hyphens."
        )


def check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARS or _CONTROLS.search(name):
        raise InvalidInput("name", f"A name can have at most {MAX_NAME_CHARS} characters, and no control characters.")


def _username_candidates(email: str) -> list[str]:
    """Return usernames derived from the local part of the address: as it is, with numbers, with a random suffix."""
    local = re.sub(r"[^a-z0-9]+", "-", normal_name(email).partition("@")[0]).strip("-") or "user"
    local = local[: MAX_USERNAME_CHARS - 9].strip("-")
    return [local, *(f"{local}-{number}" for number in range(2, 10)), f"{local}-{secrets.token_hex(4)}"]


def _searchable(q: str | None) -> str | None:
    return None if q is None else _CONTROLS.sub(" ", q)


class EmailRepair(msgspec.Struct, frozen=True):
    """The result of `repair_emails`: the ids of rewritten accounts, and of accounts that could not be rewritten."""

    rewritten: tuple[UUID, ...]
    unchanged: tuple[UUID, ...]


async def repair_emails(conn: Connection) -> EmailRepair:
    """Rewrite email addresses in normal form, at each start. Older versions stored them as typed.

    An address stays as it is if another account has the normal form, or if that form is not an address. Its owner logs
    in with the stored address.
    """
    rewritten: list[UUID] = []
    unchanged: list[UUID] = []
    async with conn.transaction():
        await conn.execute(LOCK, LOCK_KEY)
        for user_id, email in await conn.fetch(ADDRESSES):
            if (normal := normal_name(email)) == email:
                continue
            try:
                check_email(normal)
                async with conn.transaction():
                    if await conn.fetchval(REWRITE, user_id, normal, email):
                        rewritten.append(user_id)
            except (InvalidInput, asyncpg.UniqueViolationError):
                unchanged.append(user_id)
    return EmailRepair(tuple(rewritten), tuple(unchanged))


async def ensure_operator(conn: Connection) -> UUID:
    """Return the id of the operator. The first call creates the user."""
    found: UUID | None = await conn.fetchval(FIND_OPERATOR, OPERATOR)
    if found is None:
        await conn.execute(INSERT_OPERATOR, OPERATOR)
        found = await conn.fetchval(FIND_OPERATOR, OPERATOR)
        assert found is not None
    return found
