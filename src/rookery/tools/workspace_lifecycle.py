"""The tools create_workspace, start_workspace and stop_workspace, for the workspace that a chat is bound to.

Calls of one chat run one after the other. Concurrent actions of other chats, users and the idle stop are serialized by
the row lock of the workspace. A workspace that has run is replaced only if the model asks for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta, Raw

from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import ChatId
from rookery.loop.tool import Replay, Tool, ToolContext, ToolOutput
from rookery.store.authorized.actor_store import ActorStore
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.people.errors import AccessError, AlreadyExists, Missing
from rookery.store.workspaces.lifecycle_requests import (
    NodeOffline,
    OperationInProgress,
    Requested,
    WorkspaceQuotaExceeded,
)
from rookery.store.workspaces.operation_rows import Operation, OperationState, Reason
from rookery.store.workspaces.workspaces import AgentState, Status, Workspace, is_name
from rookery.telemetry.log import get_logger
from rookery.tools.framework import BadArguments, decode_arguments
from rookery.tools.step_workspace import Refused, StepContext, ask_agent, make_tool, step_of
from rookery.tools.templates import no_template
from rookery.workspaces import manifest as manifests
from rookery.workspaces import start_parameters
from rookery.workspaces.connection import SILENT
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.operation_requests import Workspaces
from rookery.workspaces.template_errors import ParametersInvalid

log = get_logger("tools.workspace_lifecycle")

OPERATION_SECONDS = 600.0
AGENT_SECONDS = 120.0
SCRIPT_SECONDS = 600.0
# Interval at which the log of an operation is read for its viewers.
LOG_SECONDS = 0.5
# Chosen: a failing installation reports the reason in its last lines.
STARTUP_OUTPUT_CHARS = 2000
# The time limit of all waits of one call, and of the requests between them.
DEADLINE_SECONDS = OPERATION_SECONDS * 2 + AGENT_SECONDS + SCRIPT_SECONDS + 60.0

CREATE = "create_workspace"
Parameters = Annotated[dict[str, Any], Meta(description="Values for the template's parameters, by name.")]


class CreateWorkspace(msgspec.Struct):
    template_id: Annotated[str, Meta(description="The id as list_templates gives it.")]
    name: Annotated[str, Meta(description="Lowercase letters, digits and hyphens; made up if left out.")] | None = None
    parameters: Parameters = {}
    preset_id: str | None = None
    new: Annotated[bool, Meta(description="Make another one although the chat has one: if the user asked.")] = False


class StartWorkspace(msgspec.Struct):
    parameters: Annotated[dict[str, Any], Meta(description="Parameters to change, if the template lets them.")] = {}


class StopWorkspace(msgspec.Struct):
    pass


class Failed(Refused):
    """Raised for a refusal that has a structured result."""

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value["error"])
        self.value = value


def tools() -> list[Tool]:
    return [
        make_tool(
            CREATE,
            "Make a workspace from a template for this chat and wait until it is ready. When the chat has one already, "
            "nothing is made and the result says what to do.",
            arguments=CreateWorkspace,
            handler=create_workspace,
            replay=Replay.TOKEN,
            deadline_seconds=DEADLINE_SECONDS,
        ),
        make_tool(
            "start_workspace",
            "Start the workspace of this chat and wait until it is ready. Its files are as they were.",
            arguments=StartWorkspace,
            handler=start_workspace,
            replay=Replay.TOKEN,
            deadline_seconds=DEADLINE_SECONDS,
        ),
        make_tool(
            "stop_workspace",
            "Stop the workspace of this chat. All its processes end; its files stay. Only when the user asks for it, "
            "or to recover a workspace that does not answer.",
            arguments=StopWorkspace,
            handler=stop_workspace,
            replay=Replay.TOKEN,
            deadline_seconds=DEADLINE_SECONDS,
        ),
    ]


async def create_workspace(ctx: ToolContext, given: CreateWorkspace) -> ToolOutput:
    step = step_of(ctx)
    own_id = _own_id(ctx.replay_token)
    async with step.admin.lock:
        bound = await _find_bound(step)
        if bound is not None and bound.id != own_id and not given.new and not _is_replaceable(bound):
            existing = await _existing_result(ctx, step, bound)
            if existing is not None:
                return existing
        return await _as_output(_create(ctx, step, given, workspace_id=own_id))


async def _create(ctx: ToolContext, step: StepContext, given: CreateWorkspace, *, workspace_id: UUID) -> dict[str, Any]:
    template = given.template_id.strip()
    if not template:
        raise Refused("The template_id is blank. Use list_templates to find one.")
    name = (given.name or "").strip()
    # The user may have created it already, with values that the call did not have.
    made = await step.admin.service.find_requested(workspace_id)
    if made is None or made.workspace.status == Status.DELETED:
        made = await _request(step, given, template, name if is_name(name) else None, workspace_id)
    step.workspace.bind(made.workspace.id)
    workspace = await _wait(ctx, step, made.workspace, made.operation)
    value: dict[str, Any] = {
        "created": True,
        "workspace_name": workspace.name,
        "workspace_id": str(workspace.id),
        **({"operation_id": str(made.operation.id)} if made.operation is not None else {}),
    }
    return value | await _wait_ready(step, workspace)


async def _request(
    step: StepContext, given: CreateWorkspace, template: str, name: str | None, workspace_id: UUID
) -> Requested:
    admin = step.admin
    try:
        made = await admin.service.request_create(
            admin.store,
            step.owner_id,
            template=template,
            name=name,
            parameters=given.parameters,
            preset_id=given.preset_id,
            for_agent=True,
            workspace_id=workspace_id,
            chat_id=step.chat_id,
            reason=Reason.CHAT,
        )
    except AlreadyExists:
        if name is None:
            raise
        # The name is taken. A workspace with another name is more useful to the model than a refusal.
        return await _request(step, given, template, None, workspace_id)
    except Missing as error:
        raise no_template(template) from error
    assert not isinstance(made, Replayed)
    return made


async def lacks_parameters(step: StepContext, args: Raw, *, token: UUID) -> bool:
    """Return whether a call of create_workspace needs values from the user: a required parameter has none."""
    try:
        given = decode_arguments(CreateWorkspace, args)
        bound = await _find_bound(step)
        if bound is not None and not given.new and not _is_replaceable(bound):
            return False
        if await step.admin.service.find_workspace(_own_id(token)) is not None:
            return False
        found = await step.admin.service.get_template(step.admin.store, given.template_id.strip(), for_agent=True)
    except (BadArguments, Refused, AccessError, ChatError):
        return False  # the call itself returns the error
    manifest = manifests.decode(found.manifest)
    return bool(start_parameters.missing(manifest, given.parameters, preset_id=given.preset_id))


async def create_asked(
    service: Workspaces,
    store: ActorStore,
    owner_id: UUID,
    *,
    chat_id: ChatId,
    token: UUID,
    args: Raw,
    values: Mapping[str, Any],
) -> None:
    """Create the workspace that a call asks for, with the user's values over those of the call.

    The call finds the workspace by its id. A repeat creates no second one. Raise `ParametersInvalid`.
    """
    try:
        given = decode_arguments(CreateWorkspace, args)
    except BadArguments:
        return  # the call itself returns the error
    name = (given.name or "").strip()
    request = partial(
        service.request_create,
        store,
        owner_id,
        template=given.template_id.strip(),
        parameters={**given.parameters, **values},
        preset_id=given.preset_id,
        for_agent=True,
        workspace_id=_own_id(token),
        chat_id=chat_id,
        reason=Reason.CHAT,
    )
    try:
        await request(name=name if is_name(name) else None)
    except AlreadyExists:
        await request(name=None)


def _own_id(token: UUID) -> UUID:
    """Return the id of the workspace that the call with this replay token creates."""
    return uuid5(token, "workspace")


async def start_workspace(ctx: ToolContext, given: StartWorkspace) -> ToolOutput:
    step = step_of(ctx)
    async with step.admin.lock:
        return await _as_output(_start(ctx, step, given))


async def _start(ctx: ToolContext, step: StepContext, given: StartWorkspace) -> dict[str, Any]:
    bound = await _require_bound(step)
    # After a stop that is in progress, the workspace can be started.
    if (open_operation := await step.admin.service.find_open_operation(bound.id)) is not None:
        bound = _require_not_deleted(
            await _wait(ctx, step, bound, open_operation, must_succeed=open_operation.is_start)
        )
        if open_operation.is_start:
            return await _started(step, bound, open_operation)
    before = bound.template_revision
    admin = step.admin
    try:
        made = await admin.service.request_start(admin.store, bound.id, parameters=given.parameters, reason=Reason.CHAT)
    except OperationInProgress as error:
        made = Requested(bound, error.operation)
    workspace = await _wait(ctx, step, made.workspace, made.operation)
    value = await _started(step, workspace, made.operation)
    if made.operation is not None and before is not None and workspace.template_revision != before:
        value["template_updated"] = True
        value["message"] = "The workspace was started with a newer revision of its template."
    return value


async def _started(step: StepContext, workspace: Workspace, operation: Operation | None) -> dict[str, Any]:
    value: dict[str, Any] = {"started": True, "workspace_name": workspace.name}
    value |= {"no_operation": True} if operation is None else {"operation_id": str(operation.id)}
    return value | await _wait_ready(step, workspace)


async def stop_workspace(ctx: ToolContext, given: StopWorkspace) -> ToolOutput:
    step = step_of(ctx)
    async with step.admin.lock:
        return await _as_output(_stop(ctx, step))


async def _stop(ctx: ToolContext, step: StepContext) -> dict[str, Any]:
    bound = await _require_bound(step)
    service, store = step.admin.service, step.admin.store
    if (open_operation := await service.find_open_operation(bound.id)) is not None:
        # The status of the row matters here, not the result of the operation.
        bound = _require_not_deleted(await _wait(ctx, step, bound, open_operation, must_succeed=False))
    if bound.status == Status.STOPPED:
        return {"stopped": True, "no_operation": True, "workspace_name": bound.name}
    made = await service.request_stop(store, bound.id, reason=Reason.CHAT)
    stopped = await _wait(ctx, step, made.workspace, made.operation)
    value: dict[str, Any] = {"stopped": True, "workspace_name": stopped.name}
    return value | ({"no_operation": True} if made.operation is None else {"operation_id": str(made.operation.id)})


# Waits


class OperationLog:
    """A context manager that publishes new lines of an operation's log as live output."""

    def __init__(self, ctx: ToolContext, store: ActorStore, operation_id: UUID) -> None:
        self._ctx = ctx
        self._store = store
        self._operation_id = operation_id
        self._shown = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="operation-tail")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while not await self._show():
                await self._ctx.clock.sleep(LOG_SECONDS, "operation-tail")
        except Exception as error:
            log.info("operation_tail_ended", chat_id=self._ctx.chat_id, error=str(error) or type(error).__name__)

    async def _show(self) -> bool:
        """Publish new lines. Return whether the log is complete."""
        found = await self._store.workspaces.read_log(self._operation_id)
        whole = found.dropped + len(found.text)
        if whole > self._shown:
            self._ctx.publish(found.text[max(self._shown - found.dropped, 0) :])
            self._shown = whole
        return found.is_over


