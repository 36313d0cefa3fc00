"""Where tools go that do not stop: somebody has to hold their tasks, see them end, and say so.

One per process. A tool that ignores its cancellation costs its own memory, never the chat that called it.
"""

from __future__ import annotations

import asyncio

from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("loop.unfinished_tools")


class Stragglers:
    """Tasks that did not end when they were told to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def adopt(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self, clock: Clock, seconds: float) -> None:
        """Tell them once more, and wait so long at most."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            try:
                async with clock.deadline(seconds, "stragglers"):
                    await asyncio.wait(self._tasks)
            except DeadlineExceeded:
                log.warning("stragglers_left", tasks=sorted(task.get_name() for task in self._tasks))

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        log.info("straggler_ended", task=task.get_name(), error=None if error is None else type(error).__name__)
