"""Workspaces on behalf of an actor: templates, operations, captured context, and consent to MCP servers.

The store does not interpret the parameters of templates; the package `rookery.workspaces` does. A start therefore takes
a planning function, which is called under the lock of the workspace's row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource, SystemActor, role_of
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.mcp_consent import McpDecision, McpState
from rookery.domain.chat.messages import ChatId
from rookery.domain.mcp.server import AuthType, McpServer
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import repository_states
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.db import idempotency
from rookery.store.db.hints import ConfigHint, WatchHint, WatchKind
from rookery.store.mcp import logins, project_servers, servers, tool_lists
from rookery.store.mcp.logins import Login
from rookery.store.people import audit, users
from rookery.store.people.audit import Event
from rookery.store.people.errors import Forbidden, Missing
from rookery.store.people.users import PublicUser
from rookery.store.settings.limit_settings import read_workspace_settings
from rookery.store.workspaces import context, lifecycle_requests, mcp_consents, operation_rows, templates, workspaces
from rookery.store.workspaces.context import CaptureState, ContextResource
from rookery.store.workspaces.lifecycle_requests import Draft, Requested, StartPlan
from rookery.store.workspaces.mcp_consents import NamedServer
from rookery.store.workspaces.operation_rows import Operation, OperationLog, Reason
from rookery.store.workspaces.templates import Push, Revision, Signals, Template, TemplateNotFound, TemplatePatch
from rookery.store.workspaces.workspaces import AgentState, Status, Workspace

# The arguments are the workspace, its template (None if deleted), and the revision of its last start.
Planner: TypeAlias = Callable[[Workspace, Template | None, Revision | None], StartPlan]

# The states in which readers look for the output of the startup script.
STARTUP_LOGGED = frozenset(
    {AgentState.CONNECTING, AgentState.STARTING, AgentState.SCRIPT_FAILED, AgentState.SCRIPT_TIMEOUT}
)
CHAT_OF_OWNER = "SELECT snapshot_version FROM chats WHERE id = $1 AND owner_id = $2"


class WorkspaceView(msgspec.Struct, frozen=True):
    """A workspace with its owner, its chats and its open operation.

    `startup_operation` is the operation whose log has the output of a startup script that runs or has failed.
    """

    workspace: Workspace
    owner: PublicUser | None
    chat_ids: tuple[UUID, ...]
    operation: Operation | None
    startup_operation: UUID | None


class Templates(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.TEMPLATE, Action.LIST)
    async def list(self, at: Grant) -> Sequence[Template]:
        """List the templates from which the actor may create workspaces, by name."""
        return [each for each in await templates.list_templates(at.conn) if _is_usable(at, each)]

    @authz(Resource.TEMPLATE, Action.LIST)
    async def get(self, at: Grant, name: str) -> Template:
        """Return a template that the actor may use. Administrators get other templates as well."""
        found = await templates.get_template(at.conn, name)
        if not _is_usable(at, found) and not at.is_admin:
            raise TemplateNotFound(name)
        return found

    @authz(Resource.TEMPLATE, Action.LIST)
    async def signals(self, at: Grant) -> Mapping[str, Signals]:
        """Return the use of each template by the actor and by all users."""
        return await templates.list_signals(at.conn, at.user_id, now=at.now)

    @authz(Resource.TEMPLATE, Action.READ)
    async def list_all(self, at: Grant) -> Sequence[Template]:
        return await templates.list_templates(at.conn)

    @authz(Resource.TEMPLATE, Action.ADMINISTER)
    async def require(self, at: Grant, name: str | None = None) -> None:
        """Check that the actor may change templates, and that this one exists."""
        if name is not None:
            await templates.get_template(at.conn, name)

    @authz(Resource.TEMPLATE, Action.ADMINISTER, how=How.WRITE)
    async def push(self, at: Grant, push: Push) -> Template:
        """Store a revision and make it the current one. If it is current already, nothing is published or logged."""
        if await templates.push_template(at.conn, push, by=at.by):
            await _log_template(at, "template.push", push.name, extra={"revision": push.revision})
        return await templates.get_template(at.conn, push.name)

    @authz(Resource.TEMPLATE, Action.ADMINISTER, how=How.WRITE)
    async def update(self, at: Grant, name: str, patch: TemplatePatch) -> Template:
        before = await templates.get_template(at.conn, name)
        after = await templates.update_template(at.conn, name, patch)
        if diff := audit.diff("templates", before, after):
            await _log_template(at, "template.update", name, diff=diff)
        return after

    @authz(Resource.TEMPLATE, Action.ADMINISTER, how=How.WRITE)
    async def delete(self, at: Grant, name: str) -> None:
        await templates.delete_template(at.conn, name)
        await _log_template(at, "template.delete", name)


class Workspaces(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.WORKSPACE, Action.LIST, via=Via.USER)
    async def list(
        self,
        at: Grant,
        user_id: UUID,
        *,
        statuses: Collection[str] | None = None,
        template: str | None = None,
        after: tuple[datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[WorkspaceView]:
        """List the workspaces of a user that are not deleted, newest first."""
        found = await workspaces.list_workspaces(
            at.conn, owner_id=user_id, statuses=statuses, template=template, after=after, limit=limit
        )
        return [await _view(at, each) for each in found]

    @authz(Resource.WORKSPACE, Action.LIST_ALL)
    async def list_all(
        self,
        at: Grant,
        *,
        statuses: Collection[str] | None = None,
        template: str | None = None,
        after: tuple[datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[WorkspaceView]:
        """List the workspaces of all users."""
        found = await workspaces.list_workspaces(
            at.conn, statuses=statuses, template=template, after=after, limit=limit
        )
        return [await _view(at, each) for each in found]

    @authz(Resource.WORKSPACE, Action.READ, via=Via.WORKSPACE)
    async def get(self, at: Grant, workspace_id: UUID) -> WorkspaceView:
        return await _view(at, await workspaces.get_workspace(at.conn, workspace_id))

    @authz(Resource.WORKSPACE, Action.CREATE, how=How.WRITE)
    async def create(
        self,
        at: Grant,
        draft: Draft,
        *,
        reason: Reason = Reason.USER,
        chat_id: ChatId | None = None,
        request: idempotency.Request | None = None,
        encode: Callable[[Requested], bytes] | None = None,
    ) -> Requested | Replayed:
        """Create a workspace that belongs to the caller, with its first operation. Bind the chat `chat_id` to it.

        With a `request`, the encoded answer is stored, and a repeat gets it again.
        """
        if draft.owner_id != at.user_id:
            raise Forbidden("A workspace can be created only by its owner.")
        if request is not None and (answer := await idempotency.find_answer(at.conn, request, now=at.now)) is not None:
            return Replayed(answer)
        made = await lifecycle_requests.create(at.conn, draft, reason=reason, now=at.now)
        if chat_id is not None:
            await _bind(at, chat_id, draft.id)
        await _tell(at, made)
        if request is not None and encode is not None:
            await idempotency.store_answer(at.conn, request, answer=encode(made), now=at.now)
        return made

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE)
    async def require_update(self, at: Grant, workspace_id: UUID) -> None:
        """Check only the right."""

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def update(
        self, at: Grant, workspace_id: UUID, *, name: str | None = None, idle_stop_after: timedelta | None = None
    ) -> WorkspaceView:
        if idle_stop_after is not None:
            idle_stop_after = (await read_workspace_settings(at.conn)).capped_idle(idle_stop_after)
        changed = await workspaces.update_workspace(at.conn, workspace_id, name=name, idle_stop_after=idle_stop_after)
        at.tell(*await workspaces.hints_about(at.conn, changed))
        return await _view(at, changed)

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def start(self, at: Grant, workspace_id: UUID, plan: Planner, *, reason: Reason = Reason.USER) -> Requested:
        """Start a workspace. If it is already starting or running, return its open operation or the workspace."""
        assert at.owner_id is not None
        found = await lifecycle_requests.find_startable(at.conn, workspace_id, at.owner_id)
        if found is not None:
            return found
        workspace = await workspaces.get_workspace(at.conn, workspace_id)
        template = await templates.find_template(at.conn, workspace.template or "")
        recorded = await templates.find_revision(at.conn, workspace.template or "", workspace.template_revision or "")
        made = await lifecycle_requests.start(
            at.conn, workspace, plan(workspace, template, recorded), reason=reason, now=at.now
        )
        await _tell(at, made)
        return made

    @authz(Resource.WORKSPACE, Action.INTERRUPT, via=Via.WORKSPACE, how=How.WRITE)
    async def stop(self, at: Grant, workspace_id: UUID, *, reason: Reason = Reason.USER) -> Requested:
        made = await lifecycle_requests.stop(at.conn, workspace_id, reason=reason)
        await _tell(at, made)
        await _log_foreign(at, made, "workspace.stop")
        return made

    @authz(Resource.WORKSPACE, Action.DELETE, via=Via.WORKSPACE, how=How.WRITE)
    async def delete(
        self, at: Grant, workspace_id: UUID, *, force: bool = False, reason: Reason = Reason.USER
    ) -> Requested:
        made = await lifecycle_requests.delete(at.conn, workspace_id, reason=reason, force=force)
        await _tell(at, made)
        if made.is_new:
            await at.log(_event("workspace.delete", workspace_id, name=made.workspace.name))
        return made

    @authz(Resource.OPERATION, Action.READ, via=Via.OPERATION)
    async def get_operation(self, at: Grant, operation_id: UUID) -> Operation:
        return await operation_rows.get_operation(at.conn, operation_id)

    @authz(Resource.OPERATION, Action.READ, via=Via.OPERATION)
    async def read_log(self, at: Grant, operation_id: UUID) -> OperationLog:
        return await operation_rows.read_log(at.conn, operation_id)


def _is_usable(at: Grant, template: Template) -> bool:
    if isinstance(at.actor, SystemActor):
        return True
    return template.enabled and template.is_allowed(at.actor.id, role_of(at.actor))


async def _view(at: Grant, workspace: Workspace) -> WorkspaceView:
    names = await users.find_names(at.conn, [workspace.owner_id])
    return WorkspaceView(
        workspace,
        names.get(workspace.owner_id),
        tuple(await workspaces.list_chat_ids(at.conn, workspace.id)),
        await operation_rows.find_open(at.conn, workspace.id),
        await operation_rows.find_start_id(at.conn, workspace.id) if _has_startup_log(workspace) else None,
    )


def _has_startup_log(workspace: Workspace) -> bool:
    return workspace.status == Status.RUNNING and workspace.agent_state in STARTUP_LOGGED


async def _bind(at: Grant, chat_id: ChatId, workspace_id: UUID) -> None:
    """Bind a chat of the actor to the workspace. Idempotent."""
    version = await at.conn.fetchval(CHAT_OF_OWNER, chat_id, at.user_id)
    if version is None:
        raise ChatNotFound(chat_id)
    if (await context.read_capture_state(at.conn, chat_id)).workspace_id == workspace_id:
        return
    await context.bind(at.conn, chat_id, workspace_id)
    at.owner_id, at.snapshot_version = at.user_id, version
    at.tell_watchers(chat_id, WatchKind.METADATA)


async def _tell(at: Grant, made: Requested) -> None:
    at.tell(*await lifecycle_requests.hints_of(at.conn, made))


async def _log_template(at: Grant, action: str, name: str, **said: Mapping[str, object]) -> None:
    await at.log(Event(action=action, resource_type=Resource.TEMPLATE, resource_id=name, **said))  # type: ignore[arg-type]
    at.tell(ConfigHint(kind="template", id=name))


async def _log_foreign(at: Grant, made: Requested, action: str) -> None:
    """Log a change of another user's workspace. Changes by the owner are not logged."""
    if made.is_new and made.workspace.owner_id != at.by:
        await at.log(_event(action, made.workspace.id, name=made.workspace.name))