async def _wait(
    ctx: ToolContext,
    step: StepContext,
    workspace: Workspace,
    operation: Operation | None,
    *,
    must_succeed: bool = True,
) -> Workspace:
    """Wait for the operation and return the workspace. Raise `Failed` if the operation failed or takes too long."""
    if operation is None:
        return workspace
    async with OperationLog(ctx, step.admin.store, operation.id):
        waited = await step.admin.service.wait_operation(operation.id, seconds=OPERATION_SECONDS)
    over, row = waited.operation, waited.workspace
    if over.state == OperationState.SUCCEEDED or not must_succeed:
        return row
    if over.is_open:
        error = (
            "The workspace is not ready after ten minutes. The operation continues; use start_workspace to wait for it."
        )
    else:
        error = over.error or f"The operation on the workspace {row.name} was {over.state}."
    raise Failed({"error": error, "operation_id": str(over.id), "workspace_name": row.name})


async def _wait_ready(step: StepContext, workspace: Workspace) -> dict[str, Any]:
    """Wait for the startup script, and return its result. A failed script is not an error: the workspace is usable."""
    ready = await step.admin.service.wait_ready(workspace.id, seconds=AGENT_SECONDS + SCRIPT_SECONDS)
    step.workspace.bind(workspace.id)
    warning = {} if ready.disk_warning is None else {"warning": f"{ready.disk_warning} Delete what is not needed."}
    result = _startup_result(ready)
    if "startup_script" in result:
        result |= await _startup_output(step)
    return result | warning


