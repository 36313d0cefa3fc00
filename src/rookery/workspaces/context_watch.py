"""Long polls for context changes of workspaces while a chat in them runs.

There is one long poll per workspace and replica, however many of its chats run here. Each step holds the watch. The
poll continues from step to step and ends when no step has held it for a while.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.connection import Unreadable, WorkspaceDirectory, WorkspaceLocation
from rookery.workspaces.context import Contexts, snapshot_of
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.errors import WorkspaceError

log = get_logger("workspaces.context_watch")

POLL_SECONDS = 55.0
# Delay before an agent that did not respond is asked again.
PAUSE_SECONDS = 5.0
PACE_SECONDS = 1.0


@dataclass(slots=True)
class _Watch:
    task: asyncio.Task[None] | None = None
    holders: int = 0
    generation: int = 0
    version: int = 0


class ContextWatches:
    """The watches of this process."""

    def __init__(self, contexts: Contexts, directory: WorkspaceDirectory, *, clock: Clock) -> None:
        self._contexts = contexts
        self._directory = directory
        self._clock = clock
        self._watches: dict[UUID, _Watch] = {}

    def hold(self, workspace_id: UUID) -> None:
        """Hold the watch: a step of a chat in this workspace begins. Only the first call starts a poll."""
        watch = self._watches.setdefault(workspace_id, _Watch())
        watch.holders += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._run(workspace_id, watch), name=f"context:{workspace_id}")

    def release(self, workspace_id: UUID) -> None:
        """Release the watch: that step is over. The running poll continues, because the next step is likely to come
        soon.
        """
        if (watch := self._watches.get(workspace_id)) is not None:
            watch.holders -= 1

    async def close(self) -> None:
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, workspace_id: UUID, watch: _Watch) -> None:
        try:
            while True:
                is_heard = await self._ask(workspace_id, watch)
                # Also after a response: a replaced agent may report something new every time.
                await self._clock.sleep(PACE_SECONDS if is_heard else PAUSE_SECONDS, "context-watch")
                if watch.holders <= 0:
                    return
        except Exception as error:
            log.exception("context_watch_failed", error, workspace_id=workspace_id)
        finally:
            # No await between the last check of the holders and this: a later holder starts a new watch.
            if self._watches.get(workspace_id) is watch:
                del self._watches[workspace_id]

    async def _ask(self, workspace_id: UUID, watch: _Watch) -> bool:
        """Poll once; return False when the workspace could not be asked."""
        try:
            location = await self._directory.find(workspace_id)
            if location is None or location.status != "running" or not location.is_reachable:
                return False
            await self._poll(location, watch)
        except (WorkspaceError, DriverError, Unreadable, LookupError, *DATABASE_ERRORS) as error:
            log.info("context_not_heard", workspace_id=workspace_id, error=str(error) or type(error).__name__)
            return False
        return True

    async def _poll(self, location: WorkspaceLocation, watch: _Watch) -> None:
        if watch.generation != location.generation:
            watch.generation = location.generation
            watch.version = self._contexts.known_version(location.id, location.generation)
        conn = self._directory.connect(location, ChatHeaders())
        answer = await conn.context(after=watch.version, wait=POLL_SECONDS)
        # The agent reports nothing before the startup script has ended.
        if answer is None or answer.version <= 0:
            return
        watch.version = answer.version
        snapshot = snapshot_of(location.id, location.generation, answer, now=self._clock.now())
        await self._contexts.keep(snapshot)
        await self._contexts.run_agreed(snapshot, conn)
