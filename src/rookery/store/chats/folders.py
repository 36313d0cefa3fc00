"""Folders of chats. A folder belongs to one user and holds only root chats of that user.

A subagent's chat has the folder of its root. A change of a folder changes no version of a chat.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import folders
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.folders import FolderColor
from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.people.errors import AlreadyExists, FolderNotFound

_COLUMNS = """
    f.id, f.name, f.color, f.created_at,
    (SELECT count(*)
       FROM chat_folder_items i
       JOIN chats c ON c.id = i.chat_id
      WHERE i.folder_id = f.id AND NOT c.archived) AS chats
"""
LIST = f"SELECT {_COLUMNS} FROM chat_folders f WHERE f.owner_id = $1 ORDER BY lower(f.name), f.id"
FIND = f"SELECT {_COLUMNS} FROM chat_folders f WHERE f.owner_id = $1 AND f.id = $2"
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('chat_folders:' || $1::text, 0))"
COUNT = "SELECT count(*) FROM chat_folders WHERE owner_id = $1"
CREATE = "INSERT INTO chat_folders (owner_id, name, color) VALUES ($1, $2, $3) RETURNING id"
UPDATE = """
    UPDATE chat_folders
       SET name = coalesce($3, name),
           color = coalesce($4, color)
     WHERE owner_id = $1 AND id = $2
    RETURNING id
"""
DELETE = "DELETE FROM chat_folders WHERE owner_id = $1 AND id = $2 RETURNING true"
# The lock keeps the folder until the commit. A folder that is being deleted is not found.
LOCK_FOLDER = "SELECT true FROM chat_folders WHERE owner_id = $1 AND id = $2 FOR KEY SHARE"
MOVE = """
    INSERT INTO chat_folder_items (chat_id, folder_id)
    VALUES ($1, $2)
        ON CONFLICT (chat_id) DO UPDATE
       SET folder_id = excluded.folder_id
     WHERE chat_folder_items.folder_id <> excluded.folder_id
"""
TAKE_OUT = "DELETE FROM chat_folder_items WHERE chat_id = $1"


class ChatFolder(msgspec.Struct, frozen=True):
    """A folder. `chats` is the number of its root chats that are not archived."""

    id: UUID
    name: str
    color: FolderColor
    created_at: datetime
    chats: int


def _folder(record: asyncpg.Record) -> ChatFolder:
    return ChatFolder(record["id"], record["name"], FolderColor(record["color"]), record["created_at"], record["chats"])


async def list_folders(conn: Connection, owner_id: UUID) -> list[ChatFolder]:
    """Return the folders by name."""
    return [_folder(record) for record in await conn.fetch(LIST, owner_id)]


async def get_folder(conn: Connection, owner_id: UUID, folder_id: UUID) -> ChatFolder:
    record = await conn.fetchrow(FIND, owner_id, folder_id)
    if record is None:
        raise FolderNotFound
    return _folder(record)


async def create_folder(conn: Connection, owner_id: UUID, *, name: str, color: FolderColor) -> ChatFolder:
    """Create a folder. Call it in a transaction, so that concurrent writers cannot exceed the limit together."""
    checked = folders.checked_name(name)
    await conn.execute(LOCK, str(owner_id))
    if await conn.fetchval(COUNT, owner_id) >= folders.MAX_FOLDERS:
        raise InvalidInput("name", f"You can have at most {folders.MAX_FOLDERS} folders. Delete one first.")
    try:
        folder_id = await conn.fetchval(CREATE, owner_id, checked, color)
    except asyncpg.UniqueViolationError:
        raise _taken(checked) from None
    return await get_folder(conn, owner_id, folder_id)


async def update_folder(
    conn: Connection, owner_id: UUID, folder_id: UUID, *, name: str | None = None, color: FolderColor | None = None
) -> ChatFolder:
    """Change the given values. None keeps a value."""
    checked = None if name is None else folders.checked_name(name)
    try:
        updated = await conn.fetchval(UPDATE, owner_id, folder_id, checked, color)
    except asyncpg.UniqueViolationError:
        raise _taken(checked or "") from None
    if updated is None:
        raise FolderNotFound
    return await get_folder(conn, owner_id, folder_id)


async def delete_folder(conn: Connection, owner_id: UUID, folder_id: UUID) -> None:
    """Delete a folder. Its chats are kept, without a folder."""
    if not await conn.fetchval(DELETE, owner_id, folder_id):
        raise FolderNotFound


async def move_chat(conn: Connection, chat_id: ChatId, folder_id: UUID | None, *, owner_id: UUID) -> None:
    """Put a root chat of the user into a folder of the same user; None takes it out."""
    if folder_id is None:
        await conn.execute(TAKE_OUT, chat_id)
        return
    if not await conn.fetchval(LOCK_FOLDER, owner_id, folder_id):
        raise InvalidInput("folder_id", "You have no such folder. It may have been deleted.")
    await conn.execute(MOVE, chat_id, folder_id)


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists("name", f"You already have a folder named “{name}”. Choose another name.")
