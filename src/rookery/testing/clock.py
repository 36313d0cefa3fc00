"""A fake clock that moves only when a test advances it.

It replaces `rookery.runtime.clock.Clock` and does not change the event loop's time, so sockets and databases in the
same test work as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from rookery.runtime.clock import Deadline, Expiry, Ticker

# The number of event loop turns that woken tasks get before `advance` continues. Chosen: the longest chain of awaits
# without I/O between two sleeps is below ten.
SETTLE_TURNS = 25


class Timer:
    """A sleep or deadline in progress."""

    __slots__ = ("_future", "due", "tag")

    def __init__(self, due: float, tag: str) -> None:
        self.due = due
        self.tag = tag
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Timer {self.tag!r} due at {self.due:g}>"

    def _fire(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Trap:
    """Blocks every task that starts a sleep or a deadline with one tag, until the test releases it."""

    def __init__(self, clock: FakeClock, tag: str) -> None:
        self.tag = tag
        self._clock = clock
        self._caught: list[asyncio.Future[None]] = []

    async def caught(self, count: int = 1) -> None:
        """Wait until this many tasks are blocked."""
        await self._clock._until(lambda: len(self._caught) >= count, f"{count} caught at {self.tag!r}")

    def release(self) -> None:
        """Let the blocked tasks start their sleep. Later ones are blocked again."""
        caught, self._caught = self._caught, []
        for future in caught:
            if not future.done():
                future.set_result(None)

    async def _hold(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._caught.append(future)
        try:
            await future
        finally:
            if future in self._caught:
                self._caught.remove(future)


class FakeDeadline:
    """A deadline in fake time. It is one of the timers of its clock."""

    def __init__(self, clock: FakeClock, seconds: float, tag: str) -> None:
        self._clock = clock
        self._expiry = Expiry(seconds, tag)
        self._timer: Timer | None = None

    @property
    def is_expired(self) -> bool:
        return self._expiry.is_expired

    def reset(self, seconds: float) -> None:
        self._expiry.seconds = seconds
        if self._timer is not None:
            self._timer.due = self._clock.monotonic() + seconds
            self._fire_if_over(seconds)

    async def __aenter__(self) -> Self:
        await self._clock._pass_traps(self._expiry.tag)
        self._expiry.enter()
        self._timer = self._clock._start_timer(self._expiry.seconds, self._expiry.tag)
        self._timer._future.add_done_callback(self._on_timer)
        self._fire_if_over(self._expiry.seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._clock._timers.remove(timer)
            timer._future.cancel()
        self._expiry.leave(kind, error)

    def _fire_if_over(self, seconds: float) -> None:
        # As for sleeps, zero seconds need no advance.
        if seconds <= 0 and self._timer is not None:
            self._timer._fire()

    def _on_timer(self, future: asyncio.Future[None]) -> None:
        # None: the block ended in the same turn of the loop, before the deadline.
        if self._timer is not None and not future.cancelled():
            self._expiry.expire()


class FakeClock:
    """A clock that stands still until `advance` moves it. Sleeping tasks wake in the order in which they are due.

    `patience_seconds` is real time, after which a test that waits for a missing task fails instead of hanging.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC), patience_seconds: float = 10.0) -> None:
        self._start = start
        self._patience_seconds = patience_seconds
        self._elapsed = 0.0
        self._timers: list[Timer] = []
        self._traps: dict[str, list[Trap]] = {}
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float, tag: str) -> None:
        await self._pass_traps(tag)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        timer = self._start_timer(seconds, tag)
        try:
            await timer._future
        finally:
            self._timers.remove(timer)

    def ticker(self, seconds: float, tag: str) -> Ticker:
        return Ticker(self, seconds, tag)

    def deadline(self, seconds: float, tag: str) -> Deadline:
        return FakeDeadline(self, seconds, tag)

    def waiting(self, tag: str | None = None) -> list[Timer]:
        """Return the running sleeps and deadlines with this tag, or all of them, soonest first."""
        timers = [timer for timer in self._timers if tag in (None, timer.tag) and not timer._future.done()]
        return sorted(timers, key=lambda timer: timer.due)

    async def advance(self, seconds: float) -> None:
        """Move time forward. Stop at every timer on the way, so that its task runs at its own time.

        A task that only computes between two sleeps is woken as often as in real time. A task that does I/O between two
        sleeps may miss a step. Use `fire` once per sleep for such a task.
        """
        if seconds < 0:
            raise ValueError("Time does not go backwards.")
        await self._advance_to(self._elapsed + seconds)

    async def _advance_to(self, target: float) -> None:
        await self._settle()
        while (timers := self.waiting()) and timers[0].due <= target:
            self._elapsed = max(self._elapsed, timers[0].due)
            for timer in timers:
                if timer.due <= self._elapsed:
                    timer._fire()
            await self._settle()
        self._elapsed = target
        await self._settle()

    async def until_waiting(self, tag: str, count: int = 1) -> None:
        """Wait, in real time, until this many tasks sleep with the tag."""
        await self._until(lambda: len(self.waiting(tag)) >= count, f"{count} waiting at {tag!r}")

    async def fire(self, tag: str) -> None:
        """Wait until a task sleeps with the tag, then move time just far enough to wake it."""
        await self.until_waiting(tag)
        # `advance` by the difference is not used, because a rounding error could end before `due`.
        await self._advance_to(max(self._elapsed, self.waiting(tag)[0].due))

    @contextmanager
    def trap(self, tag: str) -> Iterator[Trap]:
        """Block every task that starts to sleep with the tag. At the end of the block all of them continue."""
        trap = Trap(self, tag)
        self._traps.setdefault(tag, []).append(trap)
        try:
            yield trap
        finally:
            self._traps[tag].remove(trap)
            trap.release()

    async def _pass_traps(self, tag: str) -> None:
        for trap in tuple(self._traps.get(tag, ())):
            self._announce()
            await trap._hold()

    def _start_timer(self, seconds: float, tag: str) -> Timer:
        timer = Timer(self._elapsed + seconds, tag)
        self._timers.append(timer)
        self._announce()
        return timer

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"Timed out: expected {what}, found {self.waiting()}.") from None

    def _announce(self) -> None:
        self._changed.set()

    async def _settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
