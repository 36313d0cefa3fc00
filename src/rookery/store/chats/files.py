"""Files of chats: storage, metadata, and their bytes for a prompt.

A file never changes, and stays as long as a chat links it; so its bytes may be cached. The link gives a chat the right
to a file, independent of its uploader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.submission import FileFacts
from rookery.domain.content.attachments import StoredFile
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock
from rookery.store.db.pool import Connection

MAX_FILE_BYTES = 10 * 1024 * 1024
# Chosen: the limit of file bytes in one prompt. Providers refuse requests far smaller than that.
MAX_PROMPT_BYTES = 64 * 1024 * 1024
MAX_CACHE_BYTES = 128 * 1024 * 1024

# The fields of `FileInfo`, in its order.
COLUMNS = "f.id, f.owner_id, f.name, f.mime_type, f.size_bytes, f.origin, f.sha256, f.created_at"
INSERT = f"""
    INSERT INTO chat_files AS f (owner_id, name, mime_type, size_bytes, data, origin)
    VALUES ($1, $2, $3, octet_length($4::bytea), $4, $5)
    RETURNING {COLUMNS}
"""
# The bytes never leave the database.
COPY = """
    INSERT INTO chat_files (owner_id, name, mime_type, size_bytes, data, origin)
    SELECT $2, name, mime_type, size_bytes, data, origin FROM chat_files WHERE id = $1
    RETURNING id
"""
SIZES = "SELECT size_bytes FROM chat_files WHERE id = ANY ($1::uuid[])"
DELETE_ALL = "DELETE FROM chat_files WHERE id = ANY ($1::uuid[])"
FIND = f"SELECT {COLUMNS} FROM chat_files f WHERE f.id = ANY ($1::uuid[])"

# Newest first, as far as they fit; the others never leave the server. Sizes are those of the bytes.
LOAD = """
    SELECT f.id, f.mime_type, f.name, f.origin, CASE WHEN fits.bytes <= $3 THEN f.data END AS data
      FROM (SELECT c.id, sum(octet_length(c.data)) OVER (ORDER BY c.created_at DESC, c.id) AS bytes
              FROM chat_files c
              JOIN chat_file_links l ON l.file_id = c.id
             WHERE l.chat_id = $1
               AND l.file_id = ANY ($2::uuid[])) fits
      JOIN chat_files f ON f.id = fits.id
"""


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
        """Return the facts for `submission.with_facts`."""
        return FileFacts(media_type=self.mime_type, name=self.name)


async def create_file(
    conn: Connection, owner_id: UUID, *, name: str, mime_type: str, data: bytes, origin: Origin = Origin.UPLOAD
) -> FileInfo:
    """Store a checked file. It is deleted after a while unless a chat links it."""
    record = await conn.fetchrow(INSERT, owner_id, name, mime_type, data, origin)
    assert record is not None
    return FileInfo(*record)


async def copy_file(conn: Connection, file_id: UUID, owner_id: UUID) -> UUID | None:
    """Store the same bytes as a file of this owner; None if the original is gone."""
    copy: UUID | None = await conn.fetchval(COPY, file_id, owner_id)
    return copy


async def find_sizes(conn: Connection, file_ids: Sequence[UUID]) -> list[int]:
    return [record["size_bytes"] for record in await conn.fetch(SIZES, list(file_ids))]


async def delete_files(conn: Connection, file_ids: Sequence[UUID]) -> None:
    """Delete files that no chat links."""
    if file_ids:
        await conn.execute(DELETE_ALL, list(file_ids))


async def find_files(conn: Connection, file_ids: Collection[UUID]) -> dict[UUID, FileInfo]:
    """Return the metadata of these files, as far as they exist. The caller checks the access rights."""
    if not file_ids:
        return {}
    return {record["id"]: FileInfo(*record) for record in await conn.fetch(FIND, list(file_ids))}


async def load_files(
    conn: Connection, chat_id: ChatId, *, file_ids: Collection[UUID], max_bytes: int = MAX_PROMPT_BYTES
) -> dict[UUID, StoredFile]:
    """Return the files with their bytes, as far as the chat links them. A file that is not in the answer is gone.

    Together at most `max_bytes`, newest first; the others are marked as left out.
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

    The key is chat and file, so that one chat's file is never given to another by mistake.
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
        """Cache files that have their bytes. Files that were left out may have room another time."""
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
    """Load as `load_files` does, but only the files that are not cached; no query if all are.

    Cached files use up the limit first, so that a prompt keeps the files it had, as its prefix must.
    """
    found = cache.find(chat_id, file_ids)
    missing = [file_id for file_id in file_ids if file_id not in found]
    if not missing:
        return found
    room = max(max_bytes - sum(len(file.data) for file in found.values()), 0)
    loaded = await load_files(conn, chat_id, file_ids=missing, max_bytes=room)
    cache.keep(chat_id, loaded)
    return found | loaded
