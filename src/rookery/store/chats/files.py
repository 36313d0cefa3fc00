"""Files of chats: storage, metadata, quotas, and the bytes for a prompt.

A file never changes, and is kept as long as a chat links it. Its bytes may therefore be cached. The link gives a chat
the right to a file of any user. A user owns uploads, copies of files of shared chats, files that tools attach, and
files that models generate; all of them count for the user's quota.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID, uuid5

import msgspec

from rookery.domain.chat.errors import ChatNotFound, FileCapExceeded
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.submitted_content import FileFacts
from rookery.domain.content.attachments import StoredFile
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.store.db.pool import Connection, atomic
from rookery.store.machine.message_rows import MAX_FILES_PER_CHAT
from rookery.store.people.errors import QuotaExceeded
from rookery.store.settings.limit_settings import read_chat_settings

MAX_FILE_BYTES = 10 * 1024 * 1024
# Chosen: the limit of file bytes in one prompt. Providers have lower limits.
MAX_PROMPT_BYTES = 64 * 1024 * 1024
MAX_CACHE_BYTES = 128 * 1024 * 1024

# The fields of `FileInfo`, in their order.
COLUMNS = "f.id, f.owner_id, f.name, f.mime_type, f.size_bytes, f.origin, f.sha256, f.created_at"
INSERT = f"""
    INSERT INTO chat_files AS f (owner_id, name, mime_type, size_bytes, data, origin)
    VALUES ($1, $2, $3, octet_length($4::bytea), $4, $5)
    RETURNING {COLUMNS}
"""
# Copies the bytes inside the database.
COPY = """
    INSERT INTO chat_files (owner_id, name, mime_type, size_bytes, data, origin)
    SELECT $2, name, mime_type, size_bytes, data, origin FROM chat_files WHERE id = $1
    RETURNING id
"""
SIZES = "SELECT size_bytes FROM chat_files WHERE id = ANY ($1::uuid[])"
DELETE_ALL = "DELETE FROM chat_files WHERE id = ANY ($1::uuid[])"
FIND = f"SELECT {COLUMNS} FROM chat_files f WHERE f.id = ANY ($1::uuid[])"

# Returns the bytes of the newest files that fit into the limit together, and NULL for the others.
LOAD = """
    SELECT f.id, f.mime_type, f.name, f.origin, CASE WHEN fits.bytes <= $3 THEN f.data END AS data
      FROM (SELECT c.id, sum(octet_length(c.data)) OVER (ORDER BY c.created_at DESC, c.id) AS bytes
              FROM chat_files c
              JOIN chat_file_links l ON l.file_id = c.id
             WHERE l.chat_id = $1
               AND l.file_id = ANY ($2::uuid[])) fits
      JOIN chat_files f ON f.id = fits.id
"""
MAX_UNLINKED_FILES = 200
MAX_UNLINKED_BYTES = 500 * 1024 * 1024
MIB = 1024 * 1024
# The creations of files by one user are serialized, so that they cannot exceed the limits together.
LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
TOTAL = "SELECT coalesce(sum(size_bytes), 0)::bigint FROM chat_files WHERE owner_id = $1"
UNLINKED = """
    SELECT count(*), coalesce(sum(f.size_bytes), 0)::bigint
      FROM chat_files f
     WHERE f.owner_id = $1
       AND NOT EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id)
"""
FIND_LINKED = f"""
    SELECT {COLUMNS}
      FROM chat_files f
      JOIN chat_file_links l ON l.file_id = f.id
     WHERE f.id = $1
       AND l.chat_id = $2
"""
# The lock on the chat's row serializes transactions that count its files.
LOCK_CHAT = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE"
COUNT_LINKED = "SELECT count(*) FROM chat_file_links WHERE chat_id = $1"
INSERT_WITH_ID = f"""
    INSERT INTO chat_files AS f (id, owner_id, name, mime_type, size_bytes, data, origin)
    VALUES ($1, $2, $3, $4, octet_length($5::bytea), $5, $6)
    RETURNING {COLUMNS}
