"""What a chat has of its workspace: the pinned context, and the state of its repositories."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from rookery.api import headers
from rookery.api.caller import CallerDep
from rookery.api.parts import ApiParts
from rookery.api.routes import Items, Routes, answer
from rookery.chat.messages import ChatId
from rookery.store.authorized.contexts import ChatContext
from rookery.store.chat_diffs import DiffStatus


class ContextItemView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the workspace tells the model. `status` is ok, truncated, oversize, unreadable, invalid, excluded.

    `tools` are the names of an MCP server's.
    """

    kind: str
    source: str
    name: str | None
    description: str | None
    size: int
    status: str
    error: str | None
    tools: tuple[str, ...] | None


class ContextView(msgspec.Struct, frozen=True, kw_only=True):
    """The pinned context. `dirty_since` says since when the workspace tells something else."""

    pinned: bool
    workspace_id: UUID | None
    dirty_since: datetime | None
    error: str | None
    items: tuple[ContextItemView, ...]


def router(parts: ApiParts) -> APIRouter:
    routes = Routes("workspaces")

    @routes.get(
        "/chats/{chat}/context",
        "chats.get_context",
        returns=ContextView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get(caller: CallerDep, chat: UUID) -> Response:
        """Instruction files, skills and MCP servers that the chat has from its workspace; never their contents."""
        return answer(_view(await caller.store.contexts.get(ChatId(chat))))

    @routes.put("/chats/{chat}/context", "chats.refresh_context", returns=ContextView, errors=(404,))
    async def refresh(caller: CallerDep, chat: UUID) -> Response:
        """Take over what the workspace tells now. Without an answer of the workspace, what is pinned stays."""
        return answer(_view(await caller.store.contexts.refresh(ChatId(chat))))

    @routes.get(
        "/chats/{chat}/diff",
        "chats.diff",
        returns=Items[DiffStatus],
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def diff(caller: CallerDep, chat: UUID) -> Response:
        """How much the chat has changed in each repository, as it was last seen; the most changed first."""
        return answer(Items(tuple(await caller.store.contexts.list_diffs(ChatId(chat)))))

    return routes.router


def _view(found: ChatContext) -> ContextView:
    return ContextView(
        pinned=found.pin.hash is not None,
        workspace_id=found.pin.pinned_workspace_id,
        dirty_since=found.pin.dirty_since,
        error=found.pin.error,
        items=tuple(
            ContextItemView(
                kind=each.kind,
                source=each.source,
                name=each.name,
                description=each.description,
                size=each.size,
                status=each.status,
                error=each.error,
                tools=None if each.tools is None else tuple(str(tool.get("name", "")) for tool in each.tools),
            )
            for each in found.resources
        ),
    )
