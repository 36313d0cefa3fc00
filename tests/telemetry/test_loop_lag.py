from __future__ import annotations

import asyncio

from rookery.telemetry.loop_lag import RECENT_TICKS, TICK_SECONDS, LagMonitor
from rookery.testing.clock import FakeClock


async def test_a_loop_that_wakes_late_is_behind_by_that_much_until_the_next_tick() -> None:
    clock = FakeClock()
    monitor = LagMonitor(clock)
    with clock.trap("lag") as trap:
        task = asyncio.create_task(monitor.run())
        await trap.caught()
        await clock.advance(2)  # another task blocked the loop for two seconds
        trap.release()
        await clock.fire("lag")
        late = monitor.lag_seconds

    await clock.fire("lag")

    assert late == 2
    assert monitor.lag_seconds == 0
    task.cancel()


async def test_a_loop_that_is_stuck_shows_before_it_could_measure() -> None:
    clock = FakeClock()
    monitor = LagMonitor(clock)

    await clock.advance(TICK_SECONDS + 3)

    assert monitor.lag_seconds == 3


async def test_one_hiccup_is_not_how_late_the_loop_usually_is() -> None:
    clock = FakeClock()
    monitor = LagMonitor(clock)
    task = asyncio.create_task(monitor.run())

    async def be_late() -> float:
        await clock.until_waiting("lag")
        with clock.trap("lag") as trap:
            await clock.fire("lag")
            await trap.caught()
            await clock.advance(2)
            trap.release()
        await clock.fire("lag")
        return monitor.usual_seconds

    once, twice = await be_late(), await be_late()
    for _ in range(RECENT_TICKS):
        await clock.fire("lag")

    assert (once, twice, monitor.usual_seconds) == (0, 2, 0)
    task.cancel()
