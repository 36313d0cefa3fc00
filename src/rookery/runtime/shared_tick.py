"""The tick: the one timer of live text. Text that a model writes is read, shown and sent once per tick.

All answers of a process share it, so that a process with a thousand answers wakes 40 times a second for them and not
ten thousand times. Each tick runs its callbacks in turns, so that new messages and first words do not wait until every
answer was handled. The timer runs only while an answer waits for a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

# Short enough that text appears to flow, and long enough that a fast model writes several words in it.
TICK_SECONDS = 0.03
# Each answer has two: one that reads and one that shows. Handling them takes about half a millisecond. Then the event
# loop runs other callbacks.
CALLBACKS_PER_TURN = 32


class Timer(Protocol):
    def cancel(self) -> object: ...


# `loop.call_later`, or a replacement that a test controls.
CallLater = Callable[[float, Callable[[], None]], Timer]


class SharedTick:
    """Calls registered functions at the next tick, once, in the order of their registration."""

    __slots__ = ("_call_later", "_due", "_timer", "_turn", "_waiting", "seconds")

    def __init__(self, seconds: float = TICK_SECONDS, *, call_later: CallLater | None = None) -> None:
        self.seconds = seconds
        self._call_later = call_later
        self._waiting: dict[Callable[[], None], None] = {}
        # Functions whose tick has come and that were not called yet.
        self._due: dict[Callable[[], None], None] = {}
        self._timer: Timer | None = None
        self._turn: Timer | None = None

    def at_next(self, callback: Callable[[], None]) -> None:
        """Call the function at the next tick. It must not raise."""
        self._waiting[callback] = None
        if self._timer is None:
            self._timer = self._start_timer(self.seconds, self._on_tick)

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call the function."""
        self._waiting.pop(callback, None)
        self._due.pop(callback, None)
        if self._timer is not None and not self._waiting:
            self._timer.cancel()
            self._timer = None
        if self._turn is not None and not self._due:
            self._turn.cancel()
            self._turn = None

    def _on_tick(self) -> None:
        self._timer = None
        self._due.update(self._waiting)
        self._waiting.clear()
        if self._turn is None:
            self._call_some()

    def _call_some(self) -> None:
        self._turn = None
        due = self._due
        try:
            for _ in range(CALLBACKS_PER_TURN):
                if not due:
                    break
                callback = next(iter(due))
                del due[callback]
                callback()
        finally:
            if due and self._turn is None:
                self._turn = self._start_timer(0, self._call_some)

    def _start_timer(self, seconds: float, callback: Callable[[], None]) -> Timer:
        if self._call_later is None:
            return asyncio.get_running_loop().call_later(seconds, callback)
        return self._call_later(seconds, callback)
