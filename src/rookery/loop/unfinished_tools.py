"""Unfinished tools: holds the tasks of tools that ignore their cancellation, and logs when they end.

One per process. Such a tool costs its own memory, but does not block the chat that called it.
"""

from __future__ import annotations

import asyncio

from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("loop.unfinished_tools")


class Stragglers:
    """Tasks that did not end when they were cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def adopt(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self, clock: Clock, seconds: float) -> None:
        """Cancel them once more, and wait at most this long."""
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
