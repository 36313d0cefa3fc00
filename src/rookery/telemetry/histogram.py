"""Histograms of times and sizes, independent of their export.

An observation costs a bisection and two additions. Use histograms on the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, ItemsView, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# The default of Prometheus clients, for short operations in seconds.
DEFAULT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Return `count` bounds, each `factor` times the one before."""
    return tuple(start * factor**power for power in range(count))


class Histogram:
    """A histogram. `counts` has one item per bound, for values up to and including it, and one for larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DEFAULT_BOUNDS) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds must be sorted and unique"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return the number of values up to each bound, and up to infinity."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))


class Histograms(Generic[K]):
    """One histogram per key, made with the first observation. Keys are label values from a fixed set."""

    __slots__ = ("_bounds", "_found")

    def __init__(self, bounds: Sequence[float] = DEFAULT_BOUNDS) -> None:
        self._bounds = tuple(bounds)
        self._found: dict[K, Histogram] = {}

    @classmethod
    def of(cls, found: Mapping[K, Histogram]) -> Histograms[K]:
        """Return a view of histograms that other objects fill."""
        histograms = cls()
        histograms._found = dict(found)
        return histograms

    def observe(self, key: K, value: float) -> None:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Histogram(self._bounds)
        found.observe(value)

    def __getitem__(self, key: K) -> Histogram:
        return self._found[key]

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def items(self) -> ItemsView[K, Histogram]:
        return self._found.items()
