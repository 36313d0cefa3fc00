"""Folders, in which users order their own chats. `chats.update` moves a chat."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import PREFIX, Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.chat import folders
from rookery.domain.chat.folders import FolderColor
from rookery.store.chats.folders import ChatFolder

# Before invisible characters are removed.
Name = Annotated[str, Field(max_length=4 * folders.MAX_NAME_CHARS)]


class FolderCreate(Body):
    name: Name
    color: FolderColor = FolderColor.GRAY


class FolderChange(Body):
    """Absent fields keep their values."""

    name: Name = ""
    color: FolderColor = FolderColor.GRAY


def router(services: ApiServices) -> Routes:
    routes = Routes("folders")

    @routes.get("/folders", "folders.list", returns=Items[ChatFolder])
    async def list_folders(caller: Caller) -> Response:
        """List the caller's folders by name. Other users do not see them, even if a chat is shared."""
        return answer(Items(tuple(await caller.store.folders.list(caller.user.id))))

    @routes.post("/folders", "folders.create", returns=ChatFolder, status=201, body=FolderCreate, errors=(409,))
    async def create(caller: Caller) -> Response:
        """Create a folder."""
        body = await caller.read(FolderCreate, may=lambda: caller.store.folders.require(caller.user.id))
        made = await caller.store.folders.create(caller.user.id, name=body.name, color=body.color)
        return answer(made, 201, Location=f"{PREFIX}/folders/{made.id}")

    @routes.patch("/folders/{folder}", "folders.update", returns=ChatFolder, body=FolderChange, errors=(404, 409))
    async def update(caller: Caller, folder: UUID) -> Response:
        """Change the name or the color of a folder."""
        body = await caller.read(FolderChange, may=lambda: caller.store.folders.require(caller.user.id, folder))
        given = {name: getattr(body, name) for name in body.given}
        return answer(await caller.store.folders.update(caller.user.id, folder, **given))

    @routes.delete("/folders/{folder}", "folders.delete", errors=(404,))
    async def delete(caller: Caller, folder: UUID) -> Response:
        """Delete a folder. Its chats are kept, without a folder."""
        await caller.store.folders.delete(caller.user.id, folder)
        return nothing()

    return routes