def _event(action: str, workspace_id: UUID, **extra: object) -> Event:
    return Event(action=action, resource_type=Resource.WORKSPACE, resource_id=str(workspace_id), extra=extra)


class ChatContext(msgspec.Struct, frozen=True):
    """The captured context of a chat. `resources` are in the order of the prompt and have their bodies."""

    state: CaptureState
    resources: tuple[ContextResource, ...]


class Contexts(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def get(self, at: Grant, chat_id: ChatId) -> ChatContext:
        return await _read_context(at, chat_id)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def refresh(self, at: Grant, chat_id: ChatId) -> ChatContext:
        """Capture the newest context that the workspace has reported. If there is none, nothing changes."""
        before = await context.read_capture_state(at.conn, chat_id)
        await context.capture(at.conn, chat_id)
        if await context.read_capture_state(at.conn, chat_id) != before:
            at.tell_watchers(chat_id, WatchKind.CONTEXT)
        return await _read_context(at, chat_id)

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def list_diffs(self, at: Grant, chat_id: ChatId) -> Sequence[DiffStatus]:
        """Return the last known state of the repositories."""
        return await repository_states.list_diffs(at.conn, chat_id)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def write_diffs(
        self, at: Grant, chat_id: ChatId, found: Sequence[DiffStatus], removed: Sequence[str] = ()
    ) -> None:
        """Store the current state of repositories."""
        if await repository_states.write_diffs(at.conn, chat_id, found=found, removed=removed):
            at.tell_watchers(chat_id, WatchKind.GIT)


async def _read_context(at: Grant, chat_id: ChatId) -> ChatContext:
    state = await context.read_capture_state(at.conn, chat_id)
    return ChatContext(state, tuple(await context.list_resources(at.conn, chat_id)))


class McpEntryNotFound(Missing):
    """Raised if no file of the workspace has this entry."""

    def __init__(self, workspace_id: UUID, entry_hash: str) -> None:
        self.workspace_id = workspace_id
        self.entry_hash = entry_hash
        super().__init__("No file of this workspace names this server, or its entry has changed. Reload the list.")


class ProjectServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that a file of a workspace names.

    `server` is set once a server with an address can be used, with the login of its owner and the names of its tools.
    `is_refused`: users must not have servers with an address of their own.
    """

    named: NamedServer
    server: McpServer | None = None
    login: Login | None = None
    tools: tuple[str, ...] = ()
    is_refused: bool = False


class WorkspaceMcpServers(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE)
    async def list(self, at: Grant, workspace_id: UUID) -> Sequence[ProjectServer]:
        """List the servers in the last reported context of the workspace, with the owner's answers."""
        return await _list_servers(at, workspace_id)

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def answer(self, at: Grant, workspace_id: UUID, entry_hash: str, decision: McpDecision) -> None:
        """Allow or deny this entry until it changes or the answer is withdrawn.

        An answer ends the server of the entry that the former answer was about.
        """
        server = await _find_server(at, workspace_id, entry_hash)
        await mcp_consents.write(at.conn, workspace_id, server.entry, decision, by=at.by)
        await _record_decision(at, workspace_id, f"workspace.mcp_{decision.value}", server)

    @authz(Resource.WORKSPACE, Action.UPDATE, via=Via.WORKSPACE, how=How.WRITE)
    async def withdraw(self, at: Grant, workspace_id: UUID, entry_hash: str) -> None:
        """Withdraw an answer. The server does not run until the owner answers again."""
        server = await _find_server(at, workspace_id, entry_hash)
        if await mcp_consents.withdraw(at.conn, workspace_id, server.entry):
            await _record_decision(at, workspace_id, "workspace.mcp_withdraw", server)


async def _list_servers(at: Grant, workspace_id: UUID) -> tuple[ProjectServer, ...]:
    named = await _named_servers(at, workspace_id)
    if not any(each.entry.url is not None for each in named):
        return tuple(ProjectServer(named=each) for each in named)
    is_refused = not (await servers.read_settings(at.conn)).allow_user_servers
    made = {each.entry_hash: each for each in await project_servers.list_of_workspace(at.conn, workspace_id)}
    found = []
    for each in named:
        server = made.get(each.entry.hash) if each.state is McpState.AGREED else None
        if server is None or server.owner_id is None:
            found.append(ProjectServer(named=each, is_refused=is_refused and each.entry.url is not None))
            continue
        user_id = server.owner_id if server.auth_type is AuthType.OAUTH2 else None
        listed = await tool_lists.find_list(at.conn, server.id, user_id, config_version=server.config_version)
        names = () if listed is None else tuple(str(tool.get("name", "")) for tool in listed.tools)
        login = await logins.find_login(at.conn, server.id, server.owner_id)
        found.append(ProjectServer(named=each, server=server, login=login, tools=names, is_refused=is_refused))
    return tuple(found)


async def _named_servers(at: Grant, workspace_id: UUID) -> tuple[NamedServer, ...]:
    snapshot = await context.find_snapshot(at.conn, workspace_id)
    return mcp_consents.named_servers(snapshot, await mcp_consents.list_consents(at.conn, workspace_id))


async def _find_server(at: Grant, workspace_id: UUID, entry_hash: str) -> NamedServer:
    for each in await _named_servers(at, workspace_id):
        if each.entry.hash == entry_hash:
            return each
    raise McpEntryNotFound(workspace_id, entry_hash)


async def _record_decision(at: Grant, workspace_id: UUID, action: str, server: NamedServer) -> None:
    """Log the decision, without the command, which may be confidential, and notify the chats of the workspace.

    Servers with an address that have no consent now are deleted.
    """
    extra = {"server": server.entry.name, "entry_hash": server.entry.hash}
    await at.log(Event(action=action, resource_type=Resource.WORKSPACE, resource_id=str(workspace_id), extra=extra))
    await project_servers.delete_without_consent(at.conn, workspace_id)
    at.tell(servers.hint())
    for marked in await context.bump_servers(at.conn, workspace_id):
        at.tell(
            WatchHint(
                user_id=marked.owner_id,
                kind=WatchKind.CONTEXT,
                chat_id=marked.chat_id,
                snapshot_version=marked.snapshot_version,
            )
        )
