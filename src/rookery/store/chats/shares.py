"""Shares: the readers of a chat besides its owner, single users or everyone. A share of a root applies to its family.

If sharing is disabled (group `sharing` of the runtime settings), entries stay and have no effect. All SQL predicates
about readers are in this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat.errors import ChatNotFound, ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.people.users import PublicUser

SETTING = "sharing"
MAX_ENTRIES = 100
READ_ROLE = "read"
BAD_ROLE = 'The role is "read", or null to remove the entry.'

ENABLED = f"""
    coalesce((SELECT g.value ->> 'enabled' FROM settings g WHERE g.key = '{SETTING}'), 'true') = 'true'
"""
# True if the chat `c` is shared with `{user}`, directly or with everyone.
SHARED_WITH = f"""
    ({ENABLED} AND EXISTS (
       SELECT FROM chat_shares share
        WHERE share.chat_id = coalesce(c.root_chat_id, c.id)
          AND (share.user_id = {{user}} OR share.user_id IS NULL)))
"""
# True if it is shared with `{user}` directly. Chats that are shared with everyone are not in other users' lists.
SHARED_DIRECTLY = f"""
    ({ENABLED} AND EXISTS (
       SELECT FROM chat_shares share WHERE share.chat_id = coalesce(c.root_chat_id, c.id) AND share.user_id = {{user}}))
"""

LOCK_CHAT = "SELECT owner_id, parent_chat_id IS NULL AS is_root FROM chats WHERE id = $1 FOR NO KEY UPDATE"
LIST = """
    SELECT s.user_id, u.username, u.name, s.role, s.granted_by, s.created_at
      FROM chat_shares s
      LEFT JOIN users u ON u.id = s.user_id
     WHERE s.chat_id = $1
     ORDER BY s.user_id IS NOT NULL, lower(u.username)
"""
READERS = "SELECT user_id FROM chat_shares WHERE chat_id = $1 AND user_id IS NOT NULL"
READERS_OF = f"""
    SELECT chat_id, user_id
      FROM chat_shares
     WHERE chat_id = ANY ($1::uuid[])
       AND user_id IS NOT NULL
       AND {ENABLED}
"""
IS_SHARED = f"SELECT {ENABLED} AND EXISTS (SELECT FROM chat_shares WHERE chat_id = $1)"
ACTIVE = "SELECT id FROM users WHERE id = ANY ($1::uuid[]) AND status = 'active'"
GRANT = """
    INSERT INTO chat_shares (chat_id, user_id, granted_by, created_at)
    SELECT $1, g.user_id, $3, $4
      FROM unnest($2::uuid[]) AS g (user_id)
        ON CONFLICT (chat_id, user_id) DO NOTHING
    RETURNING user_id
"""
REVOKE = """
    DELETE FROM chat_shares
     WHERE chat_id = $1
       AND (user_id = ANY ($2::uuid[]) OR ($3 AND user_id IS NULL))
    RETURNING user_id
"""
COUNT = "SELECT count(*) FROM chat_shares WHERE chat_id = $1"


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True


class Share(msgspec.Struct, frozen=True):
    """A share. A `user` of None means everyone."""

    user: PublicUser | None
    role: str
    granted_by: UUID | None
    created_at: datetime


class SharePatch(msgspec.Struct, frozen=True, kw_only=True):
    """The users who get (`read`) or lose (None) the right to read. Other users are not changed."""

    users: Mapping[UUID, str | None] = {}
    everyone: str | UnsetType | None = UNSET


class BadEntries(InvalidInput):
    """Raised for invalid entries. `faults` maps fields to messages; the error's message is the first of them."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        field, message = next(iter(faults.items()))
        super().__init__(field, message)


class ShareChange(msgspec.Struct, frozen=True):
    """The users that were actually added and removed. `everyone` is None if it did not change."""

    added: frozenset[UUID] = frozenset()
    removed: frozenset[UUID] = frozenset()
    everyone: bool | None = None

    @property
    def is_empty(self) -> bool:
        return not self.added and not self.removed and self.everyone is None

    @property
    def takes_access(self) -> bool:
        return bool(self.removed) or self.everyone is False