"""
LINK = "INSERT INTO chat_file_links (chat_id, file_id) VALUES ($1, $2)"


class Origin(StrEnum):
    """The origin of a file. `pasted`: the interface created it from a long text that the user pasted."""

    UPLOAD = "upload"
    PASTED = "pasted"
    TOOL = "tool"


class FileInfo(msgspec.Struct, frozen=True):
    """The metadata of a file."""

    id: UUID
    owner_id: UUID
    name: str
    mime_type: str
    size_bytes: int
    origin: str
    sha256: bytes
    created_at: datetime

    @property
    def facts(self) -> FileFacts:
        """Return the facts for `submitted_content.with_facts`."""
        return FileFacts(media_type=self.mime_type, name=self.name)


async def create_file(
    conn: Connection, owner_id: UUID, *, name: str, mime_type: str, data: bytes, origin: Origin = Origin.UPLOAD
) -> FileInfo:
    """Store a file that was checked. It is deleted after a while if no chat links it."""
    record = await conn.fetchrow(INSERT, owner_id, name, mime_type, data, origin)
    assert record is not None
    return FileInfo(*record)


async def copy_file(conn: Connection, file_id: UUID, owner_id: UUID) -> UUID | None:
    """Store the same bytes as a file of this owner. Returns None if the original no longer exists."""
    copy: UUID | None = await conn.fetchval(COPY, file_id, owner_id)
    return copy


async def find_sizes(conn: Connection, file_ids: Sequence[UUID]) -> list[int]:
    return [record["size_bytes"] for record in await conn.fetch(SIZES, list(file_ids))]


async def delete_files(conn: Connection, file_ids: Sequence[UUID]) -> None:
    """Delete files that no chat links."""
    if file_ids:
        await conn.execute(DELETE_ALL, list(file_ids))


async def find_files(conn: Connection, file_ids: Collection[UUID]) -> dict[UUID, FileInfo]:
    """Return the metadata of these files. Missing files are left out. The caller checks the access rights."""
    if not file_ids:
        return {}
    return {record["id"]: FileInfo(*record) for record in await conn.fetch(FIND, list(file_ids))}


async def load_files(
    conn: Connection, chat_id: ChatId, *, file_ids: Collection[UUID], max_bytes: int = MAX_PROMPT_BYTES
) -> dict[UUID, StoredFile]:
    """Return the files that the chat links, with their bytes. Files that the chat does not link are left out.

    The newest files with at most `max_bytes` together have their bytes. The others are marked as left out.
    """
    if not file_ids:
        return {}
    found = {}
    for record in await conn.fetch(LOAD, chat_id, list(file_ids), max_bytes):
        found[record["id"]] = StoredFile(
            media_type=record["mime_type"],
            data=record["data"] or b"",
            name=record["name"],
            is_pasted=record["origin"] == Origin.PASTED,
            is_left_out=record["data"] is None,
        )
    return found


class FileCache:
    """A cache of file bytes between the steps of chats.

    The key is chat and file, because the right depends on the chat's link.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[tuple[UUID, UUID], StoredFile] = Cache(
            "files", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    @property
    def size_bytes(self) -> int:
        return self.entries.size_bytes

    def find(self, chat_id: ChatId, file_ids: Collection[UUID]) -> dict[UUID, StoredFile]:
        """Return the cached files."""
        found = ((file_id, self.entries.find((chat_id, file_id))) for file_id in file_ids)
        return {file_id: file for file_id, file in found if file is not None}

    def keep(self, chat_id: ChatId, files: Mapping[UUID, StoredFile]) -> None:
        """Cache the files that have their bytes. Files that were left out are not cached."""
        for file_id, file in files.items():
            key = (chat_id, file_id)
            if not file.is_left_out and key not in self.entries:
                self.entries.keep(key, file, size_bytes=len(file.data))


async def load_cached(
    conn: Connection,
    chat_id: ChatId,
    *,
    file_ids: Collection[UUID],
    cache: FileCache,
    max_bytes: int = MAX_PROMPT_BYTES,
) -> dict[UUID, StoredFile]:
    """Return the same as `load_files`, but read only files that are not cached.

    Cached files count for the limit first. A prompt therefore keeps the files that it had, and its prefix.
    """
    found = cache.find(chat_id, file_ids)
    missing = [file_id for file_id in file_ids if file_id not in found]
    if not missing:
        return found
    room = max(max_bytes - sum(len(file.data) for file in found.values()), 0)
    loaded = await load_files(conn, chat_id, file_ids=missing, max_bytes=room)
    cache.keep(chat_id, loaded)
    return found | loaded


async def require_room(conn: Connection, user_id: UUID, *, sizes: Sequence[int]) -> None:
    """Raise `QuotaExceeded` if new unlinked files of these sizes would exceed a limit."""
    await require_total(conn, user_id, size=sum(sizes))
    record = await conn.fetchrow(UNLINKED, user_id)
    assert record is not None
    if record[0] + len(sizes) > MAX_UNLINKED_FILES or record[1] + sum(sizes) > MAX_UNLINKED_BYTES:
        raise QuotaExceeded("You have uploaded too many files that no chat uses. Send or delete some first.")


async def require_total(conn: Connection, user_id: UUID, *, size: int) -> None:
    """Raise `QuotaExceeded` if the user's files would have more than `chats.max_file_mib_per_user` together.

    Locks the row of the user until the transaction ends. Call it before a chat is locked: all callers take the locks in
    this order.
    """
    await conn.execute(LOCK_USER, user_id)
    max_mib = (await read_chat_settings(conn)).max_file_mib_per_user
    if max_mib and await conn.fetchval(TOTAL, user_id) + size > max_mib * MIB:
        raise QuotaExceeded(
            f"Your files would have more than {max_mib:,} MiB together, which is the limit. Delete chats whose files "
            "you no longer need, or ask an administrator for a higher limit."
        )


async def find_stored(conn: Connection, chat_id: ChatId, *, token: UUID) -> FileInfo | None:
    """Return the file that an earlier run of this tool call stored."""
    record = await conn.fetchrow(FIND_LINKED, file_id_of(token), chat_id)
    return None if record is None else FileInfo(*record)


async def store_once(
    conn: Connection, chat_id: ChatId, *, owner_id: UUID, token: UUID, name: str, mime_type: str, data: bytes
) -> FileInfo:
    """Store a tool's file and link it to the chat, once for each tool call.

    The file's id is derived from the call's replay token, so a repeated call returns the file of the first run.
    `FileCapExceeded` and `QuotaExceeded` leave no row.
    """
    if (known := await find_stored(conn, chat_id, token=token)) is not None:
        return known
    async with atomic(conn):
        await require_total(conn, owner_id, size=len(data))
        if await conn.fetchval(LOCK_CHAT, chat_id) is None:
            raise ChatNotFound(chat_id)
        if (known := await find_stored(conn, chat_id, token=token)) is not None:
            return known
        if await conn.fetchval(COUNT_LINKED, chat_id) >= MAX_FILES_PER_CHAT:
            raise FileCapExceeded(MAX_FILES_PER_CHAT)
        file_id = file_id_of(token)
        record = await conn.fetchrow(INSERT_WITH_ID, file_id, owner_id, name, mime_type, data, Origin.TOOL)
        assert record is not None
        await conn.execute(LINK, chat_id, file_id)
        return FileInfo(*record)


def file_id_of(token: UUID) -> UUID:
    return uuid5(token, "file")
