"""Histograms."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.telemetry.histogram import Histogram, Histograms, exponential


def test_value_on_a_bound_belongs_to_it() -> None:
    sizes = Histogram((1.0, 2.0))

    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        sizes.observe(value)

    assert sizes.cumulative() == [(1.0, 2), (2.0, 4), (inf, 5)]
    assert (sizes.count, sizes.total) == (5, 7.5)


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_each_bucket_holds_what_is_at_most_its_bound(values: list[float]) -> None:
    sizes = Histogram((0.1, 1.0, 100.0))

    for value in values:
        sizes.observe(value)

    assert sizes.cumulative() == [(bound, sum(value <= bound for value in values)) for bound in (0.1, 1.0, 100.0, inf)]
    assert sizes.total == pytest.approx(sum(values))


def test_bounds_that_do_not_rise_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Histogram((1.0, 1.0))


def test_exponential_bounds_grow_by_their_factor() -> None:
    assert exponential(1, 2, 4) == (1, 2, 4, 8)


def test_each_key_has_its_own_histogram() -> None:
    sizes = Histograms[str]((1.0,))

    sizes.observe("a", 0.5)
    sizes.observe("b", 3.0)
    sizes.observe("b", 4.0)

    assert {key: found.total for key, found in sizes.items()} == {"a": 0.5, "b": 7.0}
    assert "c" not in sizes
    assert len(sizes) == 2
