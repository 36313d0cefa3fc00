"""Folders, in which the caller orders own chats. `client.chats.update(..., folder_id=...)` moves a chat."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from rookery.client.http import Http, path
from rookery.client.models import ChatFolder
from rookery.client.pages import Items

FolderColor = Literal["gray", "blue", "green", "yellow", "red", "purple"]


class AsyncFolders:
    """`client.folders`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[ChatFolder, ...]:
        """Return the caller's folders by name."""
        return (await self._http.read(Items[ChatFolder], "/folders")).items

    async def create(self, name: str, *, color: FolderColor = "gray") -> ChatFolder:
        return await self._http.write(ChatFolder, "POST", "/folders", body={"name": name, "color": color})

    async def update(
        self, folder_id: UUID | str, *, name: str | None = None, color: FolderColor | None = None
    ) -> ChatFolder:
        """Change the given values. None keeps a value."""
        body = {key: value for key, value in (("name", name), ("color", color)) if value is not None}
        return await self._http.write(ChatFolder, "PATCH", path("folders", folder_id), body=body)

    async def delete(self, folder_id: UUID | str) -> None:
        """Delete a folder. Its chats are kept, without a folder."""
        await self._http.send("DELETE", path("folders", folder_id))
