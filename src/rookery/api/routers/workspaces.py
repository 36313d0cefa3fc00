"""Workspaces: create, list, read, change, start, stop and delete them.

Slow requests return an operation to wait for. Endpoints and tokens of agents never leave the server.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api import headers
from rookery.api.caller import Caller
from rookery.api.request_bodies import Body, rule
from rookery.api.routers.workspace_operations import OperationView, operation_view
from rookery.api.routes import PREFIX, Page, Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action, Resource, has_scope
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import check_storable
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.authorized.workspaces import WorkspaceView as StoredWorkspace
from rookery.store.db import page_cursors
from rookery.store.people.users import PublicUser
from rookery.store.workspaces import workspaces
from rookery.store.workspaces.lifecycle_requests import Requested
from rookery.store.workspaces.workspaces import Status, Workspace
from rookery.workspaces.parameter_values import masked

OPERATION = "workspaces.create"
EVERYBODY = "all"
MAX_IDLE_SECONDS = 366 * 86_400


class WorkspaceView(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace. `idle_stop_after` is in seconds; 0 means never. `chats` are the newest 20 chats bound to it.

    `operation` is the running operation. `startup_operation` is the operation whose log has the output of the startup
    script, while that runs or after it failed (`agent_state` is `script_failed` or `script_timeout`).

    `warning` is a text: the workspace is not confined, its disk is nearly full, or it will be deleted soon because it
    is unused. `network` is its network since the last start: none, hosts, public, or host (the machine's own network
    with its localhost); null before the first start.
    """

    id: UUID
    owner: PublicUser | None
    name: str
    template: str | None
    template_revision: str | None
    driver: str
    parameters: dict[str, Any]
    status: str
    error: str | None
    error_code: str | None
    warning: str | None
    agent_state: str
    startup_exit_code: int | None
    os: str | None
    arch: str | None
    directory: str | None
    network: str | None
    idle_stop_after: float
    stops_at: datetime | None
    last_used_at: datetime
    started_at: datetime | None
    created_at: datetime
    updated_at: datetime
    chats: tuple[UUID, ...]
    operation: OperationView | None
    startup_operation: UUID | None


