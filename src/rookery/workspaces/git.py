"""The state of a chat's repositories, asked of its workspace: one fresh scan, or nothing when nobody answers."""

from __future__ import annotations

from rookery.chat.messages import ChatId
from rookery.log import get_logger
from rookery.store.chat_diffs import DiffStatus
from rookery.store.workspaces import Status
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.answers import Repository
from rookery.workspaces.dialing import Unreadable
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.parts import WorkspaceParts
from rookery.workspaces.places import StorePlaces

log = get_logger("workspaces.git")

SCAN_SECONDS = 10.0


class ChatGit:
    def __init__(self, parts: WorkspaceParts, places: StorePlaces) -> None:
        self._parts = parts
        self._places = places

    async def scan(self, chat_id: ChatId) -> tuple[Repository, ...] | None:
        """What the agent of the chat's workspace sees now; None without one that runs, is here and answers."""
        try:
            workspace_id = await self._places.find_binding(chat_id)
            place = await self._places.find(workspace_id) if workspace_id is not None else None
            if place is None or place.status != Status.RUNNING or not place.is_here:
                return None
            agent = self._places.connect(place, ChatHeaders())
            return (await agent.scan_git(chat_id, seconds=SCAN_SECONDS)).repositories
        except (WorkspaceError, DriverError, Unreadable) as error:
            log.info("repositories_not_scanned", chat_id=chat_id, error=str(error))
            return None

    def status(self, repository: Repository) -> DiffStatus:
        """As it is kept, for lists and badges."""
        return DiffStatus(
            repository.root,
            repository.branch,
            repository.remote_origin,
            repository.additions,
            repository.deletions,
            repository.changed_files,
            self._parts.clock.now(),
        )
