"""Event loop lag: measures the delay of the event loop, which shows an overload of the replica."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import NoReturn

from rookery.runtime.clock import Clock
from rookery.telemetry.histogram import Histogram
from rookery.telemetry.log import get_logger

TICK_SECONDS = 0.25
WARN_SECONDS = 0.25
MAX_TASK_NAMES = 10
# The number of ticks in five seconds.
RECENT_TICKS = 20
BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.25, 1.0)

log = get_logger("telemetry.loop_lag")


class LagMonitor:
    """Measures the delay of a periodic tick. `lag_seconds` is the last delay; `measured` has all delays."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tick_at = clock.monotonic()
        self._lag_seconds = 0.0
        self._recent: deque[float] = deque([0.0] * RECENT_TICKS, maxlen=RECENT_TICKS)
        self.measured = Histogram(BOUNDS)

    @property
    def usual_seconds(self) -> float:
        """The 95th percentile of the last seconds, which ignores one outlier."""
        return sorted(self._recent)[math.ceil(RECENT_TICKS * 0.95) - 1]

    @property
    def lag_seconds(self) -> float:
        """The last delay. If a tick is overdue, the current delay, because a blocked loop has not measured it yet."""
        overdue = self._clock.monotonic() - self._tick_at - TICK_SECONDS
        return max(self._lag_seconds, overdue, 0.0)

    async def run(self) -> NoReturn:
        while True:
            self._tick_at = self._clock.monotonic()
            await self._clock.sleep(TICK_SECONDS, "lag")
            self._lag_seconds = max(0.0, self._clock.monotonic() - self._tick_at - TICK_SECONDS)
            self._recent.append(self._lag_seconds)
            self.measured.observe(self._lag_seconds)
            if self._lag_seconds > WARN_SECONDS:
                names = sorted({task.get_name() for task in asyncio.all_tasks()})
                log.warning("event_loop_lag", lag_ms=round(self._lag_seconds * 1000), tasks=names[:MAX_TASK_NAMES])
