"""Waiting for something to the end, whatever happens to the task that waits.

`asyncio.shield` takes a task and a future more for each wait, and every transition waits for its COMMIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Unbroken(Generic[T]):
    """Takes the steps of a coroutine inside the awaiting task, deaf to that task's cancellation.

    Awaiting it gives the result or raises the error of the coroutine, never the cancellation of the awaiting task:
    that one is in `cancelled` afterwards, for the caller to pass on. Only for what ends by itself.
    """

    __slots__ = ("_steps", "cancelled")

    def __init__(self, steps: Generator[Any, Any, T]) -> None:
        self._steps = steps
        self.cancelled: asyncio.CancelledError | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            try:
                awaited: asyncio.Future[Any] | None = next(self._steps)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                # A bare yield gives other tasks a turn; there is nothing in it to cancel.
                yield None if awaited is None else _Deaf(awaited)
            except asyncio.CancelledError as error:
                if awaited is None or not awaited.cancelled() or _is_cancelled():
                    # It came while we waited, and is told only now that the wait is over.
                    self.cancelled = error


class _Deaf:
    """A future as its task sees it, but for `cancel`: the answer is no, so the task keeps the cancellation for later.

    The attribute is how event loops know futures of all makes; see `asyncio.isfuture`.
    """

    __slots__ = ("_asyncio_future_blocking", "_future")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        future._asyncio_future_blocking = False  # as the task does to the one that it waits for
        self._asyncio_future_blocking = True
        self._future = future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(self, fn: Callable[[asyncio.Future[Any]], object], /, *, context: Context) -> None:
        self._future.add_done_callback(fn, context=context)

    def cancel(self, msg: object = None) -> bool:
        return False


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
