"""The shared tick: one timer for everybody who waits, and turns between which the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rookery.runtime.shared_tick import CALLBACKS_PER_TURN, SharedTick
from tests.live.part_buffer_rig import Timers


class Calls:
    """Functions that record their calls by name."""

    def __init__(self) -> None:
        self.made: list[object] = []

    def of(self, name: object) -> Callable[[], None]:
        return lambda: self.made.append(name)


def test_one_timer_serves_all_and_each_is_called_once_in_order() -> None:
    timers, calls = Timers(), Calls()
    tick = SharedTick(0.5, call_later=timers.call_later)
    twice = calls.of("a")
    for callback in (twice, calls.of("b"), twice, calls.of("c")):
        tick.at_next(callback)

    assert [timer.delay for timer in timers.armed] == [0.5]
    timers.fire()
    timers.fire()

    assert calls.made == ["a", "b", "c"]
    assert timers.armed == [], "without waiters there is no timer"


def test_function_that_registers_again_is_called_at_the_tick_after() -> None:
    timers = Timers()
    calls: list[int] = []
    tick = SharedTick(call_later=timers.call_later)

    def again() -> None:
        calls.append(len(calls))
        tick.at_next(again)

    tick.at_next(again)
    timers.fire()
    assert calls == [0]
    timers.fire()
    assert calls == [0, 1]


def test_turns_are_short_and_none_is_forgotten() -> None:
    timers, calls = Timers(), Calls()
    tick = SharedTick(call_later=timers.call_later)
    count = 2 * CALLBACKS_PER_TURN + 1
    for number in range(count):
        tick.at_next(calls.of(number))

    timers.fire()
    assert calls.made == list(range(CALLBACKS_PER_TURN))
    assert [timer.delay for timer in timers.armed] == [0]
    # A tick that comes before the turns have ended adds its functions behind the others.
    tick.at_next(calls.of("late"))
    while timers.armed:
        timers.fire()

    assert calls.made == [*range(count), "late"]


def test_forgotten_functions_are_not_called_and_leave_no_timer() -> None:
    timers, calls = Timers(), Calls()
    tick = SharedTick(call_later=timers.call_later)
    callbacks = [calls.of(number) for number in range(CALLBACKS_PER_TURN + 1)]
    for callback in callbacks:
        tick.at_next(callback)
    tick.forget(callbacks[0])
    tick.forget(calls.of("unknown"))
    timers.fire()
    assert calls.made == list(range(1, CALLBACKS_PER_TURN + 1))

    for callback in callbacks:
        tick.at_next(callback)
    timers.fire()
    for callback in callbacks:
        tick.forget(callback)
    assert timers.armed == []

    tick.at_next(callbacks[0])
    tick.forget(callbacks[0])
    assert timers.armed == []


def test_failing_function_does_not_keep_the_others_waiting() -> None:
    timers, calls = Timers(), Calls()
    tick = SharedTick(call_later=timers.call_later)

    def fail() -> None:
        raise ValueError("no")

    tick.at_next(fail)
    tick.at_next(calls.of("other"))
    with pytest.raises(ValueError, match="no"):
        timers.fire()
    timers.fire()

    assert calls.made == ["other"]


async def test_running_loop_ticks() -> None:
    tick, ticked = SharedTick(0.001), asyncio.Event()

    tick.at_next(ticked.set)

    async with asyncio.timeout(5):
        await ticked.wait()
