"""Kinds of subagents: the built-in kinds, those of the deployment, and the caller's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.agents import subagent_kinds
from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.chat.messages import Effort
from rookery.domain.content import agent_kinds
from rookery.domain.content.agent_kinds import KindDefinition
from rookery.store.settings.agent_kinds import StoredKind

Scope = Annotated[
    Literal["user", "deployment"],
    Field(description="`user`: only for the caller. `deployment`: for everyone; administrators only."),
]
Name = Annotated[str, Field(max_length=64)]


class KindBody(Body):
    """A kind of subagent. Without `tools`, it has all tools of subagents."""

    description: str = Field(max_length=4 * agent_kinds.MAX_DESCRIPTION_CHARS)
    prompt: str = Field("", max_length=agent_kinds.MAX_PROMPT_BYTES)
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None
    tools: Annotated[list[str], Field(max_length=agent_kinds.MAX_TOOLS)] | None = None
    read_only: bool = False
    max_minutes: Annotated[int, Field(ge=1, le=agent_kinds.MAX_MINUTES)] | None = None


class KindView(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of subagent. `source` is `builtin`, `deployment` or `user`.

    If another kind with the same name replaces this one, `hidden_by` is the source of the other kind. Workspaces may
    define more kinds, which only their own chats can use.
    """

    name: str
    source: str
    description: str
    prompt: str
    model_config_id: UUID | None
    reasoning_effort: Effort | None
    tools: tuple[str, ...] | None
    read_only: bool
    max_minutes: int | None
    updated_at: datetime | None
    hidden_by: str | None


class KindsView(msgspec.Struct, frozen=True):
    kinds: tuple[KindView, ...]


def router(services: ApiServices) -> Routes:
    routes = Routes("agent kinds")

    @routes.get("/agent-kinds", "agent_kinds.list", returns=KindsView)
    async def list_kinds(caller: Caller) -> Response:
        """List the kinds of subagents that the caller's chats can use, and the kinds that are hidden by another."""
        stored = await caller.store.agent_kinds.list(caller.user.id)
        shared = {kind.name for kind in stored if kind.owner_id is None}
        shown = [_builtin(kind) for kind in subagent_kinds.BUILTIN]
        shown += [_view(kind, hidden=kind.owner_id is not None and kind.name in shared) for kind in stored]
        return answer(KindsView(tuple(shown)))

    @routes.put("/agent-kinds/{name}", "agent_kinds.put", body=KindBody, returns=KindView)
    async def put(caller: Caller, name: Name, scope: Scope = "user") -> Response:
        """Create or replace a kind."""
        body = await caller.read(KindBody, may=_may(caller, scope))
        kind = KindDefinition(
            name=name,
            description=body.description,
            prompt=body.prompt,
            reasoning_effort=body.reasoning_effort,
            tools=None if body.tools is None else tuple(body.tools),
            read_only=body.read_only,
            max_minutes=body.max_minutes,
        )
        if scope == "deployment":
            written = await caller.store.agent_kinds.write_shared(kind, body.model_config_id)
        else:
            written = await caller.store.agent_kinds.write_own(caller.user.id, kind, body.model_config_id)
        return answer(_view(written))

    @routes.delete("/agent-kinds/{name}", "agent_kinds.delete", errors=(404,))
    async def delete(caller: Caller, name: Name, scope: Scope = "user") -> Response:
        """Delete a kind. Subagents that were started with it continue."""
        if not agent_kinds.is_name(name):
            await _may(caller, scope)()
            deleted = False
        elif scope == "deployment":
            deleted = await caller.store.agent_kinds.delete_shared(name)
        else:
            deleted = await caller.store.agent_kinds.delete_own(caller.user.id, name)
        if not deleted:
            raise ApiError(404, "agent_kind_not_found", f"There is no kind {name!r} in this scope.")
        return nothing()

    return routes


def _may(caller: Caller, scope: str) -> Callable[[], Awaitable[object]]:
    if scope == "deployment":
        return caller.store.agent_kinds.require_shared
    return lambda: caller.store.agent_kinds.require_own(caller.user.id)


def _builtin(kind: subagent_kinds.AgentKind) -> KindView:
    return KindView(
        name=kind.name,
        source=kind.source,
        description=kind.description,
        prompt=kind.prompt,
        model_config_id=None,
        reasoning_effort=None,
        tools=kind.tools,
        read_only=kind.read_only,
        max_minutes=kind.max_minutes,
        updated_at=None,
        hidden_by=None,
    )


def _view(kind: StoredKind, *, hidden: bool = False) -> KindView:
    return KindView(
        name=kind.name,
        source="deployment" if kind.owner_id is None else "user",
        description=kind.description,
        prompt=kind.prompt,
        model_config_id=kind.model_config_id,
        reasoning_effort=kind.reasoning_effort,
        tools=kind.tools,
        read_only=kind.read_only,
        max_minutes=kind.max_minutes,
        updated_at=kind.updated_at,
        hidden_by="deployment" if hidden else None,
    )
