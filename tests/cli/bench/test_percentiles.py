"""Percentiles in constant memory."""

from __future__ import annotations

import pytest

from rookery.cli.bench.percentiles import Percentiles


def test_no_times_have_no_percentiles() -> None:
    assert (Percentiles().count, Percentiles().at(50), Percentiles().worst) == (0, None, 0.0)


@pytest.mark.parametrize("percent", [1, 50, 95, 99, 100])
def test_percentile_is_at_most_5_percent_above_the_exact_one(percent: int) -> None:
    times = Percentiles()
    for number in range(1, 1001):
        times.add(number / 1000)

    exact = percent / 100
    found = times.at(percent)
    assert found is not None
    assert exact <= found <= exact * 1.05


def test_no_percentile_is_above_the_worst_time() -> None:
    times = Percentiles()
    times.add(0.2501)
    times.add(100_000.0)

    assert times.at(50) == pytest.approx(0.2501, rel=0.05)
    assert (times.at(99), times.worst) == (100_000.0, 100_000.0)


def test_times_below_the_first_bound_count() -> None:
    times = Percentiles()
    times.add(0.0)

    assert (times.count, times.at(99)) == (1, 0.0)
