"""Files on behalf of an actor: upload, read, and delete files that no chat links."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.rights import Grant, How, Part, Via, authz
from rookery.store.chats import file_quota, files, shares
from rookery.store.chats.files import FileInfo, Origin
from rookery.store.people.errors import FileNotFound, InUse

# Stored uncompressed and out of line, so that a range can be read without the rest.
READ = "SELECT substring(data FROM $2 + 1 FOR $3) FROM chat_files WHERE id = $1"
OF_CHAT = f"""
    SELECT {files.COLUMNS}
      FROM chat_file_links l
      JOIN chat_files f ON f.id = l.file_id
     WHERE l.chat_id = $1
     ORDER BY f.created_at, f.id
"""
READABLE = f"""
    SELECT {files.COLUMNS}
      FROM chat_files f
     WHERE f.id = ANY ($1::uuid[])
       AND (f.owner_id = $2
            OR EXISTS (SELECT FROM chat_file_links l JOIN chats c ON c.id = l.chat_id
                        WHERE l.file_id = f.id
                          AND (c.owner_id = $2 OR {shares.SHARED_WITH.format(user="$2")})))
"""
# The row lock keeps a link from appearing between the check and the deletion.
LOCK_FILE = "SELECT id FROM chat_files WHERE id = $1 FOR UPDATE"
IS_LINKED = "SELECT EXISTS (SELECT FROM chat_file_links WHERE file_id = $1)"
DELETE = "DELETE FROM chat_files WHERE id = $1"


class Span(msgspec.Struct, frozen=True):
    """A range of bytes."""

    start: int
    length: int


class FileContent(msgspec.Struct, frozen=True):
    """The content of a file: all of it, or the requested `span`."""

    info: FileInfo
    data: bytes
    span: Span | None = None


class Files(Part):
    __slots__ = ()

    @authz(Resource.FILE, Action.CREATE, how=How.WRITE)
    async def create(
        self, at: Grant, *, name: str, mime_type: str, data: bytes, origin: Origin = Origin.UPLOAD
    ) -> FileInfo:
        """Store a file whose name and type were checked."""
        await file_quota.require_room(at.conn, at.user_id, sizes=[len(data)])
        return await files.create_file(at.conn, at.user_id, name=name, mime_type=mime_type, data=data, origin=origin)

    @authz(Resource.FILE, Action.READ, via=Via.FILE)
    async def get(self, at: Grant, file_id: UUID) -> FileInfo:
        return await _info(at, file_id)

    @authz(Resource.FILE, Action.READ, via=Via.FILE)
    async def read(
        self, at: Grant, file_id: UUID, *, span_of: Callable[[FileInfo], Span | None] = lambda info: None
    ) -> FileContent:
        """Return the bytes, or the span that `wanted` selects for this file."""
        info = await _info(at, file_id)
        span = span_of(info)
        start, length = (0, info.size_bytes) if span is None else (span.start, span.length)
        data = await at.conn.fetchval(READ, file_id, start, length) if length else b""
        if data is None:
            raise FileNotFound(file_id)
        return FileContent(info, data, span)

    @authz(Resource.FILE, Action.READ, via=Via.CHAT)
    async def list_of_chat(self, at: Grant, chat_id: ChatId) -> list[FileInfo]:
        return [FileInfo(*record) for record in await at.conn.fetch(OF_CHAT, chat_id)]

    @authz(Resource.CHAT, Action.LIST, via=Via.USER)
    async def find_readable(self, at: Grant, user_id: UUID, file_ids: Collection[UUID]) -> dict[UUID, FileInfo]:
        """Return those of the files that the user may read, for the facts of a message."""
        records = await at.conn.fetch(READABLE, list(file_ids), user_id)
        return {record["id"]: FileInfo(*record) for record in records}

    @authz(Resource.FILE, Action.DELETE, via=Via.FILE, how=How.WRITE)
    async def delete(self, at: Grant, file_id: UUID) -> None:
        await at.conn.execute(LOCK_FILE, file_id)
        if await at.conn.fetchval(IS_LINKED, file_id):
            raise InUse("A chat uses this file. It goes when the chat does.")
        await at.conn.execute(DELETE, file_id)


async def _info(at: Grant, file_id: UUID) -> FileInfo:
    found = await files.find_files(at.conn, [file_id])
    if file_id not in found:
        raise FileNotFound(file_id)
    return found[file_id]
