"""Folders of chats on behalf of an actor. Each user has only own folders."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.folders import FolderColor
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import folders
from rookery.store.chats.folders import ChatFolder


class Folders(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.FOLDER, Action.LIST, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[ChatFolder]:
        """Return the user's folders by name."""
        return await folders.list_folders(at.conn, user_id)

    @authz(Resource.FOLDER, Action.UPDATE, via=Via.USER)
    async def require(self, at: Grant, user_id: UUID, folder_id: UUID | None = None) -> None:
        """Check only the right to change the user's folders and, if it is given, that the user has this one."""
        if folder_id is not None:
            await folders.get_folder(at.conn, user_id, folder_id)

    @authz(Resource.FOLDER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def create(self, at: Grant, user_id: UUID, *, name: str, color: FolderColor = FolderColor.GRAY) -> ChatFolder:
        return await folders.create_folder(at.conn, user_id, name=name, color=color)

    @authz(Resource.FOLDER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def update(
        self, at: Grant, user_id: UUID, folder_id: UUID, *, name: str | None = None, color: FolderColor | None = None
    ) -> ChatFolder:
        return await folders.update_folder(at.conn, user_id, folder_id, name=name, color=color)

    @authz(Resource.FOLDER, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete(self, at: Grant, user_id: UUID, folder_id: UUID) -> None:
        """Delete a folder. Its chats are kept."""
        await folders.delete_folder(at.conn, user_id, folder_id)
