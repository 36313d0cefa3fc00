"""Percentiles of times in constant memory."""

from __future__ import annotations

from rookery.telemetry.histogram import Histogram, exponential

# From 0.1 ms to an hour. A percentile is at most 5 % too high.
BOUNDS = exponential(0.0001, 1.05, 358)


class Percentiles:
    """The times of one kind, in seconds."""

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS)
        self.worst = 0.0

    def add(self, seconds: float) -> None:
        self._histogram.observe(seconds)
        self.worst = max(self.worst, seconds)

    @property
    def count(self) -> int:
        return self._histogram.count

    def at(self, percent: float) -> float | None:
        """Return the time that this share of all times does not exceed; None if there are no times."""
        needed = self.count * percent / 100
        for bound, count in self._histogram.cumulative():
            if count and count >= needed:
                return min(bound, self.worst)
        return None
