"""Copies of other users' files that a message names: the author owns them from the moment they are attached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Resource
from rookery.domain.chat import parts
from rookery.domain.chat.errors import FileUnavailable
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import Part as ContentPart
from rookery.store.authorized.rights import Grant
from rookery.store.chats import file_quota, files, shares
from rookery.store.people.audit import Event

# Files of other users, with whether the author may read them, and whether this chat has them already.
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


class Copies(msgspec.Struct, frozen=True):
    """Files of other users that a message names, each with its copy and its original owner."""

    by_original: Mapping[UUID, UUID]
    owners: Mapping[UUID, UUID]

    def put_into(self, content: tuple[ContentPart, ...]) -> tuple[ContentPart, ...]:
        return tuple(map(self._own, content)) if self.by_original else content

    def _own(self, part: ContentPart) -> ContentPart:
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
    """Copy files that the author reads by a share: the author's chat keeps them when the share ends, and their owner is
    informed.

    Files that the author may not read are refused as missing. With sharing disabled, no file is readable by a share.
    """
    named = frozenset().union(*(parts.file_ids(content) for content in contents))
    if not named:
        return Copies({}, {})
    foreign = await at.conn.fetch(FOREIGN_FILES, list(named), at.user_id, chat_id)
    if refused := [record["id"] for record in foreign if not record["is_readable"]]:
        raise FileUnavailable(sorted(refused))
    wanted = {record["id"]: record["owner_id"] for record in foreign if not record["is_here"]}
    if wanted:
        await file_quota.require_room(at.conn, at.user_id, sizes=await files.find_sizes(at.conn, list(wanted)))
    copied = {each: await files.copy_file(at.conn, each, at.user_id) for each in sorted(wanted)}
    if gone := [original for original, copy in copied.items() if copy is None]:
        raise FileUnavailable(gone)
    return Copies({original: copy for original, copy in copied.items() if copy is not None}, wanted)
