"""Two waits inside the awaiting task (uninterrupted, and with a timeout) that need no extra task or timer.

Every transition waits for a connection, which is nearly always free, and for its COMMIT; every frame of a stream waits
for a socket that mostly accepts it immediately. `asyncio.timeout` and `asyncio.shield` were a large part of their cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# The steps of awaiting something, as `coroutine.__await__()` returns them.
Steps = Generator[Any, Any, T]


class Unbroken(Generic[T]):
    """Runs the steps of a coroutine inside the awaiting task, and defers that task's cancellation.

    Awaiting it returns the result or raises the error of the coroutine, never the cancellation of the awaiting task:
    that one is in `cancelled` afterwards, for the caller to raise. Only for coroutines that are certain to end.
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
                # A bare yield lets other tasks run; there is nothing in it to cancel.
                yield None if awaited is None else _Deaf(awaited)
            except asyncio.CancelledError as error:
                if awaited is None or not awaited.cancelled() or cancelling():
                    # The cancellation arrived during the wait, and is delivered only now.
                    self.cancelled = error
            except Exception:  # noqa: S112 -- what was waited for failed, and tells the steps so itself
                continue


class _Deaf:
    """A proxy of a future that refuses `cancel`, so that the task keeps the cancellation for later.

    The attribute is how event loops recognize futures of all kinds; see `asyncio.isfuture`.
    """

    __slots__ = ("_asyncio_future_blocking", "_future")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        future._asyncio_future_blocking = False  # as the task does with the future that it waits for
        self._asyncio_future_blocking = True
        self._future = future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(self, fn: Callable[[asyncio.Future[Any]], object], /, *, context: Context) -> None:
        self._future.add_done_callback(fn, context=context)

    def cancel(self, msg: object = None) -> bool:
        return False


def cancelling() -> int:
    """Return how often the current task was asked to stop.

    A function, so that no frame of an error holds the task, which holds the error: such a cycle, with all that the step
    had loaded, would have to wait for the garbage collector.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class Within(Generic[T]):
    """Waits for at most so many seconds, then raises `TimeoutError`. A result that is ready needs no timer."""

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
            return await _Begun(awaited, self._steps)


class _Begun(Generic[T]):
    """Continues steps of which the first has been taken."""

    __slots__ = ("_awaited", "_steps")

    def __init__(self, awaited: object, steps: Steps[T]) -> None:
        self._awaited = awaited
        self._steps = steps

    def __await__(self) -> Steps[T]:
        awaited = self._awaited
        while True:
            try:
                go_on = partial(self._steps.send, (yield awaited))
            except BaseException as error:
                go_on = partial(self._steps.throw, error)
            try:
                awaited = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