async def is_sharing_enabled(conn: Connection) -> bool:
    enabled: bool = await conn.fetchval(f"SELECT {ENABLED}")
    return enabled


async def list_shares(conn: Connection, chat_id: ChatId) -> list[Share]:
    """List the entries: everyone first, then users by name."""
    return [
        Share(None if user_id is None else PublicUser(user_id, username, name), role, granted_by, created_at)
        for user_id, username, name, role, granted_by, created_at in await conn.fetch(LIST, chat_id)
    ]


async def list_readers(conn: Connection, chat_id: ChatId) -> list[UUID]:
    """List the users with whom a root is shared directly. Only they are notified of changes."""
    return [record["user_id"] for record in await conn.fetch(READERS, chat_id)]


async def list_readers_of(conn: Connection, root_ids: Sequence[UUID]) -> dict[UUID, set[UUID]]:
    """Return the direct readers of these roots. There are none while sharing is disabled."""
    found: dict[UUID, set[UUID]] = {}
    for chat_id, user_id in await conn.fetch(READERS_OF, list(root_ids)):
        found.setdefault(chat_id, set()).add(user_id)
    return found


async def is_shared(conn: Connection, chat_id: ChatId) -> bool:
    """Return whether the root has readers besides its owner. False while sharing is disabled."""
    shared: bool = await conn.fetchval(IS_SHARED, chat_id)
    return shared


async def patch_shares(conn: Connection, chat_id: ChatId, *, patch: SharePatch, by: UUID, now: datetime) -> ShareChange:
    """Add and remove readers in one transaction. The lock of the chat's row serializes concurrent patches."""
    async with conn.transaction():
        chat = await conn.fetchrow(LOCK_CHAT, chat_id)
        if chat is None:
            raise ChatNotFound(chat_id)
        if not chat["is_root"]:
            raise ChatNotRoot(chat_id)
        granted, revoked = await _checked(conn, patch, owner_id=chat["owner_id"])
        wanted: list[UUID | None] = list(granted)
        if patch.everyone is not UNSET and patch.everyone is not None:
            wanted.append(None)
        added = [row[0] for row in await conn.fetch(GRANT, chat_id, wanted, by, now)] if wanted else []
        removed = [row[0] for row in await conn.fetch(REVOKE, chat_id, revoked, patch.everyone is None)]
        if added and await conn.fetchval(COUNT, chat_id) > MAX_ENTRIES:
            raise InvalidInput("users", f"A chat can be shared with at most {MAX_ENTRIES} users. Remove some first.")
        return _change(added, removed)


async def leave(conn: Connection, chat_id: ChatId, *, user_id: UUID) -> bool:
    """Remove the user's own entry. Returns False if there was none. A chat shared with everyone stays readable."""
    return bool(await conn.fetch(REVOKE, chat_id, [user_id], False))


async def _checked(conn: Connection, patch: SharePatch, *, owner_id: UUID) -> tuple[list[UUID], list[UUID]]:
    granted = [user_id for user_id, role in patch.users.items() if role is not None]
    active = {record["id"] for record in await conn.fetch(ACTIVE, granted)}
    faults: dict[str, str] = {}
    for user_id, role in patch.users.items():
        if role not in (READ_ROLE, None):
            faults[f"users.{user_id}"] = BAD_ROLE
        elif user_id == owner_id:
            faults[f"users.{user_id}"] = "The owner can read the chat anyway. Leave this entry out."
        elif role is not None and user_id not in active:
            faults[f"users.{user_id}"] = "There is no active user with this id."
    if patch.everyone not in (UNSET, READ_ROLE, None):
        faults["everyone"] = BAD_ROLE
    if faults:
        raise BadEntries(faults)
    return granted, [user_id for user_id, role in patch.users.items() if role is None]


def _change(added: Sequence[UUID | None], removed: Sequence[UUID | None]) -> ShareChange:
    everyone = True if None in added else False if None in removed else None
    return ShareChange(
        frozenset(user for user in added if user is not None),
        frozenset(user for user in removed if user is not None),
        everyone,
    )
