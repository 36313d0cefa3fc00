"""Deadlines and tickers: the real and the fake clock must behave the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from rookery.runtime.clock import Clock, DeadlineExceeded, SystemClock
from rookery.testing import FakeClock

MakeClock = Callable[[], Clock]
both = pytest.mark.parametrize("make_clock", [SystemClock, FakeClock])


async def forever() -> None:
    await asyncio.Event().wait()


async def pass_time(clock: Clock, seconds: float) -> None:
    if isinstance(clock, FakeClock):
        await clock.advance(seconds)


@both
async def test_a_block_that_ends_in_time_is_left_alone(make_clock: MakeClock) -> None:
    async with make_clock().deadline(60, "work") as deadline:
        await asyncio.sleep(0)

    assert not deadline.is_expired


@both
async def test_a_block_that_takes_too_long_ends_with_the_name_of_its_deadline(make_clock: MakeClock) -> None:
    clock = make_clock()

    async def work() -> None:
        async with clock.deadline(0.01, "work"):
            await forever()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await pass_time(clock, 0.01)
    with pytest.raises(DeadlineExceeded) as caught:
        await task

    assert caught.value.tag == "work"
    assert task.cancelling() == 0


@both
async def test_a_deadline_of_nothing_expires_at_once(make_clock: MakeClock) -> None:
    with pytest.raises(DeadlineExceeded):
        async with make_clock().deadline(0, "work"):
            await forever()


@both
async def test_a_deadline_that_is_reset_to_nothing_expires_at_once(make_clock: MakeClock) -> None:
    async def work() -> None:
        # The outer limit is real time: a deadline that is not reset fails the test instead of passing late.
        async with asyncio.timeout(10), make_clock().deadline(60, "work") as deadline:
            deadline.reset(0)
            await forever()

    with pytest.raises(DeadlineExceeded):
        await work()


@both
async def test_a_cancellation_from_outside_stays_a_cancellation(make_clock: MakeClock) -> None:
    clock = make_clock()
    inside = asyncio.Event()

    async def work() -> None:
        async with clock.deadline(60, "work"):
            inside.set()
            await forever()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@both
async def test_a_cancellation_that_meets_the_deadline_wins(make_clock: MakeClock) -> None:
    clock = make_clock()
    unwinding = asyncio.Event()

    async def work() -> None:
        async with clock.deadline(0.01, "work"):
            try:
                await forever()
            finally:
                unwinding.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    passing = asyncio.create_task(pass_time(clock, 0.01))
    await unwinding.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await passing


@both
async def test_an_error_of_the_block_is_never_relabelled(make_clock: MakeClock) -> None:
    async def work() -> None:
        async with make_clock().deadline(0, "work"):
            try:
                await forever()
            except asyncio.CancelledError:
                raise KeyError("the real one") from None

    with pytest.raises(KeyError):
        await work()


@both
async def test_a_block_that_swallows_the_deadline_is_late_all_the_same(make_clock: MakeClock) -> None:
    async def work() -> None:
        async with make_clock().deadline(0, "work") as deadline:
            try:
                await forever()
            except asyncio.CancelledError:
                assert deadline.is_expired

    with pytest.raises(DeadlineExceeded):
        await work()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@both
async def test_the_outer_of_two_deadlines_names_itself(make_clock: MakeClock) -> None:
    clock = make_clock()

    with pytest.raises(DeadlineExceeded, match="outer"):
        async with clock.deadline(0, "outer"), clock.deadline(60, "inner"):
            await forever()


async def test_resets_keep_a_real_deadline_from_expiring_without_a_timer_each() -> None:
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # asyncio tells nobody else
    started = time.monotonic()
    counted: list[int] = []

    async def work() -> None:
        async with SystemClock().deadline(0.02, "stream") as deadline:
            counted.append(len(timers))
            for _ in range(1000):
                deadline.reset(0.05)
            counted.append(len(timers))
            await forever()

    with pytest.raises(DeadlineExceeded):
        await work()

    assert time.monotonic() - started >= 0.05
    assert counted[0] == counted[1] >= 1


async def test_a_reset_moves_a_fake_deadline_and_its_timer() -> None:
    clock = FakeClock()
    ended: list[float] = []

    async def work() -> None:
        try:
            async with clock.deadline(10, "stream") as deadline:
                await clock.sleep(6, "part")
                deadline.reset(10)
                await forever()
        except DeadlineExceeded:
            ended.append(clock.monotonic())

    task = asyncio.create_task(work())
    await clock.advance(6)
    assert [(timer.tag, timer.due) for timer in clock.waiting()] == [("stream", 16)]
    await clock.advance(9)
    assert not task.done()
    await clock.fire("stream")

    await task
    assert ended == [16]
    assert clock.waiting() == []


async def test_a_trap_holds_back_a_deadline_before_its_block() -> None:
    clock = FakeClock()
    began: list[float] = []

    async def work() -> None:
        async with clock.deadline(5, "stream"):
            began.append(clock.monotonic())

    with clock.trap("stream") as trap:
        task = asyncio.create_task(work())
        await trap.caught()
        await clock.advance(3)
        trap.release()
        await task

    assert began == [3]


async def test_a_deadline_is_used_once() -> None:
    deadline = SystemClock().deadline(5, "once")
    async with deadline:
        pass

    with pytest.raises(RuntimeError):
        async with deadline:
            pass


# Tickers


async def test_ticks_stay_on_the_grid_and_leave_out_what_was_missed() -> None:
    clock = FakeClock()
    ticks: list[tuple[float, float]] = []

    async def beat() -> None:
        async for due in clock.ticker(10, "beat"):
            ticks.append((due, clock.monotonic()))
            await clock.sleep(25 if len(ticks) == 1 else 1, "work")

    task = asyncio.create_task(beat())
    await clock.advance(60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert ticks == [(10, 10), (40, 40), (50, 50), (60, 60)]


async def test_a_real_ticker_ticks() -> None:
    ticker = SystemClock().ticker(0.001, "beat")

    first = await anext(ticker)
    second = await anext(ticker)

    assert second > first


async def test_a_ticker_without_an_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="interval"):
        SystemClock().ticker(0, "beat")