async def _startup_output(step: StepContext) -> dict[str, Any]:
    """Return the end of the startup script's output, which no other tool shows."""
    try:
        said = (await ask_agent(step.workspace, lambda conn: conn.script_log())).output.strip()
    except WorkspaceError:
        return {}
    return {"startup_output": said[-STARTUP_OUTPUT_CHARS:]} if said else {}


def _startup_result(ready: Workspace) -> dict[str, Any]:
    match ready.agent_state:
        case AgentState.READY if ready.status == Status.RUNNING:
            return {}
        case AgentState.SCRIPT_FAILED:
            code = {} if ready.startup_exit_code is None else {"startup_exit_code": ready.startup_exit_code}
            return {"startup_script": "failed", **code}
        case AgentState.SCRIPT_TIMEOUT:
            return {"startup_script": "timeout"}
        case _:
            return {"agent_status": "not_ready", "agent_error": ready.error or "The workspace is not ready yet."}


async def _as_output(work: Any) -> ToolOutput:
    """Await the result and return it, or its error in the documented form."""
    try:
        return ToolOutput(await work)
    except Failed as error:
        return ToolOutput(error.value, is_error=True)
    except ParametersInvalid as error:
        problems = [{"field": each.field, "detail": each.detail} for each in error.problems]
        text = f"These parameters cannot be used: {'; '.join(str(each) for each in error.problems)}"
        return ToolOutput({"error": text, "validations": problems, "template_id": error.template}, is_error=True)
    except WorkspaceQuotaExceeded as error:
        value = {
            "error": str(error),
            "error_code": "quota_exceeded",
            "title": "No room for another workspace",
            "message": f"{error} Or ask an administrator for a higher limit.",
            "quota": {"kind": error.kind, "used": error.used, "limit": error.limit},
        }
        return ToolOutput(value, is_error=True)
    except (OperationInProgress, NodeOffline, AccessError, ChatError, DriverError) as error:
        return ToolOutput({"error": str(error)}, is_error=True)


