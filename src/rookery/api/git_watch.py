"""The live state of a chat's repositories: a stream from the workspace's agent to a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import ChatId
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.people.errors import AccessError
from rookery.stream import events
from rookery.stream.errors import CloseCode, StreamEnded
from rookery.stream.events import GitChanges, RepositoryState
from rookery.stream.outbox import Frame
from rookery.stream.session import Inbound, SendNow
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_messages import GitMessage, Repository
from rookery.workspaces.chat_repositories import GitWatch
from rookery.workspaces.connection import Unreadable
from rookery.workspaces.errors import WorkspaceError

log = get_logger("api.git_watch")

# Stores the states of repositories. The second argument has the roots of removed ones.
Keep = Callable[[Sequence[DiffStatus], Sequence[str]], Awaitable[None]]


class GitSource:
    """Sends the agent's reports to one client, and stores the counts for chat lists. Clients may ask to refresh."""

    def __init__(self, chat_id: ChatId, watch: GitWatch, keep: Keep) -> None:
        self._chat_id = chat_id
        self._watch = watch
        self._keep = keep
        self._wake: Callable[[], None] = lambda: None
        self._pending: bytes | None = None
        self._is_taken = asyncio.Event()
        self._end: StreamEnded | None = None
        self._pump: asyncio.Task[None] | None = None
        self._scan: asyncio.Task[None] | None = None

    def attach(self, wake: Callable[[], None], send_now: SendNow | None = None) -> None:
        self._wake = wake
        self._pump = asyncio.create_task(self._run(), name="git-watch")

    def take(self) -> Frame | None:
        if self._pending is not None:
            frame, self._pending = Frame(events.frame([self._pending])), None
            self._is_taken.set()
            return frame
        if self._end is not None:
            raise self._end
        return None

    async def handle(self, frame: Inbound) -> None:
        """Handle a `refresh` frame: ask the agent for a scan. Changes arrive on the stream. One scan runs at a time."""
        if frame.type == "refresh" and (self._scan is None or self._scan.done()):
            self._scan = asyncio.create_task(self._refresh(), name="git-scan")

    async def close(self) -> None:
        tasks = [task for task in (self._pump, self._scan) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._watch.close()

    async def _run(self) -> None:
        try:
            await self._queue_states(self._watch.first)
            async for message in self._watch.messages:
                # An empty message only shows that the agent is alive.
                if message.repositories:
                    if not await self._watch.is_bound():
                        self._finish("The chat has a different workspace now.")
                        return
                    await self._queue_states(message)
            self._finish("The workspace was stopped.")
        except (WorkspaceError, Unreadable) as error:
            log.info("git_watch_ended", chat_id=self._chat_id, error=str(error))
            self._finish("The workspace no longer answers.")
        except (AccessError, ChatError):
            self._finish("You no longer have access to this chat.")
        except Exception as error:
            log.exception("git_watch_failed", error)
            self._end = StreamEnded(CloseCode.INTERNAL, "The server failed. Connect again.")
            self._wake()

    async def _queue_states(self, message: GitMessage) -> None:
        self._is_taken.clear()
        self._pending = events.encode(GitChanges(tuple(map(_shown, message.repositories))))
        self._wake()
        there = [each for each in message.repositories if not each.removed]
        gone = [each.root for each in message.repositories if each.removed]
        try:
            await self._keep([self._watch.status(each) for each in there], gone)
        except DATABASE_ERRORS as error:
            # The counts are written at the end of the next turn.
            log.warning("git_counts_not_kept", chat_id=self._chat_id, error=str(error) or type(error).__name__)
        await self._is_taken.wait()

    async def _refresh(self) -> None:
        try:
            await self._watch.scan()
        except WorkspaceError as error:
            log.info("git_not_scanned", chat_id=self._chat_id, error=str(error))

    def _finish(self, reason: str) -> None:
        self._end = StreamEnded(CloseCode.NORMAL, reason)
        self._wake()


def _shown(repository: Repository) -> RepositoryState:
    return RepositoryState(
        root=repository.root,
        branch=repository.branch,
        remote_origin=repository.remote_origin,
        diff=repository.diff,
        additions=repository.additions,
        deletions=repository.deletions,
        changed_files=repository.changed_files,
        untracked_omitted=int(repository.untracked_omitted),
        removed=repository.removed,
    )
