"""The commit shield: completes a commit and its follow-up code even if the calling task is cancelled.

The runner learns of a commit before the task that made it continues. It then cancels this task, because the task is
done. Therefore code after a plain `await` of the update may never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rookery.telemetry.log import get_logger

log = get_logger("worker.commit_shield")

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end. A cancellation that arrives meanwhile is raised afterwards.

    Use it only for work that ends soon, such as an update of the machine, whose statements have time limits. The work
    runs in a separate task, because those limits also cancel.
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
        # The error refers to this frame. A reference back would keep everything alive that the task held.
        cancelled = None
