"""Hears at once when a workspace has something else to tell, for as long as a chat in it runs (workspaces.md, 7.2).

One long poll per workspace and replica, however many of its chats run here. A step says that it runs; the poll goes on
by itself from step to step and ends when nobody has said so for a while.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.connection import Place, Places, Unreadable
from rookery.workspaces.context import DATABASE_ERRORS, Contexts, snapshot_of
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.errors import WorkspaceError

log = get_logger("workspaces.context_watch")

POLL_SECONDS = 55.0
# After an agent that does not answer, before it is asked again.
PAUSE_SECONDS = 5.0
PACE_SECONDS = 1.0


@dataclass(slots=True)
class _Watch:
    task: asyncio.Task[None] | None = None
    holders: int = 0
    generation: int = 0
    version: int = 0


class ContextWatches:
    """One per process."""

    def __init__(self, contexts: Contexts, places: Places, *, clock: Clock) -> None:
        self._contexts = contexts
        self._places = places
        self._clock = clock
        self._watches: dict[UUID, _Watch] = {}

    def hold(self, workspace_id: UUID) -> None:
        """A step of a chat in this workspace begins. Costs nothing but the first time."""
        watch = self._watches.setdefault(workspace_id, _Watch())
        watch.holders += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._run(workspace_id, watch), name=f"context:{workspace_id}")

    def release(self, workspace_id: UUID) -> None:
        """That step is over. The poll under way is left to its end: the next step is likely to come before."""
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
                # Also after an answer: an agent that was replaced may have something new every time.
                await self._clock.sleep(PACE_SECONDS if is_heard else PAUSE_SECONDS, "context-watch")
                if watch.holders <= 0:
                    return
        except Exception as error:
            log.exception("context_watch_failed", error, workspace_id=workspace_id)
        finally:
            # In one go with the last look at the holders: whoever comes later begins anew.
            if self._watches.get(workspace_id) is watch:
                del self._watches[workspace_id]

    async def _ask(self, workspace_id: UUID, watch: _Watch) -> bool:
        """One poll; False when there was nobody to ask."""
        try:
            place = await self._places.find(workspace_id)
            if place is None or place.status != "running" or not place.is_reachable:
                return False
            await self._poll(place, watch)
        except (WorkspaceError, DriverError, Unreadable, DeadlineExceeded, LookupError, *DATABASE_ERRORS) as error:
            log.info("context_not_heard", workspace_id=workspace_id, error=str(error) or type(error).__name__)
            return False
        return True

    async def _poll(self, place: Place, watch: _Watch) -> None:
        if watch.generation != place.generation:
            watch.generation = place.generation
            watch.version = self._contexts.known_version(place.id, place.generation)
        conn = self._places.connect(place, ChatHeaders())
        answer = await conn.context(after=watch.version, wait=POLL_SECONDS)
        # Nothing is told before the startup script has ended.
        if answer is None or answer.version <= 0:
            return
        watch.version = answer.version
        snapshot = snapshot_of(place.id, place.generation, answer, now=self._clock.now())
        await self._contexts.keep(snapshot)
        await self._contexts.run_agreed(snapshot, conn)
