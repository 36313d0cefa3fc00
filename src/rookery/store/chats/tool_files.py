"""Files that tools attach to a chat: stored and linked in one transaction, once per call however often it is run.

The id of the row is derived from the call's replay token, so the second run of a call finds the file of the first.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from rookery.domain.chat.errors import ChatNotFound, FileCapExceeded
from rookery.domain.chat.messages import ChatId
from rookery.store.chats.files import COLUMNS, FileInfo, Origin
from rookery.store.db.nested_transaction import atomic
from rookery.store.db.pool import Connection
from rookery.store.machine.files import MAX_FILES_PER_CHAT

FIND = f"""
    SELECT {COLUMNS}
      FROM chat_files f
      JOIN chat_file_links l ON l.file_id = f.id
     WHERE f.id = $1
       AND l.chat_id = $2
"""
# The lock of the chat's row serializes transactions that count its files.
LOCK = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE"
COUNT = "SELECT count(*) FROM chat_file_links WHERE chat_id = $1"
INSERT = f"""
    INSERT INTO chat_files AS f (id, owner_id, name, mime_type, size_bytes, data, origin)
    VALUES ($1, $2, $3, $4, octet_length($5::bytea), $5, $6)
    RETURNING {COLUMNS}
"""
LINK = "INSERT INTO chat_file_links (chat_id, file_id) VALUES ($1, $2)"


async def find_stored(conn: Connection, chat_id: ChatId, *, token: UUID) -> FileInfo | None:
    """Return what this call has stored before."""
    record = await conn.fetchrow(FIND, file_id_of(token), chat_id)
    return None if record is None else FileInfo(*record)


async def store_once(
    conn: Connection, chat_id: ChatId, *, owner_id: UUID, token: UUID, name: str, mime_type: str, data: bytes
) -> FileInfo:
    """Store and link the file, or return the one that this call stored before. `FileCapExceeded` leaves no row."""
    async with atomic(conn):
        if await conn.fetchval(LOCK, chat_id) is None:
            raise ChatNotFound(chat_id)
        if (known := await find_stored(conn, chat_id, token=token)) is not None:
            return known
        if await conn.fetchval(COUNT, chat_id) >= MAX_FILES_PER_CHAT:
            raise FileCapExceeded(MAX_FILES_PER_CHAT)
        file_id = file_id_of(token)
        record = await conn.fetchrow(INSERT, file_id, owner_id, name, mime_type, data, Origin.TOOL)
        assert record is not None
        await conn.execute(LINK, chat_id, file_id)
        return FileInfo(*record)


def file_id_of(token: UUID) -> UUID:
    return uuid5(token, "file")
