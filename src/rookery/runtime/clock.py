"""The clock: timestamps, waits and deadlines. Code receives a `Clock`, so that tests can control the time."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self


class DeadlineExceeded(Exception):
    """Raised when a time limit of ours is exceeded. It is not a `TimeoutError`, which sockets also raise."""

    def __init__(self, tag: str, seconds: float) -> None:
        self.tag = tag
        self.seconds = seconds
        super().__init__(f"{tag} took longer than {seconds:g} s.")


class Deadline(Protocol):
    """A time limit for an `async with` block. It cancels the block after that time and raises `DeadlineExceeded`.

    If the cancelled block raises another error, that error is raised instead. A block that suppresses the cancellation
    still raises `DeadlineExceeded`. A cancellation by other code is raised as `CancelledError`.
    """

    @property
    def is_expired(self) -> bool: ...

    def reset(self, seconds: float) -> None:
        """Restart the time from now. This is cheap enough for every token. It has no effect after the deadline."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Clock(Protocol):
    """Wall time, monotonic time and waits. `tag` is the name of a wait, for tests and debugging."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...

    def ticker(self, seconds: float, tag: str) -> Ticker: ...

    def deadline(self, seconds: float, tag: str) -> Deadline: ...


class SystemClock:
    """The clock of the system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float, tag: str) -> None:
        await asyncio.sleep(seconds)

    def ticker(self, seconds: float, tag: str) -> Ticker:
        return Ticker(self, seconds, tag)

    def deadline(self, seconds: float, tag: str) -> Deadline:
        return LoopDeadline(seconds, tag)


class Ticker:
    """Ticks at a fixed interval: `async for _ in clock.ticker(9, "heartbeat")`. The first tick is after one interval.

    Ticks are due at multiples of the interval after the start. Missed ticks are skipped, so that a late loop does not
    tick in bursts.
    """

    __slots__ = ("_clock", "_due", "_seconds", "_tag")

    def __init__(self, clock: Clock, seconds: float, tag: str) -> None:
        if seconds <= 0:
            raise ValueError("A ticker needs an interval.")
        self._clock = clock
        self._seconds = seconds
        self._tag = tag
        self._due = clock.monotonic()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> float:
        """Wait for the next tick. Return the monotonic time at which it was due."""
        now = self._clock.monotonic()
        missed = max(math.floor((now - self._due) / self._seconds), 0)
        self._due += (missed + 1) * self._seconds
        await self._clock.sleep(self._due - now, self._tag)
        return self._due


class Expiry:
    """Cancels a `with` block when its deadline passes, and raises `DeadlineExceeded`. The test clock uses it as well.

    `leave` compares `Task.cancelling()` with its value at `enter`, as `asyncio.timeout` does, to recognize a
    cancellation by other code.
    """

    __slots__ = ("_cancelling", "_is_used", "_task", "is_expired", "seconds", "tag")

    def __init__(self, seconds: float, tag: str) -> None:
        self.seconds = seconds
        self.tag = tag
        self.is_expired = False
        self._is_used = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def enter(self) -> None:
        if self._is_used:
            raise RuntimeError("A deadline can be used only once.")
        task = asyncio.current_task()
        assert task is not None
        self._is_used = True
        self._task = task
        self._cancelling = task.cancelling()

    def expire(self) -> None:
        assert self._task is not None
        self.is_expired = True
        self._task.cancel()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        # A task that ends with an error keeps frames that refer to this deadline. A reference back would be a cycle.
        task, self._task = self._task, None
        if not self.is_expired:
            return
        assert task is not None
        cancelled_by_others = task.uncancel() > self._cancelling
        is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if kind is None or (is_cancelled and not cancelled_by_others):
            raise DeadlineExceeded(self.tag, self.seconds) from error


class LoopDeadline:
    """A deadline by the event loop's clock.

    A `reset` to a later time only stores the time, which is cheap. When the timer fires too early, it is set again.
    """

    __slots__ = ("_due", "_expiry", "_handle", "_loop")

    def __init__(self, seconds: float, tag: str) -> None:
        self._expiry = Expiry(seconds, tag)
        self._handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._due = 0.0

    @property
    def is_expired(self) -> bool:
        return self._expiry.is_expired

    def reset(self, seconds: float) -> None:
        self._expiry.seconds = seconds
        self._due = self._loop.time() + seconds
        handle = self._handle
        if handle is not None and self._due < handle.when():
            handle.cancel()
            self._arm()

    async def __aenter__(self) -> Self:
        self._expiry.enter()
        self._due = self._loop.time() + self._expiry.seconds
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._expiry.leave(kind, error)

    def _arm(self) -> None:
        self._handle = self._loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        if self._loop.time() < self._due:
            self._arm()
            return
        self._handle = None
        self._expiry.expire()
