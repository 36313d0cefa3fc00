"""The context of a step's built-in tools, and their calls to the workspace agent.

Refusals by the agent and missing connections become error results with their own text. A dead connection is replaced
once, which is safe because every effect carries the call's replay token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import Json
from rookery.domain.content.skills import SkillFile
from rookery.loop.tool import ToolContext, ToolOutput
from rookery.store.authorized.store import ActorStore
from rookery.tools import framework, registry
from rookery.tools.framework import StructTool
from rookery.tools.registry import Column
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.connection import ChatWorkspace, WorkspaceDirectory
from rookery.workspaces.errors import AgentError, AgentUnreachable, WorkspaceError
from rookery.workspaces.service import Workspaces

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")


class Refused(Exception):
    """Raised when a tool refuses a call; the text is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceAdmin:
    """Creates and ends workspaces on behalf of the chat's owner. `lock` serializes the chat's own calls."""

    store: ActorStore
    service: Workspaces
    directory: WorkspaceDirectory
    lock: asyncio.Lock


@dataclass(slots=True, kw_only=True)
class StepContext:
    """One step of a chat, as its tools see it. `skills` are those of the captured context.

    Without `admin` no workspace can be made; the tools for that are not offered then.
    """

    chat_id: ChatId
    owner_id: UUID
    column: Column
    workspace: ChatWorkspace
    pool: asyncpg.Pool
    skills: Sequence[SkillFile] = field(default_factory=tuple)
    found_admin: WorkspaceAdmin | None = None

    @property
    def admin(self) -> WorkspaceAdmin:
        if self.found_admin is None:
            raise Refused("This server has no workspaces. Tell the user that an administrator has to turn them on.")
        return self.found_admin

    @property
    def is_planning(self) -> bool:
        return self.column is Column.ROOT_PLAN

    @property
    def only_looks(self) -> bool:
        """Whether processes may not change anything in the workspace."""
        return self.column in registry.READ_ONLY

    def plan_path(self, home: str) -> str:
        return plan_path(home, self.chat_id)


def plan_path(home: str, chat_id: ChatId) -> str:
    return f"{home.rstrip('/')}/.rookery/plans/PLAN-{chat_id}.md"


def step_of(ctx: ToolContext) -> StepContext:
    return ctx.services.get(StepContext)


async def ask_agent(turn: ChatWorkspace, act: Callable[[AgentConn], Awaitable[T]]) -> T:
    """Call the agent; once more over a new connection if the current one belongs to an earlier boot of the workspace.

    Every request made here may be repeated: it only reads, or it carries a key.
    """
    conn = await turn.conn()
    try:
        return await act(conn)
    except AgentError as error:
        if error.status != 401 and error.code != "generation":
            raise
    except AgentUnreachable as error:
        if error.timed_out:
            raise
    turn.forget(conn)
    return await act(await turn.conn())


def with_warning(turn: ChatWorkspace, value: dict[str, Any]) -> dict[str, Any]:
    """Return a result, with the workspace's warning since the last result."""
    warning = turn.take_warning()
    return value if warning is None else {**value, "warning": f"{warning} Delete what is not needed."}


def make_tool(
    name: str,
    description: str,
    *,
    arguments: type[A],
    handler: Callable[[ToolContext, A], Awaitable[ToolOutput]],
    amend: Callable[[Json], Json] | None = None,
    **fields: Any,
) -> StructTool[A]:
    """Return a tool whose refusals are results, so that the model can react to them."""

    async def run(ctx: ToolContext, given: A) -> ToolOutput:
        try:
            return await handler(ctx, given)
        except (Refused, WorkspaceError) as error:
            return ToolOutput(str(error), is_error=True)

    return framework.make_tool(name, description, arguments=arguments, handler=run, amend=amend, **fields)


def absolute(path: str) -> str:
    """Return the trimmed path. Raises `Refused` for a relative path."""
    trimmed = path.strip()
    if not trimmed.startswith("/"):
        raise Refused(f"The path {trimmed!r} is not absolute. Give the whole path, beginning with a slash.")
    if "\0" in trimmed:
        raise Refused("The path contains a zero byte.")
    return trimmed
