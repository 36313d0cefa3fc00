"""Background tasks: work after an outcome that must neither delay nor fail the next step.

Each has its own time limit, ends with the process at the latest, and is logged when it fails.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("worker.background_tasks")


class BackgroundTasks:
    """Owns the background tasks of a process; the event loop alone would keep only weak references to them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Callable[[], Awaitable[object]], *, name: str, seconds: float) -> None:
        """Run the work in the background; silently refused once the process is stopping."""
        if self._is_closed:
            return
        # In a copied context: the caller's log fields stay, and what the work binds does not leak.
        context = contextvars.copy_context()
        task = asyncio.create_task(self._run(work, name, seconds), name=name, context=context)
        self._tasks.add(task)
        self._is_idle.clear()
        task.add_done_callback(self._done)

    async def wait_idle(self) -> None:
        await self._is_idle.wait()

    async def close(self, seconds: float) -> None:
        """Take no more work, give running work this long, then cancel and await the rest."""
        self._is_closed = True
        if not self._tasks:
            return
        try:
            async with self.clock.deadline(seconds, "inflight-close"):
                await self._is_idle.wait()
        except DeadlineExceeded:
            for task in tuple(self._tasks):
                task.cancel()
            await self._is_idle.wait()

    async def _run(self, work: Callable[[], Awaitable[object]], name: str, seconds: float) -> None:
        try:
            async with self.clock.deadline(seconds, f"inflight-{name}"):
                await work()
        except DeadlineExceeded as error:
            log.warning("effect_too_slow", effect=name, error=str(error))
        except Exception as error:
            log.exception("effect_failed", error, effect=name)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._is_idle.set()
