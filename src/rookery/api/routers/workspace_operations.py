"""Operations on workspaces: their state and their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import msgspec
from starlette.responses import Response, StreamingResponse

from rookery.api.caller import Caller
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.store.workspaces.operation_rows import Operation
from rookery.stream.access_monitor import Grant, Right

TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream"
# A keep-alive for proxies that close silent connections.
QUIET_SECONDS = 15.0


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a workspace: `kind` is create, start, stop or delete.

    `state` is queued, running, succeeded, failed or canceled; `reason` is the origin of the request.
    """

    id: UUID
    workspace_id: UUID
    kind: str
    state: str
    reason: str
    error: str | None
    error_code: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def operation_view(operation: Operation | None) -> OperationView | None:
    return None if operation is None else _view(operation)


def router(services: ApiServices) -> Routes:
    routes = Routes("workspaces")

    @routes.get("/operations/{operation}", "operations.get", returns=OperationView, errors=(404,))
    async def get(caller: Caller, operation: UUID) -> Response:
        """Return the state of an operation."""
        return answer(_view(await caller.store.workspaces.get_operation(operation)))

    @routes.get("/operations/{operation}/log", "operations.log", returns=str, media_type=TEXT, errors=(404,))
    async def log(caller: Caller, operation: UUID, follow: bool = False) -> Response:
        """Return the log of an operation, its last 256 KiB.

        With `follow=true`, return server-sent events until the operation and its startup script have ended: `log` with
        new text, then `end` with the state.
        """
        found = await caller.store.workspaces.read_log(operation)
        if not follow:
            return Response(found.text, media_type=TEXT)
        events = _follow(caller, services, operation)
        return StreamingResponse(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})

    return routes


async def _follow(caller: Caller, services: ApiServices, operation_id: UUID) -> AsyncIterator[bytes]:
    """Yield each piece of the log once. Rights and the credential are checked again with every read."""
    store, service = caller.own_store.workspaces, services.workspaces.service
    login = Grant(user_id=caller.user.id, credential=str(caller.credential_id))
    seen = 0
    first = await store.get_operation(operation_id)
    async with service.change_event(first.workspace_id) as changed:
        while True:
            changed.clear()
            if await services.streams.services.check([login]) != [Right.KEPT]:
                return
            found = await store.read_log(operation_id)
            whole = found.text.encode()
            fresh = whole[max(seen - found.dropped, 0) :]
            seen = found.dropped + len(whole)
            if fresh:
                yield _event("log", fresh.decode(errors="replace"))
            if found.is_over:
                state = (await store.get_operation(operation_id)).state
                yield _event("end", state)
                return
            if not fresh:
                yield b": still here\n\n"
            await service.wait_change(changed, seconds=QUIET_SECONDS if fresh else 2.0)


def _event(name: str, text: str) -> bytes:
    return f"event: {name}\ndata: {msgspec.json.encode(text).decode()}\n\n".encode()


def _view(operation: Operation) -> OperationView:
    return OperationView(
        id=operation.id,
        workspace_id=operation.workspace_id,
        kind=operation.kind,
        state=operation.state,
        reason=operation.reason,
        error=operation.error,
        error_code=operation.error_code,
        created_at=operation.created_at,
        started_at=operation.started_at,
        finished_at=operation.finished_at,
    )
