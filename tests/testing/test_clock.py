"""The fake clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from rookery.runtime.clock import Clock
from rookery.testing import FakeClock


async def record(clock: Clock, seconds: float, tag: str, into: list[tuple[str, float]]) -> None:
    await clock.sleep(seconds, tag)
    into.append((tag, clock.monotonic()))


async def test_time_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(datetime(2031, 5, 1, tzinfo=UTC))

    assert clock.now() == datetime(2031, 5, 1, tzinfo=UTC)
    await clock.advance(90)

    assert clock.now() == datetime(2031, 5, 1, 0, 1, 30, tzinfo=UTC)
    assert clock.monotonic() == 90


async def test_time_does_not_go_backwards() -> None:
    with pytest.raises(ValueError):
        await FakeClock().advance(-1)


async def test_sleepers_wake_in_the_order_they_are_due_each_at_its_own_moment() -> None:
    clock, woken = FakeClock(), list[tuple[str, float]]()

    async with asyncio.TaskGroup() as group:
        group.create_task(record(clock, 5, "late", woken))
        group.create_task(record(clock, 2, "early", woken))
        await clock.until_waiting("early")
        await clock.advance(4)
        assert woken == [("early", 2)]
        await clock.advance(10)

    assert woken == [("early", 2), ("late", 5)]


async def test_a_task_that_sleeps_again_is_woken_again_within_one_advance() -> None:
    clock, beats = FakeClock(), list[float]()

    async def beat() -> None:
        for _ in range(4):
            await clock.sleep(1.5, "beat")
            beats.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        group.create_task(beat())
        await clock.advance(6)

    assert beats == [1.5, 3, 4.5, 6]


async def test_waiting_lists_sleepers_by_tag_soonest_first() -> None:
    clock, woken = FakeClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 2):
            group.create_task(record(clock, seconds, "a", woken))
        group.create_task(record(clock, 9, "b", woken))
        await clock.until_waiting("a", count=3)
        await clock.until_waiting("b")

        due = [timer.due for timer in clock.waiting("a")]
        everybody = [timer.tag for timer in clock.waiting()]
        await clock.advance(9)

    assert due == [1, 2, 3]
    assert everybody == ["a", "a", "a", "b"]
    assert clock.waiting() == []


async def test_fire_wakes_the_next_sleeper_of_a_tag_and_moves_time_no_further() -> None:
    clock, woken = FakeClock(), list[tuple[str, float]]()
    await clock.advance(0.1)

    async with asyncio.TaskGroup() as group:
        group.create_task(record(clock, 0.7, "a", woken))
        other = group.create_task(record(clock, 60, "b", woken))
        await clock.fire("a")
        assert woken == [("a", 0.1 + 0.7)]
        assert not other.done()
        other.cancel()


async def test_a_cancelled_sleeper_leaves_no_timer() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5, "gone"))
    await clock.until_waiting("gone")

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert clock.waiting() == []


async def test_a_sleep_of_nothing_returns_without_an_advance() -> None:
    clock = FakeClock()

    await clock.sleep(0, "now")
    await clock.sleep(-1, "now")

    assert clock.monotonic() == 0


async def test_a_trap_holds_sleepers_back_until_it_releases_them() -> None:
    clock, woken = FakeClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        with clock.trap("a") as trap:
            group.create_task(record(clock, 1, "a", woken))
            await trap.caught()
            await clock.advance(10)
            assert woken == []

            trap.release()
            await clock.until_waiting("a")
            await clock.advance(1)

    assert woken == [("a", 11)]


async def test_leaving_a_trap_releases_all_tasks() -> None:
    clock, woken = FakeClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        with clock.trap("a") as trap:
            group.create_task(record(clock, 1, "a", woken))
            await trap.caught()
        await clock.fire("a")

    assert woken == [("a", 1)]


async def test_waiting_for_a_task_that_never_sleeps_fails() -> None:
    clock = FakeClock(patience_seconds=0.01)

    with pytest.raises(AssertionError, match="expected 1 waiting at 'nobody'"):
        await clock.until_waiting("nobody")
