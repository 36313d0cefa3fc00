"""The context of a step's built-in tools, and their calls to the workspace agent.

Refusals by the agent and missing connections become error results for the model. If the connection is dead, the call is
repeated once. This is safe, because every request that changes something has the call's replay token.
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
from rookery.store.authorized.actor_store import ActorStore
from rookery.tools import framework, registry
from rookery.tools.framework import StructTool
from rookery.tools.registry import Column
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.connection import ChatWorkspace, WorkspaceDirectory
from rookery.workspaces.errors import AgentError, AgentUnreachable, WorkspaceError
from rookery.workspaces.operation_requests import Workspaces

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")


class Refused(Exception):
    """Raised when a tool refuses a call. The message is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceAdmin:
    """The services that create, start and stop workspaces for the chat's owner.

    `lock` serializes the tool calls of the chat that use these services.
    """

    store: ActorStore
    service: Workspaces
    directory: WorkspaceDirectory
    lock: asyncio.Lock


@dataclass(slots=True, kw_only=True)
class StepContext:
    """The context of one step for its tools. `skills` are those of the captured context.

    `optional_admin` is None on a server without workspaces. With `is_strict`, commands run in the read-only view or not
    at all, because the user has set the chat to read only.
    """

    chat_id: ChatId
    owner_id: UUID
    column: Column
    workspace: ChatWorkspace
    pool: asyncpg.Pool
    skills: Sequence[SkillFile] = field(default_factory=tuple)
    optional_admin: WorkspaceAdmin | None = None
    is_strict: bool = False

    @property
    def admin(self) -> WorkspaceAdmin:
        if self.optional_admin is None:
            raise Refused("This server has no workspaces. Tell the user that an administrator has to turn them on.")
        return self.optional_admin

    @property
    def is_planning(self) -> bool:
        return self.column is Column.ROOT_PLAN

    @property
    def is_child(self) -> bool:
        """Return whether the chat is a subagent's, which its parent can stop as well."""
        return self.column not in registry.ROOT

    @property
    def is_read_only(self) -> bool:
        """Return whether commands run in the read-only view."""
        return self.column in registry.READ_ONLY

    def plan_path(self, home: str) -> str:
        return plan_path(home, self.chat_id)


def plan_path(home: str, chat_id: ChatId) -> str:
    return f"{home.rstrip('/')}/.rookery/plans/PLAN-{chat_id}.md"


def step_of(ctx: ToolContext) -> StepContext:
    return ctx.services.get(StepContext)


async def ask_agent(workspace: ChatWorkspace, act: Callable[[AgentConn], Awaitable[T]]) -> T:
    """Call the agent. If the connection is dead or belongs to an earlier boot, call it once more over a new one.

    `act` must be safe to repeat: it only reads, or its request has an idempotency key.
    """
    conn = await workspace.conn()
    try:
        return await act(conn)
    except AgentError as error:
        if error.status != 401 and error.code != "generation":
            raise
    except AgentUnreachable as error:
        if error.timed_out:
            raise
    workspace.forget(conn)
    return await act(await workspace.conn())


def with_warning(workspace: ChatWorkspace, value: dict[str, Any]) -> dict[str, Any]:
    """Return the result. If the workspace has a new disk warning, add it."""
    warning = workspace.take_warning()
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
    """Return a tool that converts `Refused` and `WorkspaceError` to error results."""

    async def run(ctx: ToolContext, given: A) -> ToolOutput:
        try:
            return await handler(ctx, given)
        except (Refused, WorkspaceError) as error:
            return ToolOutput(str(error), is_error=True)

    return framework.make_tool(name, description, arguments=arguments, handler=run, amend=amend, **fields)


def absolute(path: str) -> str:
    """Return the trimmed path. Raise `Refused` for a relative path."""
    trimmed = path.strip()
    if not trimmed.startswith("/"):
        raise Refused(f"The path {trimmed!r} is not absolute. Give the whole path, beginning with a slash.")
    if "\0" in trimmed:
        raise Refused("The path contains a zero byte.")
    return trimmed