class RequestedView(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of the workspace, and the operation to wait for; null if there was nothing to do."""

    workspace: WorkspaceView
    operation: OperationView | None


class CreateWorkspaceBody(Body):
    """A new workspace. Without a name, the workspace gets one from the server, such as `amber-otter`."""

    template: Annotated[str, Field(min_length=1, max_length=64), rule(lambda name: check_storable("template", name))]
    name: Annotated[str, Field(max_length=64)] | None = None
    preset: Annotated[str, Field(max_length=64)] | None = None
    parameters: Annotated[dict[str, Any], Field(max_length=100)] = Field(default_factory=dict)


class UpdateWorkspaceBody(Body):
    """The fields to change; absent fields keep their values. `idle_stop_after` is in seconds; 0 means never."""

    name: Annotated[str, Field(max_length=64)] = ""
    idle_stop_after: Annotated[int, Field(ge=0, le=MAX_IDLE_SECONDS)] = 0


class StartWorkspaceBody(Body):
    """Parameters that may change at a start: mutable and ephemeral ones."""

    parameters: Annotated[dict[str, Any], Field(max_length=100)] = Field(default_factory=dict)


def router(services: ApiServices) -> Routes:
    routes = Routes("workspaces")

    @routes.get("/workspaces", "workspaces.list", returns=Page[WorkspaceView], errors=(404,))
    async def list_workspaces(
        caller: Caller,
        owner: str | None = None,
        status: list[Status] | None = None,
        template: str | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
        cursor: str | None = None,
    ) -> Response:
        """List the caller's workspaces, newest first.

        `owner` is the id of another user, or `all`: for administrators and auditors.
        """
        after = page_cursors.decode(cursor, tuple[datetime, UUID]) if cursor is not None else None
        if template is not None:
            check_storable("template", template)
        wanted: dict[str, Any] = {"statuses": status, "template": template, "after": after, "limit": limit + 1}
        store = caller.store.workspaces
        if owner == EVERYBODY:
            found = await store.list_all(**wanted)
        else:
            found = await store.list(caller.user.id if owner is None else _user_id(owner), **wanted)
        last = found[limit - 1].workspace if len(found) > limit else None
        return answer(
            Page(
                tuple(view(each, now=services.clock.now()) for each in found[:limit]),
                None if last is None else page_cursors.encode((last.created_at, last.id)),
            )
        )

    @routes.post(
        "/workspaces",
        "workspaces.create",
        returns=RequestedView,
        status=202,
        body=CreateWorkspaceBody,
        errors=(404, 409, 412),
        takes=[headers.IDEMPOTENCY_KEY],
        gives=[headers.LOCATION, headers.REPLAYED],
    )
    async def create(caller: Caller) -> Response:
        """Create a workspace and start it. All errors in the parameters are reported together."""
        body = await caller.read(CreateWorkspaceBody, may=caller.may_create(Resource.WORKSPACE))
        await caller.may_create(Resource.WORKSPACE)()
        made = await services.workspaces.service.request_create(
            caller.store,
            caller.user.id,
            template=body.template,
            name=body.name,
            parameters=body.parameters,
            preset_id=body.preset,
            request=caller.idempotency_request(OPERATION),
            encode=lambda requested: msgspec.json.encode(_made(caller, requested, now=services.clock.now())),
        )
        return _created(caller, made, now=services.clock.now())

    @routes.get("/workspaces/{workspace}", "workspaces.get", returns=WorkspaceView, errors=(404,))
    async def get(caller: Caller, workspace: UUID) -> Response:
        """Return one workspace."""
        return answer(view(await caller.store.workspaces.get(workspace), now=services.clock.now()))

    @routes.patch(
        "/workspaces/{workspace}",
        "workspaces.update",
        returns=WorkspaceView,
        body=UpdateWorkspaceBody,
        errors=(404, 409),
    )
    async def update(caller: Caller, workspace: UUID) -> Response:
        """Rename a workspace, or change its idle stop; the installation's maximum applies."""
        body = await caller.read(UpdateWorkspaceBody, may=lambda: caller.store.workspaces.require_update(workspace))
        await caller.store.workspaces.require_update(workspace)
        if "name" in body.given and not workspaces.is_name(body.name):
            raise InvalidInput("name", workspaces.NAME_RULE)
        changed = await caller.store.workspaces.update(
            workspace,
            name=body.name if "name" in body.given else None,
            idle_stop_after=timedelta(seconds=body.idle_stop_after) if "idle_stop_after" in body.given else None,
        )
        return answer(view(changed, now=services.clock.now()))

    @routes.post(
        "/workspaces/{workspace}/start",
        "workspaces.start",
        returns=RequestedView,
        status=202,
        also=(200,),
        body=StartWorkspaceBody,
        errors=(404, 409, 412),
    )
    async def start(caller: Caller, workspace: UUID) -> Response:
        """Start a workspace, or return the start that is already in progress. 200 if it already runs."""
        body = await caller.read(StartWorkspaceBody, may=lambda: caller.store.workspaces.require_update(workspace))
        made = await services.workspaces.service.request_start(caller.store, workspace, parameters=body.parameters)
        return await _requested(caller, made, now=services.clock.now())

    @routes.post(
        "/workspaces/{workspace}/stop",
        "workspaces.stop",
        returns=RequestedView,
        status=202,
        also=(200,),
        errors=(404, 409),
    )
    async def stop(caller: Caller, workspace: UUID) -> Response:
        """Stop a workspace and keep its files. A start in progress is canceled. 200 if it is already stopped."""
        made = await services.workspaces.service.request_stop(caller.store, workspace)
        return await _requested(caller, made, now=services.clock.now())

    @routes.delete(
        "/workspaces/{workspace}",
        "workspaces.delete",
        returns=RequestedView,
        status=202,
        errors=(404, 409),
    )
    async def delete(caller: Caller, workspace: UUID, force: bool = False) -> Response:
        """Delete a workspace with its files. 409 while a chat works in it, unless `force`.

        With `force` it is deleted even if its machine cannot be reached by ssh; its files then stay on that machine.
        """
        made = await services.workspaces.service.request_delete(caller.store, workspace, force=force)
        return await _requested(caller, made, now=services.clock.now())

    return routes


def view(stored: StoredWorkspace, *, now: datetime) -> WorkspaceView:
    operation = operation_view(stored.operation)
    return _view(
        stored.workspace,
        stored.owner,
        chats=stored.chat_ids,
        operation=operation,
        startup_operation=stored.startup_operation,
        now=now,
    )


def _view(
    row: Workspace,
    owner: PublicUser | None,
    *,
    chats: tuple[UUID, ...],
    operation: OperationView | None,
    startup_operation: UUID | None = None,
    now: datetime,
) -> WorkspaceView:
    return WorkspaceView(
        id=row.id,
        owner=owner,
        name=row.name,
        template=row.template,
        template_revision=row.template_revision,
        driver=row.driver,
        # Rows from before secrets were stored separately may hold credentials.
        parameters={name: masked(value) for name, value in row.parameters.items()},
        status=row.status,
        error=row.error,
        error_code=row.error_code,
        warning=row.warnings(now),
        agent_state=row.agent_state,
        startup_exit_code=row.startup_exit_code,
        os=row.os,
        arch=row.arch,
        directory=row.directory,
        network=row.network,
        idle_stop_after=row.idle_stop_after.total_seconds(),
        stops_at=row.stops_at,
        last_used_at=row.last_used_at,
        started_at=row.started_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
        chats=chats,
        operation=operation,
        startup_operation=startup_operation,
    )


def _made(caller: Caller, requested: Requested, *, now: datetime) -> RequestedView:
    """Return a workspace that was just created. It belongs to the caller, and no chat is bound to it."""
    me = PublicUser(caller.user.id, caller.user.username, caller.user.name)
    operation = operation_view(requested.operation)
    made = _view(requested.workspace, me, chats=(), operation=operation, now=now)
    return RequestedView(workspace=made, operation=operation)


def _created(caller: Caller, made: Requested | Replayed, *, now: datetime) -> Response:
    if isinstance(made, Requested):
        return answer(_made(caller, made, now=now), 202, Location=_location(made.workspace.id))
    workspace_id = msgspec.json.decode(made.answer, type=_Made).workspace.id
    named = {"Location": _location(workspace_id), "Idempotency-Replayed": "true"}
    return Response(made.answer, 202, named, media_type="application/json")


class _Identity(msgspec.Struct):
    id: UUID


class _Made(msgspec.Struct):
    workspace: _Identity


async def _requested(caller: Caller, made: Requested, *, now: datetime) -> Response:
    """Return 202 with the operation, or 200 if there was nothing to do. The view depends on the caller's rights."""
    me = PublicUser(caller.user.id, caller.user.username, caller.user.name)
    is_own = made.workspace.owner_id == caller.user.id
    shown = (
        _view(made.workspace, me, chats=(), operation=operation_view(made.operation), now=now)
        if is_own and not has_scope(caller.actor, Resource.WORKSPACE, Action.READ)
        else view(await caller.store.workspaces.get(made.workspace.id), now=now)
    )
    operation = operation_view(made.operation)
    return answer(RequestedView(workspace=shown, operation=operation), 202 if operation is not None else 200)


def _location(workspace_id: UUID) -> str:
    return f"{PREFIX}/workspaces/{workspace_id}"


def _user_id(owner: str) -> UUID:
    try:
        return UUID(owner)
    except ValueError:
        raise InvalidInput("owner", "This is neither the id of a user nor `all`.") from None
