"""Retry delays of the client."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rookery.client import backoff


@given(st.integers(0, 10_000), st.integers(0, 2**32))
def test_waits_of_streams_double_from_one_to_ten_seconds(attempt: int, seed: int) -> None:
    wait = backoff.stream_delay(attempt, Random(seed))

    plain = min(2.0 ** min(attempt, 10), 10.0)
    assert 0.7 * plain <= wait <= min(1.3 * plain, 10.0)


@given(st.integers(0, 10_000), st.integers(0, 2**32))
def test_waits_of_requests_stay_short(attempt: int, seed: int) -> None:
    assert 0.0 < backoff.request_delay(attempt, Random(seed)) <= backoff.REQUEST_MAX_SECONDS
