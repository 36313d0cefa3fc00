"""Lookup of a workspace that is running and reachable now, for file and git views outside of turns."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.messages import ChatId
from rookery.store.workspaces.workspaces import Status
from rookery.workspaces.connection import Unreadable, WorkspaceLocation
from rookery.workspaces.directory import StoreWorkspaceDirectory
from rookery.workspaces.errors import NotWatchable


async def find_reachable(directory: StoreWorkspaceDirectory, chat_id: ChatId) -> WorkspaceLocation:
    """Return the location of the chat's workspace, or raise `NotWatchable` with the reason."""
    try:
        workspace_id = await directory.find_binding(chat_id)
    except Unreadable as error:
        raise _unread(error) from error
    if workspace_id is None:
        raise NotWatchable("no_workspace", "This chat has no workspace.")
    return await require_reachable(directory, workspace_id)


async def require_reachable(directory: StoreWorkspaceDirectory, workspace_id: UUID) -> WorkspaceLocation:
    """Return the location of the workspace, or raise `NotWatchable` with the reason."""
    try:
        location = await directory.find(workspace_id)
    except Unreadable as error:
        raise _unread(error) from error
    if location is None or location.status == Status.DELETED:
        raise NotWatchable("no_workspace", "There is no workspace any more.")
    if location.status != Status.RUNNING:
        raise NotWatchable("workspace_not_running", f"The workspace {location.name} does not run. Start it first.")
    if not location.is_reachable:
        message = f"The workspace {location.name} is on another machine, which this server cannot reach."
        raise NotWatchable("agent_unreachable", message)
    return location


def _unread(error: Unreadable) -> NotWatchable:
    return NotWatchable("agent_unreachable", f"The state of the workspace cannot be read: {error}")
