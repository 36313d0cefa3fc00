"""Files of workspaces for their owners: list a folder, read a text, download a file.

Only the owner of a workspace can access its files. This module does not change the workspace.
"""

from __future__ import annotations

import posixpath
from typing import Annotated
from urllib.parse import quote
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.errors import NO_STORE, ApiError
from rookery.api.routers.files import SANDBOX
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat.messages import ChatId
from rookery.domain.content import uploads
from rookery.workspaces.agent_messages import Listing

# The limit fits into an address of at most 8 KiB in any script.
MAX_PATH_CHARS = 512
# More than a user reads in a panel, and small enough to be held in memory.
MAX_TEXT_BYTES = 1024 * 1024
MAX_SAVED_BYTES = 16 * 1024 * 1024
_PROBE_BYTES = 8 * 1024

FilePath = Annotated[str, Field(max_length=MAX_PATH_CHARS)]


class FolderEntryView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_dir: bool
    size: int


class FolderView(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of the workspace, subfolders first. `path` is as requested. `truncated`: the folder has more entries."""

    path: str
    entries: tuple[FolderEntryView, ...]
    truncated: bool


class WorkspaceFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the workspace. `path` is relative to the working folder, or absolute for a stored tool result.

    `text` is null if the file is not text. `truncated`: the file is longer than the first MiB.
    """

    path: str
    text: str | None
    truncated: bool


def router(services: ApiServices) -> Routes:
    routes = Routes("workspaces")

    @routes.get("/chats/{chat}/folder", "chats.folder", returns=FolderView, errors=(404, 409))
    async def folder(caller: Caller, chat: UUID, path: FilePath = "") -> Response:
        """List a folder of the chat's workspace, for its owner. `path` is relative to the chat's working folder."""
        await caller.store.chats.require(ChatId(chat), Action.PATCH)
        return answer(_folder(path, await services.workspaces.folders.list(ChatId(chat), path)))

    @routes.get("/workspaces/{workspace}/folder", "workspaces.folder", returns=FolderView, errors=(404, 409))
    async def folder_of(caller: Caller, workspace: UUID, path: FilePath = "") -> Response:
        """List a folder of a workspace, for its owner, as a chat in it would see the folder."""
        await caller.store.workspaces.require_update(workspace)
        return answer(_folder(path, await services.workspaces.folders.list_of(workspace, path)))

    @routes.get("/chats/{chat}/file", "chats.file", returns=WorkspaceFileView, errors=(404, 409))
    async def file(caller: Caller, chat: UUID, path: FilePath = "") -> Response:
        """Return a file of the chat's workspace as text, for its owner: the first MiB.

        `path` is relative to the chat's working folder, or that of a tool result stored for the chat.
        """
        await caller.store.chats.require(ChatId(chat), Action.PATCH)
        found = await services.workspaces.folders.read(ChatId(chat), path, max_bytes=MAX_TEXT_BYTES)
        return answer(WorkspaceFileView(path=found.path, text=_text(found.data), truncated=found.is_cut))

    @routes.get(
        "/chats/{chat}/file/bytes",
        "chats.file_bytes",
        returns=bytes,
        media_type=uploads.UNKNOWN,
        errors=(404, 409),
    )
    async def file_bytes(caller: Caller, chat: UUID, path: FilePath = "") -> Response:
        """Download a file of the chat's workspace, at most 16 MiB."""
        await caller.store.chats.require(ChatId(chat), Action.PATCH)
        found = await services.workspaces.folders.read(ChatId(chat), path, max_bytes=MAX_SAVED_BYTES)
        if found.is_cut:
            most = MAX_SAVED_BYTES // 1024**2
            raise ApiError(409, "file_too_large", f"The file is larger than {most} MiB, the limit for downloads.")
        name = posixpath.basename(found.path)
        kind = uploads.detected_type(found.data, name=name)
        given = {
            "Cache-Control": NO_STORE,
            "Content-Security-Policy": SANDBOX,
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            # Only images are shown in the browser; other files are saved.
            "Content-Type": kind if kind.startswith("image/") and kind != uploads.SVG else uploads.UNKNOWN,
        }
        return Response(found.data, headers=given)

    return routes


def _folder(path: str, found: Listing) -> FolderView:
    entries = tuple(FolderEntryView(name=each.name, is_dir=each.is_dir, size=each.size) for each in found.entries)
    return FolderView(path=path, entries=entries, truncated=found.truncated)


def _text(data: bytes) -> str | None:
    """Decode a text; None for binary data. Invalid characters, and one cut off at the end, become U+FFFD."""
    return None if b"\0" in data[:_PROBE_BYTES] else data.decode("utf-8", "replace")
