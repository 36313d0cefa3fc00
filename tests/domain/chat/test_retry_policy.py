"""The retry policy: the attempts that are repeated, and their delays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import retry_policy
from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.retry_policy import GiveUp, RetryPolicy

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def never() -> float:
    return 0.0


@pytest.mark.parametrize(
    ("attempt", "delay"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (24, 60)]
)
def test_delay_doubles_up_to_a_minute(attempt: int, delay: int) -> None:
    assert retry_policy.next_delay(attempt, never, retryable=True) == seconds(delay)


def test_all_waits_together_take_about_19_minutes() -> None:
    waits = [retry_policy.retry_delay(attempt, None, never) for attempt in range(1, 25)]

    assert sum(waits, timedelta()) == timedelta(minutes=19, seconds=3)


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 4.0), (0.5, 4.4), (1.0, 4.8)])
def test_chance_adds_up_to_a_fifth(chance: float, delay: float) -> None:
    assert retry_policy.retry_delay(3, None, lambda: chance) == seconds(delay)


@pytest.mark.parametrize(("asked", "delay"), [(0, 4), (3, 4), (4, 4), (5, 5), (90, 90), (600, 600)])
def test_longer_wait_that_the_provider_asked_for_wins(asked: int, delay: int) -> None:
    assert retry_policy.next_delay(3, never, retryable=True, retry_after=seconds(asked)) == seconds(delay)


@pytest.mark.parametrize(
    ("attempt", "retryable", "retry_after", "why"),
    [
        (1, False, None, GiveUp.NOT_RETRYABLE),
        (0, True, None, GiveUp.NO_ATTEMPT),
        (-1, True, None, GiveUp.NO_ATTEMPT),
        (25, True, None, GiveUp.ATTEMPTS_USED),
        (26, True, None, GiveUp.ATTEMPTS_USED),
        (1, True, 600.001, GiveUp.WAIT_TOO_LONG),
        (25, False, 9999, GiveUp.NOT_RETRYABLE),
        (25, True, 9999, GiveUp.ATTEMPTS_USED),
    ],
)
def test_some_failures_are_final(attempt: int, retryable: bool, retry_after: float | None, why: GiveUp) -> None:
    asked = None if retry_after is None else seconds(retry_after)

    assert retry_policy.next_delay(attempt, never, retryable=retryable, retry_after=asked) is why


def test_numbers_come_from_the_policy() -> None:
    policy = RetryPolicy(
        max_attempts=3, first_delay=seconds(10), max_delay=seconds(15), retry_after_cap=seconds(20), jitter=1.0
    )

    assert retry_policy.next_delay(1, never, retryable=True, policy=policy) == seconds(10)
    assert retry_policy.next_delay(2, lambda: 1.0, retryable=True, policy=policy) == seconds(30)
    assert retry_policy.next_delay(3, never, retryable=True, policy=policy) is GiveUp.ATTEMPTS_USED
    assert (
        retry_policy.next_delay(1, never, retryable=True, retry_after=seconds(21), policy=policy)
        is GiveUp.WAIT_TOO_LONG
    )


@given(st.integers(max_value=10**9), st.floats(min_value=0, max_value=600), st.floats(min_value=0, max_value=1))
def test_delay_is_never_shorter_than_asked_nor_longer_than_its_bound(attempt: int, asked: float, chance: float) -> None:
    delay = retry_policy.retry_delay(attempt, seconds(asked), lambda: chance)

    assert max(seconds(1), seconds(asked)) <= delay <= max(seconds(60), seconds(asked)) * 1.2


@pytest.mark.parametrize(("attempt", "used"), [(0, False), (24, False), (25, True), (26, True)])
def test_crashes_use_attempts_up_too(attempt: int, used: bool) -> None:
    assert retry_policy.are_attempts_used(attempt) is used


# A wait that somebody else began


def waiting(until: timedelta, delay_ms: int) -> RetryState:
    return RetryState(attempt=1, delay_ms=delay_ms, error="Acme is busy.", retrying_at=NOW + until)


@pytest.mark.parametrize(
    ("state", "remaining"),
    [
        (None, 0),
        (waiting(seconds(3), 4000), 3),
        (waiting(seconds(0), 4000), 0),
        (waiting(seconds(-100), 4000), 0),
        (waiting(seconds(100), 4000), 4),
    ],
    ids=["none", "under way", "over now", "long over", "other clock is ahead"],
)
def test_rest_of_a_wait_is_waited_for(state: RetryState | None, remaining: int) -> None:
    assert retry_policy.remaining_wait(state, NOW) == seconds(remaining)