# The binding


async def _find_bound(step: StepContext) -> Workspace | None:
    """Return the current workspace of the chat, read from the database."""
    workspace_id = await step.admin.directory.find_binding(step.chat_id)
    return None if workspace_id is None else await step.admin.service.find_workspace(workspace_id)


async def _require_bound(step: StepContext) -> Workspace:
    bound = await _find_bound(step)
    if bound is None:
        raise Refused("This chat has no workspace. Use create_workspace first.")
    return _require_not_deleted(bound)


def _require_not_deleted(bound: Workspace) -> Workspace:
    if bound.status == Status.DELETED:
        raise Refused("The workspace of this chat was deleted. Use create_workspace to make a new one.")
    return bound


def _is_replaceable(bound: Workspace) -> bool:
    return bound.status == Status.DELETED or (bound.status == Status.FAILED and not bound.has_run)


async def _existing_result(ctx: ToolContext, step: StepContext, bound: Workspace) -> ToolOutput | None:
    """Return the result for a chat that has a workspace: its state, and the next action. None if it may be replaced."""
    service = step.admin.service
    value: dict[str, Any] = {"created": False, "workspace_name": bound.name, "workspace_id": str(bound.id)}
    if (open_operation := await service.find_open_operation(bound.id)) is not None:
        value["operation_id"] = str(open_operation.id)
        try:
            bound = await _wait(ctx, step, bound, open_operation)
        except Failed as error:
            return ToolOutput({**value, **error.value}, is_error=True)
    if _is_replaceable(bound):
        return None
    if bound.status == Status.RUNNING:
        if _is_silent(ctx, bound):
            message = "The workspace does not answer: use stop_workspace, then start_workspace."
            return ToolOutput({**value, "status": "unreachable", "message": message})
        return ToolOutput({**value, "status": "already_exists", **await _wait_ready(step, bound)})
    why = f" ({bound.error})" if bound.error else ""
    message = f"The chat has a workspace that does not run{why}. Its files are kept: use start_workspace."
    return ToolOutput({**value, "status": str(bound.status), "message": message})


def _is_silent(ctx: ToolContext, bound: Workspace) -> bool:
    seen = bound.last_seen_at or bound.started_at
    is_unheard = seen is not None and ctx.clock.now() - seen >= SILENT
    return bound.agent_state == AgentState.UNREACHABLE and is_unheard
