"""The cleanup of a chat's workspace after `rookery admin run`: a workspace that the turn started is stopped.

A server stops idle workspaces; after this command ends, there may be no server to do that.
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

# Chosen: a workspace gets ten seconds to end its processes; the command does not wait longer.
STOP_SECONDS = 60.0


class WorkspaceBoot(NamedTuple):
    """A workspace and its boot: each start is another. None: it is stopped."""

    workspace_id: UUID
    generation: int | None


async def find_boot(replica: Replica, chat_id: ChatId) -> WorkspaceBoot | None:
    """Return the state of the chat's workspace; None if it has none."""
    async with replica.database.api.acquire() as conn:
        workspace_id = (await context.read_pin(conn, chat_id)).workspace_id
    workspace = None if workspace_id is None else await replica.workspaces.service.find_workspace(workspace_id)
    if workspace is None or workspace.status == Status.DELETED:
        return None
    is_down = workspace.status == Status.STOPPED
    return WorkspaceBoot(workspace.id, None if is_down else workspace.generation)


async def stop_started(
    replica: Replica, chat: Chat, *, before: WorkspaceBoot | None, say: Callable[[str], None]
) -> None:
    """Stop the chat's workspace, unless it is stopped or ran before the turn."""
    boot = await find_boot(replica, chat.id)
    if boot is None or boot.generation is None or boot == before:
        return
    service, store = replica.workspaces.service, replica.store.as_actor(OwnerActor(chat.owner_id))
    say("stopping the workspace")
    try:
        try:
            operation = (await service.request_stop(store, boot.workspace_id)).operation
        except OperationInProgress as error:
            # The turn was stopped while the workspace was being created.
            await service.wait_operation(error.operation.id, seconds=STOP_SECONDS)
            operation = (await service.request_stop(store, boot.workspace_id)).operation
    except AccessError as error:
        say(f"the workspace could not be stopped: {error}")
        return
    if operation is not None and (await service.wait_operation(operation.id, seconds=STOP_SECONDS)).operation.is_open:
        say("the workspace is still stopping; a running server will finish that")
