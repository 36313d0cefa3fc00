"""Templates, workspaces and their operations on behalf of an actor.

`rookery.workspaces` knows the meaning of parameters: a start takes a planning function, called under the lock of the
row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource, SystemActor, role_of
from rookery.domain.chat.errors import ChatNotFound
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.authorized.rights import Grant, How, Part, Via, authz
from rookery.store.db import idempotency
from rookery.store.db.hints import ConfigHint, WatchKind
from rookery.store.people import audit, users
from rookery.store.people.audit import Event
from rookery.store.people.errors import Forbidden
from rookery.store.people.users import PublicUser
from rookery.store.settings.workspaces import read_workspace_settings
from rookery.store.workspaces import context, operations, requests, templates, workspaces
from rookery.store.workspaces.operations import Operation, OperationLog, Reason
from rookery.store.workspaces.requests import Draft, Requested, StartPlan
from rookery.store.workspaces.templates import Push, Revision, Signals, Template, TemplateNotFound, TemplatePatch
from rookery.store.workspaces.workspaces import Workspace

# Arguments: the workspace, its current template (None if deleted), and the revision of its last start.
Planner: TypeAlias = Callable[[Workspace, Template | None, Revision | None], StartPlan]

CHAT_OF_OWNER = "SELECT snapshot_version FROM chats WHERE id = $1 AND owner_id = $2"


class WorkspaceView(msgspec.Struct, frozen=True):
    """A workspace with related facts for display. `operation` is the open one."""

    workspace: Workspace
    owner: PublicUser | None
    chat_ids: tuple[UUID, ...]
    operation: Operation | None


class Templates(Part):
    __slots__ = ()

    @authz(Resource.TEMPLATE, Action.LIST)
    async def list(self, at: Grant) -> Sequence[Template]:
        """List the templates that the actor may create workspaces from, by name."""
        return [each for each in await templates.list_templates(at.conn) if _is_usable(at, each)]

    @authz(Resource.TEMPLATE, Action.LIST)
    async def get(self, at: Grant, name: str) -> Template:
        """Return a template that the actor may use; administrators see the others, too."""
        found = await templates.get_template(at.conn, name)
        if not _is_usable(at, found) and not at.is_admin:
            raise TemplateNotFound(name)
        return found

    @authz(Resource.TEMPLATE, Action.LIST)
    async def signals(self, at: Grant) -> Mapping[str, Signals]:
        """Return how much each template is used, by the actor and by all users."""
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
        """Make it the current revision for new workspaces. If it already is, nothing is published or logged."""
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


class Workspaces(Part):
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
        """List a user's workspaces that are not deleted, newest first."""
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
        """Create a workspace of the caller's own, with its first operation; `chat_id` is bound to it in the same
        transaction.

        With a `request`, the encoded answer is stored and returned again to a repeat.
        """
        if draft.owner_id != at.user_id:
            raise Forbidden("A workspace is made by its owner.")
        if request is not None and (answer := await idempotency.find_answer(at.conn, request, now=at.now)) is not None:
            return Replayed(answer)
        made = await requests.create(at.conn, draft, reason=reason, now=at.now)
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
        """Start it, join a start in progress, or find it running."""
        assert at.owner_id is not None
        found = await requests.find_startable(at.conn, workspace_id, at.owner_id)
        if found is not None:
            return found
        workspace = await workspaces.get_workspace(at.conn, workspace_id)
        template = await templates.find_template(at.conn, workspace.template or "")
        recorded = await templates.find_revision(at.conn, workspace.template or "", workspace.template_revision or "")
        made = await requests.start(at.conn, workspace, plan(workspace, template, recorded), reason=reason, now=at.now)
        await _tell(at, made)
        return made

    @authz(Resource.WORKSPACE, Action.INTERRUPT, via=Via.WORKSPACE, how=How.WRITE)
    async def stop(self, at: Grant, workspace_id: UUID, *, reason: Reason = Reason.USER) -> Requested:
        made = await requests.stop(at.conn, workspace_id, reason=reason)
        await _tell(at, made)
        await _log_foreign(at, made, "workspace.stop")
        return made

    @authz(Resource.WORKSPACE, Action.DELETE, via=Via.WORKSPACE, how=How.WRITE)
    async def delete(
        self, at: Grant, workspace_id: UUID, *, force: bool = False, reason: Reason = Reason.USER
    ) -> Requested:
        made = await requests.delete(at.conn, workspace_id, reason=reason, force=force)
        await _tell(at, made)
        if made.is_new:
            await at.log(_event("workspace.delete", workspace_id, name=made.workspace.name))
        return made

    @authz(Resource.OPERATION, Action.READ, via=Via.OPERATION)
    async def get_operation(self, at: Grant, operation_id: UUID) -> Operation:
        return await operations.get_operation(at.conn, operation_id)

    @authz(Resource.OPERATION, Action.READ, via=Via.OPERATION)
    async def read_log(self, at: Grant, operation_id: UUID) -> OperationLog:
        return await operations.read_log(at.conn, operation_id)


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
        await operations.find_open(at.conn, workspace.id),
    )


async def _bind(at: Grant, chat_id: ChatId, workspace_id: UUID) -> None:
    """Bind a chat of the actor's. Repeating the request changes nothing."""
    version = await at.conn.fetchval(CHAT_OF_OWNER, chat_id, at.user_id)
    if version is None:
        raise ChatNotFound(chat_id)
    if (await context.read_pin(at.conn, chat_id)).workspace_id == workspace_id:
        return
    await context.bind(at.conn, chat_id, workspace_id)
    at.owner_id, at.snapshot_version = at.user_id, version
    at.tell_watchers(chat_id, WatchKind.METADATA)


async def _tell(at: Grant, made: Requested) -> None:
    at.tell(*await requests.hints_of(at.conn, made))


async def _log_template(at: Grant, action: str, name: str, **said: Mapping[str, object]) -> None:
    await at.log(Event(action=action, resource_type=Resource.TEMPLATE, resource_id=name, **said))  # type: ignore[arg-type]
    at.tell(ConfigHint(kind="template", id=name))


async def _log_foreign(at: Grant, made: Requested, action: str) -> None:
    """Log an administrator's change of another user's workspace; owners' changes of their own are not logged."""
    if made.is_new and made.workspace.owner_id != at.by:
        await at.log(_event(action, made.workspace.id, name=made.workspace.name))


def _event(action: str, workspace_id: UUID, **extra: object) -> Event:
    return Event(action=action, resource_type=Resource.WORKSPACE, resource_id=str(workspace_id), extra=extra)
