"""The toolbox for chats with workspaces: which tools are active on a step, and what they work with.

Opened for every step, and lazy: a step that touches no workspace does not connect to one. Context and skills are left
out when they cannot be read, and never fail a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import WorkspaceContext
from rookery.domain.chat.system_blocks import Mode
from rookery.loop.tool import Services, Tool, ToolSet, ToolSpec
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock
from rookery.store.authorized.store import Store
from rookery.store.chats.step_reads import Step
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.workspaces import context, mcp_consents, workspaces
from rookery.store.workspaces.workspaces import Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.tools import (
    ask_user,
    attach_file,
    files,
    process,
    propose_plan,
    registry,
    skills,
    templates,
    workspace_lifecycle,
    workspace_mcp,
)
from rookery.tools.git_scan import note_diffs
from rookery.tools.registry import Column
from rookery.tools.spilled_results import ResultKeeper
from rookery.tools.step_tools import StepTools, dynamic_tools
from rookery.tools.step_workspace import StepContext, WorkspaceAdmin, plan_path
from rookery.tools.workspace_blocks import Pinned, Pins
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.connection import ChatWorkspace, Unreadable, WorkspaceDirectory
from rookery.workspaces.context import Contexts
from rookery.workspaces.context_watch import ContextWatches
from rookery.workspaces.errors import NoConnection, WorkspaceError
from rookery.workspaces.service import Workspaces

log = get_logger("tools.toolbox")

# Chats whose connection and lock are kept between steps. Chosen: the size of an entry with its connection. The age is
# longer than a turn is likely to be silent: at its end, the entry tells whether the turn has used the workspace.
ENTRY_BYTES = 2048
MAX_BYTES = 4 * 1024 * 1024
MAX_AGE_SECONDS = 3600.0
UserSetting = Callable[[UUID, str], Awaitable[Any]]


async def always() -> bool:
    return True


async def no_setting(user_id: UUID, key: str) -> Any:
    return None


@dataclass(frozen=True, kw_only=True)
class ToolboxParts:
    """Shared dependencies of the tools of a process. `can_make` returns whether a workspace could be started at all."""

    pool: asyncpg.Pool
    store: Store
    service: Workspaces
    directory: WorkspaceDirectory
    contexts: Contexts
    watches: ContextWatches
    clock: Clock
    can_make: Callable[[], Awaitable[bool]] = always
    user_setting: UserSetting = no_setting


@dataclass(slots=True)
class _Kept:
    """State of a chat that is kept between its steps."""

    workspace: ChatWorkspace
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkspaceToolbox:
    """The toolbox of a process."""

    def __init__(self, parts: ToolboxParts) -> None:
        self._parts = parts
        self._chats: Cache[ChatId, _Kept] = Cache(
            "chat_workspaces", max_bytes=MAX_BYTES, max_age_seconds=MAX_AGE_SECONDS, clock=parts.clock
        )
        self._pins = Pins(parts.pool, clock=parts.clock)
        self._asking: tuple[Tool, ...] = tuple(ask_user.tools())
        self._working: tuple[Tool, ...] = (
            *templates.tools(),
            *workspace_lifecycle.tools(),
            *files.tools(),
            *process.tools(),
            *attach_file.tools(),
            *propose_plan.tools(),
        )
        self._read_skill, self._read_skill_file = skills.read_skill_tool(), skills.read_skill_file_tool()

    @property
    def caches(self) -> Sequence[Cache[Any, Any]]:
        return self._chats, self._pins.entries

    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        at = registry.column(mode=mode, is_root=step.chat.is_root)
        kept = self._keep(step)
        row = await self._find_row(step)
        if row is not None and row.status == Status.RUNNING:
            self._parts.watches.hold(row.id)
            stack.callback(self._parts.watches.release, row.id)
        pinned = await self._pinned(step, kept, row)
        tools = registry.ordered(await self._tools(step, pinned))
        agreed = await self._agreed(step, pinned)
        of_workspace: list[workspace_mcp.WorkspaceMcpTool] = []
        if pinned is not None and at in registry.NORMAL:
            of_workspace = workspace_mcp.tools(pinned.resources, agreed, partial(self._may_run, pinned.key[0]))
        declared = _declared(step, mode) if at is Column.ROOT else ()
        active = registry.active_names(tools, at) | {each.name for each in (*_specs(of_workspace), *declared)}
        turn = StepContext(
            chat_id=step.chat.id,
            owner_id=step.chat.owner_id,
            column=at,
            workspace=kept.workspace,
            pool=self._parts.pool,
            skills=() if pinned is None else pinned.skills,
            found_admin=self._workspace_admin(step, kept),
        )
        return StepTools(
            tools=ToolSet([*tools, *of_workspace], active=active, declared=declared, aliases=registry.ALIASES),
            services=Services(turn),
            workspace_context=_block(row, pinned, agreed),
            skills=() if pinned is None else pinned.index(),
            plan_path=_plan_path(step, row),
            trace=_trace(step, pinned),
            trace_problems="" if pinned is None else pinned.problems(),
            on_turn_end=partial(self._end_turn, step, kept) if kept.workspace.was_used else None,
            keep_result=ResultKeeper(kept.workspace, self._parts.clock),
        )

    async def _end_turn(self, step: Step, kept: _Kept) -> None:
        try:
            await note_diffs(step.chat, kept.workspace, self._parts.store, clock=self._parts.clock)
        except (WorkspaceError, *DATABASE_ERRORS) as error:
            log.info("diffs_not_noted", chat_id=step.chat.id, error=str(error) or type(error).__name__)
        finally:
            kept.workspace.was_used = False

    async def _tools(self, step: Step, pinned: Pinned | None) -> list[Tool]:
        """Return the tools. A server that cannot start workspaces offers no tool that needs one."""
        found = list(self._asking)
        if step.meta.workspace_id is not None or await self._parts.can_make():
            found.extend(self._working)
        if pinned is not None and pinned.skills:
            found.extend((self._read_skill, self._read_skill_file))
        return found

    def _keep(self, step: Step) -> _Kept:
        chat = step.chat
        kept = self._chats.find(chat.id)
        if kept is None:
            family = [each for each in (chat.parent_chat_id, chat.root_chat_id) if each is not None]
            workspace = ChatWorkspace(
                chat.id,
                self._parts.directory,
                clock=self._parts.clock,
                ancestor_ids=tuple(dict.fromkeys(family)),
                is_root=chat.is_root,
            )
            kept = _Kept(workspace)
            self._chats.keep(chat.id, kept, size_bytes=ENTRY_BYTES)
        kept.workspace.bind(step.meta.workspace_id)
        return kept

    def _workspace_admin(self, step: Step, kept: _Kept) -> WorkspaceAdmin:
        parts = self._parts
        store = parts.store.as_actor(OwnerActor(step.chat.owner_id))
        return WorkspaceAdmin(store=store, service=parts.service, directory=parts.directory, lock=kept.lock)

    async def _find_row(self, step: Step) -> Workspace | None:
        if step.meta.workspace_id is None:
            return None
        try:
            async with self._parts.pool.acquire() as conn:
                return await workspaces.find_workspace(conn, step.meta.workspace_id)
        except DATABASE_ERRORS as error:
            log.warning("workspace_unread", chat_id=step.chat.id, error=str(error) or type(error).__name__)
            return None

    # Context

    async def _pinned(self, step: Step, kept: _Kept, row: Workspace | None) -> Pinned | None:
        """Return the captured context of the chat's workspace; while the workspace is stopped, the last one."""
        if row is None:
            return None
        try:
            is_stale = row.status == Status.RUNNING and not self._parts.contexts.is_fresh(row.id, row.generation)
            if is_stale:
                await self._refresh(step, row)
            if not step.meta.has_pin or await self._is_outdated(step, row, has_looked=is_stale):
                await self._parts.contexts.pin(step.chat.id)
                return await self._pins.load_newest(step.chat.id)
            return await self._pins.load(step.chat.id, step.meta)
        except DATABASE_ERRORS as error:
            log.warning("context_left_out", chat_id=step.chat.id, error=str(error) or type(error).__name__)
            return None

    async def _agreed(self, step: Step, pinned: Pinned | None) -> frozenset[str]:
        """Return the MCP server entries that the owner has agreed to; none if that cannot be read."""
        if pinned is None or step.meta.workspace_id is None or not pinned.servers():
            return frozenset()
        try:
            async with self._parts.pool.acquire() as conn:
                return await mcp_consents.list_agreed(conn, step.meta.workspace_id)
        except DATABASE_ERRORS as error:
            log.warning("consents_unread", chat_id=step.chat.id, error=str(error) or type(error).__name__)
            return frozenset()

    async def _may_run(self, workspace_id: UUID, entry: Entry) -> bool:
        async with self._parts.pool.acquire() as conn:
            return entry.hash in await mcp_consents.list_agreed(conn, workspace_id)

    async def _refresh(self, step: Step, row: Workspace) -> None:
        try:
            location = await self._parts.directory.find(row.id)
            if location is not None and location.status == Status.RUNNING:
                conn = self._parts.directory.connect(location, ChatHeaders())
                await self._parts.contexts.refresh(row.id, location.generation, conn)
        except (NoConnection, Unreadable) as error:
            log.info("context_not_refreshed", chat_id=step.chat.id, error=str(error))

    async def _is_outdated(self, step: Step, row: Workspace, *, has_looked: bool) -> bool:
        """Return whether to capture the context again.

        It is captured after a restart, and at the start of a turn for users who want that. A refresh may just have
        found what the step's own snapshot of the chat does not contain.
        """
        meta = step.meta
        if meta.context_generation is not None and meta.context_generation < row.generation:
            async with self._parts.pool.acquire() as conn:
                newest = await context.find_snapshot(conn, row.id)
            return newest is not None and newest.generation == row.generation
        if not _begins_turn(step) or (meta.context_dirty_since is None and not has_looked):
            return False
        if await self._parts.user_setting(step.chat.owner_id, "context_auto_refresh") is not True:
            return False
        async with self._parts.pool.acquire() as conn:
            return (await context.read_pin(conn, step.chat.id)).dirty_since is not None


