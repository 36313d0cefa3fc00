"""Two waits that need no extra task: `Uninterrupted` defers a cancellation, and `WithTimeout` limits the time.

Every transition waits for a connection and for its COMMIT, and every frame of a stream waits for a socket. Most of
these waits end immediately, and `asyncio.timeout` and `asyncio.shield` were a large part of their cost. See
benchmarks/waits.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# The iterator that `coroutine.__await__()` returns.
Steps = Generator[Any, Any, T]


class Uninterrupted(Generic[T]):
    """Runs a coroutine inside the awaiting task, and defers the cancellation of that task.

    Awaiting it returns the result or raises the error of the coroutine. A cancellation of the awaiting task is stored
    in `cancelled`, and the caller must raise it afterwards. Use it only for coroutines that are certain to end.
    """

    __slots__ = ("_steps", "cancelled")

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.cancelled: asyncio.CancelledError | None = None

    def __await__(self) -> Steps[T]:
        while True:
            try:
                awaited: asyncio.Future[Any] | None = next(self._steps)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                # A bare yield lets other tasks run. It has no future to cancel.
                yield None if awaited is None else _UncancellableFuture(awaited)
            except asyncio.CancelledError as error:
                if awaited is None or not awaited.cancelled() or cancelling():
                    # The cancellation of this task was requested during the wait.
                    self.cancelled = error
            except Exception:  # noqa: S112 -- the coroutine gets the error from the awaited future
                continue


class _UncancellableFuture:
    """A proxy of a future that refuses `cancel`, so that the task delivers the cancellation after the wait.

    Event loops recognize futures by the attribute `_asyncio_future_blocking`, see `asyncio.isfuture`.
    """

    __slots__ = ("_asyncio_future_blocking", "_future")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        future._asyncio_future_blocking = False  # a task does the same with the future that it awaits
        self._asyncio_future_blocking = True
        self._future = future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(self, fn: Callable[[asyncio.Future[Any]], object], /, *, context: Context) -> None:
        self._future.add_done_callback(fn, context=context)

    def cancel(self, msg: object = None) -> bool:
        return False


def cancelling() -> int:
    """Return the number of pending cancellation requests of the current task.

    With this function, the frames of callers do not refer to the task. Otherwise an error that the task holds would
    refer to such a frame, and only the garbage collector could free this cycle.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class WithTimeout(Generic[T]):
    """Raises `TimeoutError` if the coroutine takes longer. A coroutine that does not wait needs no timer."""

    __slots__ = ("_seconds", "_steps")

    def __init__(self, seconds: float, steps: Steps[T]) -> None:
        self._seconds = seconds
        self._steps = steps

    def __await__(self) -> Steps[T]:
        try:
            awaited = next(self._steps)
        except StopIteration as end:
            result: T = end.value
            return result
        return (yield from self._wait(awaited).__await__())

    async def _wait(self, awaited: object) -> T:
        async with asyncio.timeout(self._seconds):
            return await _StartedSteps(awaited, self._steps)


class _StartedSteps(Generic[T]):
    """Continues an iterator whose first step was already taken."""

    __slots__ = ("_awaited", "_steps")

    def __init__(self, awaited: object, steps: Steps[T]) -> None:
        self._awaited = awaited
        self._steps = steps

    def __await__(self) -> Steps[T]:
        awaited = self._awaited
        while True:
            try:
                step = partial(self._steps.send, (yield awaited))
            except BaseException as error:
                step = partial(self._steps.throw, error)
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
