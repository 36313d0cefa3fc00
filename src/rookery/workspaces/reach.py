"""The workspace of a chat as somebody looks into it beside its turns: only one that runs and answers is of use."""

from __future__ import annotations

from rookery.chat.messages import ChatId
from rookery.store.workspaces import Status
from rookery.workspaces.dialing import Place, Unreadable
from rookery.workspaces.errors import NotWatchable
from rookery.workspaces.places import StorePlaces


async def find_reachable(places: StorePlaces, chat_id: ChatId) -> Place:
    """Where the chat works now. `NotWatchable` says why there is nobody to ask."""
    try:
        workspace_id = await places.find_binding(chat_id)
        place = await places.find(workspace_id) if workspace_id is not None else None
    except Unreadable as error:
        raise NotWatchable("agent_unreachable", f"The state of the workspace cannot be read: {error}") from error
    if place is None or place.status == Status.DELETED:
        raise NotWatchable("no_workspace", "This chat has no workspace.")
    if place.status != Status.RUNNING:
        raise NotWatchable("workspace_not_running", f"The workspace {place.name} does not run. Start it first.")
    if not place.is_reachable:
        message = f"The workspace {place.name} is on another machine, which this server cannot reach."
        raise NotWatchable("agent_unreachable", message)
    return place
