"""Files on behalf of an actor: upload, read, delete unlinked files, and copy files of other users.

If a message names a file that its author can read only through a share, the author gets a copy of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat import parts
from rookery.domain.chat.errors import FileUnavailable
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import Part as ContentPart
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import files, shares
from rookery.store.chats.files import FileInfo, Origin
from rookery.store.people.audit import Event
from rookery.store.people.errors import FileNotFound, InUse

# The column is stored uncompressed and out of line, so that PostgreSQL reads only the requested range.
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
# With the row lock, no link can be added between the check and the deletion.
LOCK_FILE = "SELECT id FROM chat_files WHERE id = $1 FOR UPDATE"
IS_LINKED = "SELECT EXISTS (SELECT FROM chat_file_links WHERE file_id = $1)"
DELETE = "DELETE FROM chat_files WHERE id = $1"
# Files of other users. `is_readable`: the author may read the file. `is_here`: this chat already links the file.
FOREIGN_FILES = f"""
    SELECT f.id, f.owner_id,
           EXISTS (SELECT FROM chat_file_links l JOIN chats c ON c.id = l.chat_id
                    WHERE l.file_id = f.id
                      AND (c.owner_id = $2 OR {shares.SHARED_WITH.format(user="$2")})) AS is_readable,
           EXISTS (SELECT FROM chat_file_links l WHERE l.file_id = f.id AND l.chat_id = $3) AS is_here
      FROM chat_files f
     WHERE f.id = ANY ($1::uuid[])
       AND f.owner_id <> $2
"""


class Span(msgspec.Struct, frozen=True):
    """A range of bytes."""

    start: int
    length: int


class FileContent(msgspec.Struct, frozen=True):
    """The content of a file: all of it, or the requested `span`."""

    info: FileInfo
    data: bytes
    span: Span | None = None


class Files(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.FILE, Action.CREATE, how=How.WRITE)
    async def create(
        self, at: Grant, *, name: str, mime_type: str, data: bytes, origin: Origin = Origin.UPLOAD
    ) -> FileInfo:
        """Store a file whose name and type were checked."""
        await files.require_room(at.conn, at.user_id, sizes=[len(data)])
        return await files.create_file(at.conn, at.user_id, name=name, mime_type=mime_type, data=data, origin=origin)

    @authz(Resource.FILE, Action.READ, via=Via.FILE)
    async def get(self, at: Grant, file_id: UUID) -> FileInfo:
        return await _info(at, file_id)

    @authz(Resource.FILE, Action.READ, via=Via.FILE)
    async def read(
        self, at: Grant, file_id: UUID, *, span_of: Callable[[FileInfo], Span | None] = lambda info: None
    ) -> FileContent:
        """Return the bytes of the file, or of the span that `span_of` returns."""
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
        """Return those of the files that the user may read."""
        records = await at.conn.fetch(READABLE, list(file_ids), user_id)
        return {record["id"]: FileInfo(*record) for record in records}

    @authz(Resource.FILE, Action.DELETE, via=Via.FILE, how=How.WRITE)
    async def delete(self, at: Grant, file_id: UUID) -> None:
        await at.conn.execute(LOCK_FILE, file_id)
        if await at.conn.fetchval(IS_LINKED, file_id):
            raise InUse("A chat uses this file. It is deleted with the chat.")
        await at.conn.execute(DELETE, file_id)


async def _info(at: Grant, file_id: UUID) -> FileInfo:
    found = await files.find_files(at.conn, [file_id])
    if file_id not in found:
        raise FileNotFound(file_id)
    return found[file_id]


class Copies(msgspec.Struct, frozen=True):
    """The copies of files of other users that a message names, by original, and the owners of the originals."""

    by_original: Mapping[UUID, UUID]
    owners: Mapping[UUID, UUID]

    def replace_in(self, content: tuple[ContentPart, ...]) -> tuple[ContentPart, ...]:
        return tuple(map(self._replaced, content)) if self.by_original else content

    def _replaced(self, part: ContentPart) -> ContentPart:
        if not isinstance(part, parts.File) or part.file_id is None:
            return part
        return msgspec.structs.replace(part, file_id=self.by_original.get(part.file_id, part.file_id))

    async def log(self, at: Grant, chat_id: ChatId) -> None:
        for original, copy in self.by_original.items():
            await at.log(
                Event(
                    action="file.copy",
                    resource_type=Resource.FILE,
                    resource_id=str(copy),
                    extra={"original_id": str(original), "chat_id": str(chat_id)},
                    subject_id=self.owners[original],
                )
            )

    async def undo(self, at: Grant) -> None:
        await files.delete_files(at.conn, list(self.by_original.values()))


async def copy_foreign_files(at: Grant, chat_id: ChatId | None, *contents: Sequence[ContentPart]) -> Copies:
    """Copy the files that the author can read only through a share.

    The author's chat keeps the copies when the share ends. Files that the author may not read are refused as missing.
    With sharing disabled, no file is readable through a share.
    """
    named = frozenset().union(*(parts.file_ids(content) for content in contents))
    if not named:
        return Copies({}, {})
    foreign = await at.conn.fetch(FOREIGN_FILES, list(named), at.user_id, chat_id)
    if refused := [record["id"] for record in foreign if not record["is_readable"]]:
        raise FileUnavailable(sorted(refused))
    wanted = {record["id"]: record["owner_id"] for record in foreign if not record["is_here"]}
    if wanted:
        await files.require_room(at.conn, at.user_id, sizes=await files.find_sizes(at.conn, list(wanted)))
    copied = {each: await files.copy_file(at.conn, each, at.user_id) for each in sorted(wanted)}
    if gone := [original for original, copy in copied.items() if copy is None]:
        raise FileUnavailable(gone)
    return Copies({original: copy for original, copy in copied.items() if copy is not None}, wanted)
