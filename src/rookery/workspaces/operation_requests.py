"""Requests of API routes and tools for workspaces: checks parameters, creates operations, and waits for them.

Callers pass the store of their actor, which checks rights. The service calls no driver or agent; the executor on the
workspace's node does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID, uuid4

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import DeadlineExceeded
from rookery.store.authorized.actor_store import ActorStore
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.db.hints import MiscHint
from rookery.store.db.idempotency import Request
from rookery.store.people.errors import AlreadyExists
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces.lifecycle_requests import Draft, Requested, StartPlan
from rookery.store.workspaces.operation_rows import Operation, Reason
from rookery.store.workspaces.templates import Push, Revision, Template, TemplateNotFound
from rookery.store.workspaces.workspaces import SCRIPT_ENDED, Status, Workspace
from rookery.workspaces import generated_names, network_levels, shared_folders, templates
from rookery.workspaces import manifest as manifests
from rookery.workspaces import start_parameters as workspace_parameters
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.manifest import Manifest
from rookery.workspaces.network_levels import Network
from rookery.workspaces.shared_services import WorkspaceServices
from rookery.workspaces.template_errors import ParametersInvalid, Problem

T = TypeVar("T")

# Changes are announced by hints. Polling finds them if a hint is lost.
POLL_SECONDS = 2.0
# The number of names that are generated before a request fails, because its owner has them all.
NAME_TRIES = 8


class WaitResult(msgspec.Struct, frozen=True):
    """The result of a wait. `operation` is still open if the time limit was reached."""

    operation: Operation
    workspace: Workspace


class Workspaces:
    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts

    def granted_network(self, manifest: Manifest) -> Network:
        """Return the network level that workspaces of a template get, which may be lower than requested."""
        asked, driver = manifest.sandbox.network, self._parts.drivers.get(manifest.driver)
        return network_levels.lowered(asked, driver.network_max) if isinstance(driver, LocalDriver) else asked

    async def request_create(
        self,
        store: ActorStore,
        owner_id: UUID,
        *,
        template: str,
        name: str | None = None,
        parameters: Mapping[str, object] | None = None,
        preset_id: str | None = None,
        for_agent: bool = False,
        workspace_id: UUID | None = None,
        chat_id: ChatId | None = None,
        reason: Reason = Reason.USER,
        request: Request | None = None,
        encode: Callable[[Requested], bytes] | None = None,
    ) -> Requested | Replayed:
        """Create a workspace and its first operation, and bind the chat to it, in one transaction.

        Without a name, one is generated. A repeated `workspace_id` returns the result of the first request. Raise
        `ParametersInvalid` with all problems of the request.
        """
        self._parts.specs.check_ring()
        found = await self.get_template(store, template, for_agent=for_agent)
        manifest = manifests.decode(found.manifest)
        problems: list[Problem] = []
        if name is not None and not workspaces.is_name(name):
            problems.append(Problem("name", workspaces.NAME_RULE))
        try:
            resolved = workspace_parameters.resolve(
                manifest, parameters or {}, preset_id=preset_id, shared_folders=self._parts.shared_folders
            )
        except ParametersInvalid as error:
            raise ParametersInvalid([*problems, *error.problems], template=template) from None
        if problems:
            raise ParametersInvalid(problems, template=template)
        draft_id = workspace_id or uuid4()
        draft = Draft(
            id=draft_id,
            owner_id=owner_id,
            name=name or "",
            template=found.name,
            revision=found.revision,
            driver=manifest.driver,
            node=self._parts.node if manifest.driver == "local" else None,
            parameters=resolved.stored,
            secrets_enc=self._parts.specs.seal_secrets(draft_id, resolved.secrets),
            once=resolved.once,
            once_secrets_enc=self._parts.specs.seal_secrets(
                draft_id, resolved.once_secrets, table=operation_rows.TABLE
            ),
            idle_stop_after=manifest.idle_stop_after,
        )
        for attempt in range(NAME_TRIES):
            if name is None:
                draft = msgspec.structs.replace(draft, name=generated_names.generate(attempt))
            try:
                return await store.workspaces.create(
                    draft, reason=reason, chat_id=chat_id, request=request, encode=encode
                )
            except AlreadyExists:
                if name is not None or attempt == NAME_TRIES - 1:
                    raise
        raise AssertionError("The last try returns or raises.")

    async def request_start(
        self,
        store: ActorStore,
        workspace_id: UUID,
        *,
        parameters: Mapping[str, object] | None = None,
        reason: Reason = Reason.USER,
    ) -> Requested:
        """Start the workspace, or return its open start operation. Raise `ParametersInvalid` with all problems."""
        self._parts.specs.check_ring()

        def plan(workspace: Workspace, template: Template | None, recorded: Revision | None) -> StartPlan:
            revision, manifest = _to_start(workspace, template, recorded)
            specs = self._parts.specs
            resolved = workspace_parameters.resolve(
                manifest,
                parameters or {},
                stored=specs.find_parameters(workspace),
                shared_folders=self._parts.shared_folders,
            )
            return StartPlan(
                revision=revision,
                parameters=resolved.stored,
                secrets_enc=specs.seal_secrets(workspace.id, resolved.secrets),
                once=resolved.once,
                once_secrets_enc=specs.seal_secrets(workspace.id, resolved.once_secrets, table=operation_rows.TABLE),
            )

        return await store.workspaces.start(workspace_id, plan, reason=reason)

    async def request_stop(self, store: ActorStore, workspace_id: UUID, *, reason: Reason = Reason.USER) -> Requested:
        return await store.workspaces.stop(workspace_id, reason=reason)

    async def request_delete(
        self, store: ActorStore, workspace_id: UUID, *, force: bool = False, reason: Reason = Reason.USER
    ) -> Requested:
        return await store.workspaces.delete(workspace_id, force=force, reason=reason)

    async def get_template(self, store: ActorStore, name: str, *, for_agent: bool = False) -> Template:
        """Return an enabled template that the actor may use. With `for_agent` it must also be available to chats."""
        found = await store.templates.get(name)
        if not found.enabled or (for_agent and (found.deprecated or not found.agents_allowed)):
            raise TemplateNotFound(name)
        return found

    async def push_template(self, store: ActorStore, files: Mapping[str, templates.TemplateFile]) -> Template:
        """Check and store a template. Raise `TemplateInvalid` with the problems of its files, or else of its binds."""
        packed = await asyncio.to_thread(templates.pack, files)
        shared_folders.check_template(packed.manifest, self._parts.shared_folders)
        return await store.templates.push(as_push(packed))

    async def find_workspace(self, workspace_id: UUID) -> Workspace | None:
        """Return the current row, even if it is deleted. The caller checks rights."""
        async with self._parts.pool.acquire() as conn:
            return await workspaces.find_workspace(conn, workspace_id)

    async def find_open_operation(self, workspace_id: UUID) -> Operation | None:
        async with self._parts.pool.acquire() as conn:
            return await operation_rows.find_open(conn, workspace_id)

    async def find_requested(self, workspace_id: UUID) -> Requested | None:
        """Return a workspace that an earlier request created, with its last operation. The caller checks rights."""
        async with self._parts.pool.acquire() as conn:
            found = await workspaces.find_workspace(conn, workspace_id)
            return None if found is None else Requested(found, await operation_rows.find_last(conn, workspace_id))

    async def touch(self, workspace_id: UUID) -> None:
        """Store the current time as the last use of the workspace."""
        async with self._parts.pool.acquire() as conn:
            await workspaces.touch(conn, workspace_id, now=self._parts.clock.now())

    async def wait_operation(self, operation_id: UUID, *, seconds: float) -> WaitResult:
        """Wait at most `seconds` until the operation is over. The operation continues after a timeout."""
        async with self._parts.pool.acquire() as conn:
            workspace_id = (await operation_rows.get_operation(conn, operation_id)).workspace_id

        async def read() -> WaitResult | None:
            async with self._parts.pool.acquire() as conn:
                operation = await operation_rows.get_operation(conn, operation_id)
                found = WaitResult(operation, await workspaces.get_workspace(conn, workspace_id))
            return None if operation.is_open else found

        waited = await self._until(workspace_id, read, seconds=seconds)
        if waited is not None:
            return waited
        async with self._parts.pool.acquire() as conn:
            operation = await operation_rows.get_operation(conn, operation_id)
            return WaitResult(operation, await workspaces.get_workspace(conn, workspace_id))

    async def wait_ready(self, workspace_id: UUID, *, seconds: float) -> Workspace:
        """Wait until the startup script is over, the workspace is not running any more, or the time is over."""

        async def read() -> Workspace | None:
            async with self._parts.pool.acquire() as conn:
                found = await workspaces.get_workspace(conn, workspace_id)
            is_over = found.status != Status.RUNNING or found.agent_state in SCRIPT_ENDED
            return found if is_over else None

        ready = await self._until(workspace_id, read, seconds=seconds)
        if ready is not None:
            return ready
        async with self._parts.pool.acquire() as conn:
            return await workspaces.get_workspace(conn, workspace_id)

    @asynccontextmanager
    async def change_event(self, workspace_id: UUID) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set when the workspace may have changed."""
        changed = asyncio.Event()

        def on_hint(_: object = None) -> None:
            changed.set()

        bus = self._parts.bus
        with (
            bus.subscribe(MiscHint, on_hint, key=workspaces.topic(workspace_id)),
            bus.on_resync(on_hint),
        ):
            yield changed

    async def wait_change(self, changed: asyncio.Event, *, seconds: float = POLL_SECONDS) -> None:
        """Wait until the event of `change_event` is set, or the time is over."""
        try:
            async with self._parts.clock.deadline(seconds, "workspace-wait"):
                await changed.wait()
        except DeadlineExceeded:
            pass

    async def _until(self, workspace_id: UUID, read: Callable[[], Awaitable[T | None]], *, seconds: float) -> T | None:
        until = self._parts.clock.monotonic() + seconds
        async with self.change_event(workspace_id) as changed:
            while True:
                changed.clear()
                if (found := await read()) is not None:
                    return found
                left = until - self._parts.clock.monotonic()
                if left <= 0:
                    return None
                await self.wait_change(changed, seconds=min(left, POLL_SECONDS))


def as_push(packed: templates.Packed) -> Push:
    return Push(
        name=packed.manifest.name,
        revision=packed.revision,
        manifest=manifests.encode(packed.manifest),
        readme=packed.readme,
        archive=packed.archive,
    )


def _to_start(workspace: Workspace, template: Template | None, recorded: Revision | None) -> tuple[str, Manifest]:
    """Return the revision and manifest for a start: the newest if `update_on_start` is set, else the recorded one."""
    if template is not None:
        newest = manifests.decode(template.manifest)
        if newest.update_on_start and newest.driver == workspace.driver:
            return template.revision, newest
    if recorded is None:
        raise TemplateNotFound(workspace.template or "")
    return recorded.revision, manifests.decode(recorded.manifest)
