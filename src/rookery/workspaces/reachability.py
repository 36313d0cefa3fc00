"""The workspace of a chat as somebody looks into it beside its turns: only one that runs and answers is of use."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.messages import ChatId
from rookery.store.workspaces.workspaces import Status
from rookery.workspaces.connection import Place, Unreadable
from rookery.workspaces.directory import StorePlaces
from rookery.workspaces.errors import NotWatchable


async def find_reachable(places: StorePlaces, chat_id: ChatId) -> Place:
    """Where the chat works now. `NotWatchable` says why there is nobody to ask."""
    try:
        workspace_id = await places.find_binding(chat_id)
    except Unreadable as error:
        raise _unread(error) from error
    if workspace_id is None:
        raise NotWatchable("no_workspace", "This chat has no workspace.")
    return await require_reachable(places, workspace_id)


async def require_reachable(places: StorePlaces, workspace_id: UUID) -> Place:
    """The workspace, if it can be asked now. `NotWatchable` says why not."""
    try:
        place = await places.find(workspace_id)
    except Unreadable as error:
        raise _unread(error) from error
    if place is None or place.status == Status.DELETED:
        raise NotWatchable("no_workspace", "There is no workspace any more.")
    if place.status != Status.RUNNING:
        raise NotWatchable("workspace_not_running", f"The workspace {place.name} does not run. Start it first.")
    if not place.is_reachable:
        message = f"The workspace {place.name} is on another machine, which this server cannot reach."
        raise NotWatchable("agent_unreachable", message)
    return place


def _unread(error: Unreadable) -> NotWatchable:
    return NotWatchable("agent_unreachable", f"The state of the workspace cannot be read: {error}")
