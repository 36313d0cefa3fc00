"""The commit shield: runs a commit and what must follow it together, even when the calling task is cancelled.

The runner learns of a commit before the task that made it goes on, and then cancels that task as done. Code after a
plain `await` of the update may therefore never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rookery.telemetry.log import get_logger

log = get_logger("worker.commit_shield")

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end; a cancellation that comes meanwhile is raised afterwards.

    Use it only for work that ends soon, as updates of the machine do: their statements have limits. It runs in a
    separate task, because those limits are cancellations as well.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failed := task.exception()) is not None:
        log.debug("nobody_waits", error=str(failed) or type(failed).__name__)
    try:
        raise cancelled
    finally:
        # The error refers to this frame: a reference back would keep alive everything the task held.
        cancelled = None
