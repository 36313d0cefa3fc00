"""The toolbox for chats with workspaces: chooses the tools of a step, and provides their services.

It is opened for every step. It connects to a workspace only if a tool needs it. Context and skills that cannot be read
are left out; they never fail a turn.
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
from msgspec import Raw

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import WorkspaceContext
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.system_blocks import Mode
from rookery.loop.tool import Services, Tool, ToolSet, ToolSpec
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock
from rookery.store.authorized.actor_store import Store
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
from rookery.tools.captured_context import CapturedContext, CapturedContexts
from rookery.tools.registry import Column
from rookery.tools.spilled_results import ResultKeeper
from rookery.tools.step_tools import StepTools, ToolFamily, dynamic_tools
from rookery.tools.step_workspace import StepContext, WorkspaceAdmin, plan_path
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.chat_repositories import store_diffs
from rookery.workspaces.connection import ChatWorkspace, Unreadable, WorkspaceDirectory
from rookery.workspaces.context import Contexts
from rookery.workspaces.context_watch import ContextWatches
from rookery.workspaces.errors import NoConnection, WorkspaceError
from rookery.workspaces.operation_requests import Workspaces

log = get_logger("tools.toolbox")

# The cache of chat entries, which keeps the connections of chats between steps. The size of an entry is chosen. An
# entry is kept longer than most turns take, because at the end of a turn it shows whether the turn has used the
# workspace.
ENTRY_BYTES = 2048
MAX_BYTES = 4 * 1024 * 1024
MAX_AGE_SECONDS = 3600.0
UserSetting = Callable[[UUID, str], Awaitable[Any]]


async def always() -> bool:
    return True


async def no_setting(user_id: UUID, key: str) -> Any:
    return None


@dataclass(frozen=True, kw_only=True)
class ToolboxServices:
    """The services that the tools of a process share. `can_make` returns whether workspaces can be started.

    `families` are the tool families of packages above this one.
    """

    pool: asyncpg.Pool
    store: Store
    service: Workspaces
    directory: WorkspaceDirectory
    contexts: Contexts
    watches: ContextWatches
    clock: Clock
    can_make: Callable[[], Awaitable[bool]] = always
    user_setting: UserSetting = no_setting
    families: Sequence[ToolFamily] = ()


@dataclass(slots=True)
class _ChatEntry:
    """The state of a chat that is kept between its steps."""

    workspace: ChatWorkspace
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkspaceToolbox:
    """The toolbox of a process, for chats with and without workspaces."""

    def __init__(self, parts: ToolboxServices) -> None:
        self._parts = parts
        self._chats: Cache[ChatId, _ChatEntry] = Cache(
            "chat_workspaces", max_bytes=MAX_BYTES, max_age_seconds=MAX_AGE_SECONDS, clock=parts.clock
        )
        self._captured_contexts = CapturedContexts(parts.pool, clock=parts.clock)
        self._user_tools: tuple[Tool, ...] = tuple(ask_user.tools())
        self._workspace_tools: tuple[Tool, ...] = (
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
        return self._chats, self._captured_contexts.entries

    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        at = registry.column(mode=mode, is_root=step.chat.is_root)
        entry = self._chat_entry(step)
        row = await self._find_row(step)
        if row is not None and row.status == Status.RUNNING:
            self._parts.watches.hold(row.id)
            stack.callback(self._parts.watches.release, row.id)
        captured = await self._find_captured(step, entry, row)
        resources = () if captured is None else captured.resources
        added = [await family.open(step, mode=mode, at=at, resources=resources) for family in self._parts.families]
        tools = registry.ordered([*await self._tools(step, captured), *(tool for each in added for tool in each.tools)])
        external = [tool for each in added for tool in each.external]
        agreed = await self._agreed_entries(step, captured)
        mcp_tools: list[workspace_mcp.WorkspaceMcpTool] = []
        if captured is not None and at in registry.NORMAL:
            may_run = partial(self._may_run, captured.key[0])
            taken = {spec.name for spec in _specs(external)}
            mcp_tools = workspace_mcp.tools(captured.resources, agreed, may_run, taken=taken)
        declared = _declared(step, mode) if at is Column.ROOT else ()
        active = registry.active_names(tools, at) | {
            each.name for each in (*_specs(external), *_specs(mcp_tools), *declared)
        }
        if step.meta.agent is not None and step.meta.agent.tools is not None:
            active &= step.meta.agent.tools
        step_context = StepContext(
            chat_id=step.chat.id,
            owner_id=step.chat.owner_id,
            column=at,
            workspace=entry.workspace,
            pool=self._parts.pool,
            skills=() if captured is None else captured.skills,
            optional_admin=self._workspace_admin(step, entry),
            is_strict=step.meta.permission_mode == PermissionMode.READ_ONLY,
        )
        return StepTools(
            tools=ToolSet([*tools, *external, *mcp_tools], active=active, declared=declared, aliases=registry.ALIASES),
            services=Services(step_context, *(service for each in added for service in each.services)),
            has_advisor=any(each.has_advisor for each in added),
            workspace_context=_context_block(row, captured, agreed),
            skills=() if captured is None else captured.index(),
            plan_path=_plan_path(step, row),
            trace=_trace(step, captured),
            trace_problems="" if captured is None else captured.problems(),
            on_turn_end=partial(self._end_turn, step, entry) if entry.workspace.was_used else None,
            notices=[notice for each in added for notice in each.notices],
            keep_result=ResultKeeper(entry.workspace, self._parts.clock),
            # Other clients cannot show the form. Their model gets the error and asks in its own words.
            needs_user=partial(_needs_user, step_context) if step.meta.client_type == "ui" else None,
        )

    async def _end_turn(self, step: Step, entry: _ChatEntry) -> None:
        try:
            await store_diffs(step.chat, entry.workspace, self._parts.store, clock=self._parts.clock)
        except (WorkspaceError, *DATABASE_ERRORS) as error:
            log.info("diffs_not_noted", chat_id=step.chat.id, error=str(error) or type(error).__name__)
        finally:
            entry.workspace.was_used = False

    async def _tools(self, step: Step, captured: CapturedContext | None) -> list[Tool]:
        """Return the built-in tools. If the chat has no workspace and none can be started, only a few are offered."""
        found = list(self._user_tools)
        if step.meta.workspace_id is not None or await self._parts.can_make():
            found.extend(self._workspace_tools)
        if captured is not None and captured.skills:
            found.extend((self._read_skill, self._read_skill_file))
        return found

    def _chat_entry(self, step: Step) -> _ChatEntry:
        chat = step.chat
        entry = self._chats.find(chat.id)
        if entry is None:
            family = [each for each in (chat.parent_chat_id, chat.root_chat_id) if each is not None]
            workspace = ChatWorkspace(
                chat.id,
                self._parts.directory,
                clock=self._parts.clock,
                ancestor_ids=tuple(dict.fromkeys(family)),
                is_root=chat.is_root,
            )
            entry = _ChatEntry(workspace)
            self._chats.keep(chat.id, entry, size_bytes=ENTRY_BYTES)
        entry.workspace.bind(step.meta.workspace_id)
        return entry

    def _workspace_admin(self, step: Step, entry: _ChatEntry) -> WorkspaceAdmin:
        parts = self._parts
        store = parts.store.as_actor(OwnerActor(step.chat.owner_id))
        return WorkspaceAdmin(store=store, service=parts.service, directory=parts.directory, lock=entry.lock)

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

    async def _find_captured(self, step: Step, entry: _ChatEntry, row: Workspace | None) -> CapturedContext | None:
        """Return the captured context of the chat. Capture it first if there is none, or if it is outdated."""
        if row is None:
            return None
        try:
            is_stale = row.status == Status.RUNNING and not self._parts.contexts.is_fresh(row.id, row.generation)
            if is_stale:
                await self._refresh(step, row)
            if not step.meta.has_captured_context or await self._is_outdated(step, row, has_refreshed=is_stale):
                await self._parts.contexts.capture(step.chat.id)
                return await self._captured_contexts.load_newest(step.chat.id)
            return await self._captured_contexts.load(step.chat.id, step.meta)
        except DATABASE_ERRORS as error:
            log.warning("context_left_out", chat_id=step.chat.id, error=str(error) or type(error).__name__)
            return None

    async def _agreed_entries(self, step: Step, captured: CapturedContext | None) -> frozenset[str]:
        """Return the hashes of the MCP server entries that the owner has agreed to; none if they cannot be read."""
        if captured is None or step.meta.workspace_id is None or not captured.servers():
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

    async def _is_outdated(self, step: Step, row: Workspace, *, has_refreshed: bool) -> bool:
        """Return whether to capture the context again.

        It is captured again after a restart of the workspace. It is also captured again at the start of a turn, if it
        has changed and the user has set `context_auto_refresh`. With `has_refreshed`, the change may be newer than the
        row that the step has read.
        """
        meta = step.meta
        if meta.context_generation is not None and meta.context_generation < row.generation:
            async with self._parts.pool.acquire() as conn:
                newest = await context.find_snapshot(conn, row.id)
            return newest is not None and newest.generation == row.generation
        if not _begins_turn(step) or (meta.context_dirty_since is None and not has_refreshed):
            return False
        if await self._parts.user_setting(step.chat.owner_id, "context_auto_refresh") is not True:
            return False
        async with self._parts.pool.acquire() as conn:
            return (await context.read_capture_state(conn, step.chat.id)).dirty_since is not None


async def _needs_user(step_context: StepContext, name: str, args: Raw, token: UUID) -> bool:
    return name == workspace_lifecycle.CREATE and await workspace_lifecycle.lacks_parameters(
        step_context, args, token=token
    )


def _declared(step: Step, mode: Mode) -> tuple[ToolSpec, ...]:
    """Return the dynamic tools of the chat, without those that have the name of a built-in tool.

    Older versions allowed such names. They must not activate the built-in tool.
    """
    return tuple(spec for spec in dynamic_tools(step, mode=mode) if not registry.is_reserved(spec.name))


def _specs(tools: Sequence[Tool]) -> list[ToolSpec]:
    return [tool.spec for tool in tools]


def _begins_turn(step: Step) -> bool:
    rows = step.history.rows
    return bool(rows) and rows[-1].message.role == "user"


def _context_block(row: Workspace | None, captured: CapturedContext | None, agreed: frozenset[str]) -> str:
    if row is None or row.status == Status.DELETED:
        return ""
    return (captured or CapturedContext((row.id, 0, ""))).block(row, agreed)


def _trace(step: Step, captured: CapturedContext | None) -> WorkspaceContext | None:
    """Return the note about the captured context for the transcript; None if the newest note is the same."""
    if captured is None:
        return None
    shown = step.history.traced
    is_same = shown is not None and (shown.workspace_id, shown.generation, shown.hash) == captured.key
    return None if is_same else captured.trace()


def _plan_path(step: Step, row: Workspace | None) -> str | None:
    if row is None or not row.home or not step.chat.is_root:
        return None
    return plan_path(row.home, step.chat.id)
