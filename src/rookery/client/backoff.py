"""Retry delays with jitter, so that the clients of a server do not all return at the same time."""

from __future__ import annotations

from random import Random

# For streams. Every official client uses the same values.
STREAM_FIRST_SECONDS = 1.0
STREAM_MAX_SECONDS = 10.0
JITTER = 0.3

# For requests. Chosen: a caller waits for the response, so the first retry comes soon and the last within a few
# seconds.
REQUEST_FIRST_SECONDS = 0.25
REQUEST_MAX_SECONDS = 4.0


def stream_delay(attempt: int, rng: Random) -> float:
    """Return the delay before the attempt with this number, counted from 0.

    It is 1 s, doubled up to 10 s, with a jitter of 30 %.
    """
    return _delay(attempt, rng, first=STREAM_FIRST_SECONDS, most=STREAM_MAX_SECONDS)


def request_delay(attempt: int, rng: Random) -> float:
    return _delay(attempt, rng, first=REQUEST_FIRST_SECONDS, most=REQUEST_MAX_SECONDS)


def _delay(attempt: int, rng: Random, *, first: float, most: float) -> float:
    # The exponent is limited as well, because after a night without a server the power would have thousands of digits.
    plain = min(first * 2.0 ** min(attempt, 16), most)
    return min(plain * rng.uniform(1 - JITTER, 1 + JITTER), most)
