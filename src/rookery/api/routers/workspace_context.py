"""A chat's view of its workspace: the captured context and the state of its repositories."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api import headers
from rookery.api.caller import Caller
from rookery.api.routes import Items, Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.workspaces import ChatContext
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.people.errors import Denied


class ContextItemView(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the context that the model gets. `tools` are the names of an MCP server's tools.

    `status` is one of `ok`, `truncated`, `oversize`, `unreadable`, `invalid`, `excluded`, or, for an MCP server that
    has not run yet, `pending`.
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
    """The captured context. `dirty_since` is the time since which the context of the workspace differs from it."""

    pinned: bool
    workspace_id: UUID | None
    dirty_since: datetime | None
    error: str | None
    items: tuple[ContextItemView, ...]


class DiffView(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that the chat worked in. `diff` is null if the workspace could not be read."""

    root: str
    branch: str | None
    remote_origin: str | None
    additions: int
    deletions: int
    changed_files: int
    refreshed_at: datetime
    diff: str | None


def router(services: ApiServices) -> Routes:
    routes = Routes("workspaces")

    @routes.get(
        "/chats/{chat}/context",
        "chats.get_context",
        returns=ContextView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get(caller: Caller, chat: UUID) -> Response:
        """Return the captured context: the names of instruction files, skills and MCP servers, not their contents."""
        return answer(_view(await caller.store.contexts.get(ChatId(chat))))

    @routes.put("/chats/{chat}/context", "chats.refresh_context", returns=ContextView, errors=(404,))
    async def refresh(caller: Caller, chat: UUID) -> Response:
        """Capture the current context of the workspace.

        If the workspace does not answer, the earlier context is kept.
        """
        return answer(_view(await caller.store.contexts.refresh(ChatId(chat))))

    @routes.get(
        "/chats/{chat}/diff",
        "chats.diff",
        returns=Items[DiffView],
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def diff(caller: Caller, chat: UUID) -> Response:
        """Return the changes that the chat has made in each repository.

        While the workspace is reachable, the owner gets the current state with diffs. Otherwise the last known counts
        are returned.
        """
        found = await caller.store.contexts.list_diffs(ChatId(chat))
        seen = await services.workspaces.git.scan(ChatId(chat)) if await _is_owner(caller, chat) else None
        if seen is None:
            return answer(Items(tuple(_diff(each) for each in found)))
        there = [each for each in seen if not each.removed]
        fresh = [services.workspaces.git.status(each) for each in there]
        gone = {each.root for each in found} - {each.root for each in fresh}
        await caller.store.contexts.write_diffs(ChatId(chat), fresh, sorted(gone))
        shown = zip(fresh, there, strict=True)
        return answer(Items(tuple(_diff(status, each.diff) for status, each in shown)))

    return routes


async def _is_owner(caller: Caller, chat: UUID) -> bool:
    """Return whether the caller may read the workspace; readers of the chat get the stored summary."""
    try:
        await caller.store.chats.require(ChatId(chat), Action.PATCH)
    except Denied:
        return False
    return True


def _diff(status: DiffStatus, diff: str | None = None) -> DiffView:
    return DiffView(**msgspec.structs.asdict(status), diff=diff)


def _view(found: ChatContext) -> ContextView:
    return ContextView(
        pinned=found.state.hash is not None,
        workspace_id=found.state.context_workspace_id,
        dirty_since=found.state.dirty_since,
        error=found.state.error,
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