def _declared(step: Step, mode: Mode) -> tuple[ToolSpec, ...]:
    """Return the tools of the chat's client.

    Chats of older versions may have tools with the name of a built-in tool: such a name must not activate the built-in
    one.
    """
    return tuple(spec for spec in dynamic_tools(step, mode=mode) if not registry.is_reserved(spec.name))


def _specs(tools: Sequence[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools]


def _begins_turn(step: Step) -> bool:
    rows = step.history.rows
    return bool(rows) and rows[-1].message.role == "user"


def _block(row: Workspace | None, pinned: Pinned | None, agreed: frozenset[str]) -> str:
    if row is None or row.status == Status.DELETED:
        return ""
    return (pinned or Pinned((row.id, 0, ""), (), ())).block(row, agreed)


def _trace(step: Step, pinned: Pinned | None) -> WorkspaceContext | None:
    """Return the transcript's note about the captured context; None when the newest note is about the same."""
    if pinned is None:
        return None
    told = step.history.traced
    is_same = told is not None and (told.workspace_id, told.generation, told.hash) == pinned.key
    return None if is_same else pinned.trace()


def _plan_path(step: Step, row: Workspace | None) -> str | None:
    if row is None or not row.home or not step.chat.is_root:
        return None
    return plan_path(row.home, step.chat.id)
