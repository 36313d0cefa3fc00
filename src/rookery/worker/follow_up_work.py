"""Follow-up work: background tasks after a step, which neither delay nor fail the step.

Each task has its own time limit, and its failure is logged. All tasks end with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from rookery.debug import current_run as debug_context
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("worker.follow_up_work")


class FollowUpWork:
    """The background tasks of a process. It holds references to them, because the event loop holds only weak ones."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Whether the process is stopping, so that no more work is started."""
        return self._is_closed

    def start(self, work: Callable[[], Awaitable[object]], *, name: str, seconds: float) -> None:
        """Run the work in the background. Do nothing if the process is stopping."""
        if self._is_closed:
            return
        # The copied context keeps the caller's log fields, and hides fields that the work binds from the caller. The
        # work outlives the turn, so its model calls do not belong to the turn's debug run.
        with debug_context.cleared():
            context = contextvars.copy_context()
        task = asyncio.create_task(self._run(work, name, seconds), name=name, context=context)
        self._tasks.add(task)
        self._is_idle.clear()
        task.add_done_callback(self._done)

    async def wait_idle(self) -> None:
        await self._is_idle.wait()

    async def close(self, seconds: float) -> None:
        """Refuse new work, wait up to this time for running work, then cancel the rest and wait for its end."""
        self._is_closed = True
        if not self._tasks:
            return
        try:
            async with self.clock.deadline(seconds, "follow-up-close"):
                await self._is_idle.wait()
        except DeadlineExceeded:
            for task in tuple(self._tasks):
                task.cancel()
            await self._is_idle.wait()

    async def _run(self, work: Callable[[], Awaitable[object]], name: str, seconds: float) -> None:
        try:
            async with self.clock.deadline(seconds, f"follow-up-{name}"):
                await work()
        except DeadlineExceeded as error:
            log.warning("follow_up_too_slow", work=name, error=str(error))
        except Exception as error:
            log.exception("follow_up_failed", error, work=name)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._is_idle.set()
