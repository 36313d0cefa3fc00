from __future__ import annotations

import asyncio

from rookery.lag import TICK_SECONDS, LagMonitor
from rookery.testing.clock import FakeClock


async def test_a_loop_that_wakes_late_is_behind_by_that_much_until_the_next_tick() -> None:
    clock = FakeClock()
    monitor = LagMonitor(clock)
    with clock.trap("lag") as trap:
        task = asyncio.create_task(monitor.run())
        await trap.caught()
        await clock.advance(2)  # something else had the loop for two seconds
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
