"""The git repositories of a chat: scans and live watches of their state, through the workspace agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from datetime import datetime
from uuid import UUID

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.authorized.actor_store import Store
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.workspaces.workspaces import Status
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.agent_messages import GitMessage, Repository
from rookery.workspaces.connection import ChatWorkspace, Unreadable
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.errors import NotWatchable, TooManyWatches, WorkspaceError
from rookery.workspaces.shared_services import WorkspaceServices
from rookery.workspaces.workspace_lookup import StoreWorkspaceDirectory, find_reachable

log = get_logger("workspaces.chat_repositories")

SCAN_SECONDS = 10.0
# The limit per workspace and replica. Each watch holds a connection to the agent, and tools need connections too.
MAX_WATCHES = 16
# The maximum of the database columns. An agent may send any number.
_MAX_COUNT = 2**31 - 1


class ChatGit:
    def __init__(self, parts: WorkspaceServices, directory: StoreWorkspaceDirectory) -> None:
        self._parts = parts
        self._directory = directory
        self._watches: Counter[UUID] = Counter()

    async def scan(self, chat_id: ChatId) -> tuple[Repository, ...] | None:
        """Return the current state of the chat's repositories; None if the workspace does not respond."""
        try:
            workspace_id = await self._directory.find_binding(chat_id)
            location = await self._directory.find(workspace_id) if workspace_id is not None else None
            if location is None or location.status != Status.RUNNING or not location.is_reachable:
                return None
            agent = self._directory.connect(location, ChatHeaders())
            return (await agent.scan_git(chat_id, seconds=SCAN_SECONDS)).repositories
        except (WorkspaceError, DriverError, Unreadable) as error:
            log.info("repositories_not_scanned", chat_id=chat_id, error=str(error))
            return None

    async def watch(self, chat_id: ChatId) -> GitWatch:
        """Start a watch of the chat's repositories, and wait for the first report.

        Raise `NotWatchable` if the workspace does not respond.
        """
        location = await find_reachable(self._directory, chat_id)
        if self._watches[location.id] >= MAX_WATCHES:
            raise TooManyWatches(MAX_WATCHES)
        self._watches[location.id] += 1
        messages: AsyncGenerator[GitMessage, None] | None = None
        try:
            agent = self._directory.connect(location, ChatHeaders())
            messages = agent.watch_git(chat_id)
            async with self._parts.clock.deadline(SCAN_SECONDS, "git-watch"):
                first = await anext(messages)
        except BaseException as error:
            self._release(location.id)
            if messages is not None:
                await messages.aclose()
            if isinstance(error, (WorkspaceError, DriverError, DeadlineExceeded, LookupError, StopAsyncIteration)):
                log.info("repositories_not_watched", chat_id=chat_id, error=str(error) or type(error).__name__)
                raise NotWatchable("agent_unreachable", f"The workspace {location.name} does not answer.") from error
            raise
        return GitWatch(self, chat_id, location.id, agent, first, messages)

    async def is_bound(self, chat_id: ChatId, workspace_id: UUID) -> bool:
        return await self._directory.find_binding(chat_id) == workspace_id

    def _release(self, workspace_id: UUID) -> None:
        self._watches[workspace_id] -= 1
        if not self._watches[workspace_id]:
            del self._watches[workspace_id]

    def status(self, repository: Repository) -> DiffStatus:
        return _diff_status(repository, now=self._parts.clock.now())


class GitWatch:
    """A live watch. `first` is the initial state of the repositories, and `messages` are the changes."""

    def __init__(
        self,
        git: ChatGit,
        chat_id: ChatId,
        workspace_id: UUID,
        agent: AgentConn,
        first: GitMessage,
        messages: AsyncGenerator[GitMessage, None],
    ) -> None:
        self.first = first
        self.messages = messages
        self._git = git
        self._chat_id = chat_id
        self._workspace_id = workspace_id
        self._agent = agent
        self._is_closed = False

    async def is_bound(self) -> bool:
        """Return whether the chat is still bound to the watched workspace."""
        return await self._git.is_bound(self._chat_id, self._workspace_id)

    async def scan(self) -> None:
        """Make the agent scan now. The result arrives in `messages`."""
        await self._agent.scan_git(self._chat_id, seconds=SCAN_SECONDS)

    def status(self, repository: Repository) -> DiffStatus:
        return self._git.status(repository)

    async def close(self) -> None:
        """End the watch. Repeated calls have no effect."""
        if not self._is_closed:
            self._is_closed = True
            self._git._release(self._workspace_id)
            await self.messages.aclose()


async def store_diffs(chat: Chat, workspace: ChatWorkspace, store: Store, *, clock: Clock) -> None:
    """Scan the repositories of a chat and store their status, which lists and badges show. Errors are raised."""
    conn = await workspace.conn()
    message = await conn.scan_git(chat.id, seconds=SCAN_SECONDS)
    now = clock.now()
    found = [_diff_status(each, now=now) for each in message.repositories if not each.removed]
    removed = [each.root for each in message.repositories if each.removed]
    await store.as_actor(OwnerActor(chat.owner_id)).contexts.write_diffs(chat.id, found, removed)


def _diff_status(repository: Repository, *, now: datetime) -> DiffStatus:
    """Convert a repository to the form stored for lists and badges."""
    return DiffStatus(
        repository.root,
        repository.branch,
        repository.remote_origin,
        min(repository.additions, _MAX_COUNT),
        min(repository.deletions, _MAX_COUNT),
        min(repository.changed_files, _MAX_COUNT),
        now,
    )
