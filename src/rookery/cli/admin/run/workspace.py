"""The workspace of a chat that a command drives: what the turn started is stopped at its end.

A server stops workspaces that nobody uses; a command ends, and with no server behind it nobody would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from rookery.app.replica import Replica
from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId
from rookery.store.people.errors import AccessError
from rookery.store.workspaces import context
from rookery.store.workspaces.requests import OperationInProgress
from rookery.store.workspaces.workspaces import Status

# Chosen: a workspace gets ten seconds to end its processes; what takes longer goes on without the command.
STOP_SECONDS = 60.0


class Life(NamedTuple):
    """A workspace and which of its lives: each start is another. Without a life it is down."""

    workspace_id: UUID
    generation: int | None


async def find_life(replica: Replica, chat_id: ChatId) -> Life | None:
    """That of the chat's workspace; None when it has none."""
    async with replica.database.api.acquire() as conn:
        workspace_id = (await context.read_pin(conn, chat_id)).workspace_id
    workspace = None if workspace_id is None else await replica.workspaces.service.find_workspace(workspace_id)
    if workspace is None or workspace.status == Status.DELETED:
        return None
    is_down = workspace.status == Status.STOPPED
    return Life(workspace.id, None if is_down else workspace.generation)


async def stop_started(replica: Replica, chat: Chat, *, before: Life | None, say: Callable[[str], None]) -> None:
    """Stop the chat's workspace, unless it is down or lived before the turn."""
    life = await find_life(replica, chat.id)
    if life is None or life.generation is None or life == before:
        return
    service, store = replica.workspaces.service, replica.store.as_actor(OwnerActor(chat.owner_id))
    say("stopping the workspace")
    try:
        try:
            operation = (await service.request_stop(store, life.workspace_id)).operation
        except OperationInProgress as error:
            # The turn was stopped while it was being made.
            await service.wait_operation(error.operation.id, seconds=STOP_SECONDS)
            operation = (await service.request_stop(store, life.workspace_id)).operation
    except AccessError as error:
        say(f"the workspace is not stopped: {error}")
        return
    if operation is not None and (await service.wait_operation(operation.id, seconds=STOP_SECONDS)).operation.is_open:
        say("the workspace is not down yet; a server that runs will see to it")
