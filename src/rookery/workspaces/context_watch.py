"""Long polls for changes of the context of workspaces, while chats use them.

A replica has one long poll per workspace, even if several of its chats use the workspace. Each step holds the watch.
The poll ends when its response has arrived and no step holds the watch.
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
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.errors import WorkspaceError

log = get_logger("workspaces.context_watch")

POLL_SECONDS = 55.0
# The pause after a poll that failed.
PAUSE_SECONDS = 5.0
PACE_SECONDS = 1.0


@dataclass(slots=True)
class _Watch:
    task: asyncio.Task[None] | None = None
    holders: int = 0
    generation: int = 0
    version: int = 0


class ContextWatches:
    """The context watches of this process."""

    def __init__(self, contexts: Contexts, directory: WorkspaceDirectory, *, clock: Clock) -> None:
        self._contexts = contexts
        self._directory = directory
        self._clock = clock
        self._watches: dict[UUID, _Watch] = {}

    def hold(self, workspace_id: UUID) -> None:
        """Hold the watch of a workspace for a step. The first call starts the poll."""
        watch = self._watches.setdefault(workspace_id, _Watch())
        watch.holders += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._run(workspace_id, watch), name=f"context:{workspace_id}")

    def release(self, workspace_id: UUID) -> None:
        """Release the watch at the end of a step. The current poll continues, because the next step may begin soon."""
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
                has_answer = await self._poll_once(workspace_id, watch)
                # Pause after a response too: a replaced agent may report a change every time.
                await self._clock.sleep(PACE_SECONDS if has_answer else PAUSE_SECONDS, "context-watch")
                if watch.holders <= 0:
                    return
        except Exception as error:
            log.exception("context_watch_failed", error, workspace_id=workspace_id)
        finally:
            # There is no await between the last check of the holders and this line. A later holder starts a new watch.
            if self._watches.get(workspace_id) is watch:
                del self._watches[workspace_id]

    async def _poll_once(self, workspace_id: UUID, watch: _Watch) -> bool:
        """Poll once. Return False if the workspace could not be reached."""
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
        # Version 0 means that the startup script has not ended yet.
        if answer is None or answer.version <= 0:
            return
        watch.version = answer.version
        snapshot = await snapshot_of(location.id, location.generation, answer, now=self._clock.now())
        await self._contexts.store_snapshot(snapshot)
        await self._contexts.run_agreed(snapshot, conn)
