"""The retry policy: decide whether a failed attempt is repeated, and after which delay. Pure.

The number of attempts is stored with the chat, so a replica that takes over continues the count. The random number is
an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from rookery.domain.chat.chat import RetryState

Chance = Callable[[], float]

_NO_WAIT = timedelta()


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and delays of retries. `jitter` is the largest random addition, as a fraction of the delay."""

    max_attempts: int = 25
    first_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(seconds=60)
    retry_after_cap: timedelta = timedelta(minutes=10)
    jitter: float = 0.2


DEFAULT_POLICY = RetryPolicy()


class GiveUp(StrEnum):
    """The reason why there is no further attempt."""

    NOT_RETRYABLE = "not_retryable"
    NO_ATTEMPT = "no_attempt"
    ATTEMPTS_USED = "attempts_used"
    WAIT_TOO_LONG = "wait_too_long"


def next_delay(
    attempt: int,
    rng: Chance,
    *,
    retryable: bool,
    retry_after: timedelta | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> timedelta | GiveUp:
    """Return the delay after attempt number `attempt` has failed, or the reason to give up.

    Attempt 0 means that no attempt was counted, so none is repeated. If the provider asks for a longer delay than the
    cap, the turn ends, and the user decides how to continue.
    """
    if not retryable:
        return GiveUp.NOT_RETRYABLE
    if attempt <= 0:
        return GiveUp.NO_ATTEMPT
    if attempt >= policy.max_attempts:
        return GiveUp.ATTEMPTS_USED
    if retry_after is not None and retry_after > policy.retry_after_cap:
        return GiveUp.WAIT_TOO_LONG
    return retry_delay(attempt, retry_after, rng, policy=policy)


def retry_delay(
    attempt: int, retry_after: timedelta | None, rng: Chance, *, policy: RetryPolicy = DEFAULT_POLICY
) -> timedelta:
    """Return a delay of 1 s, 2 s, 4 s up to a minute, at least the delay that the provider asked for, plus jitter.

    Jitter is only added, so that no retry is earlier than the provider asked for.
    """
    # The exponent is limited because 2**60 seconds exceed a timedelta.
    doubled = min(policy.first_delay * (1 << min(max(attempt - 1, 0), 30)), policy.max_delay)
    return max(doubled, retry_after or _NO_WAIT) * (1 + policy.jitter * rng())


def remaining_wait(retry: RetryState | None, now: datetime) -> timedelta:
    """Return the rest of a retry delay that a previous runner started: at most the whole delay, as clocks differ."""
    if retry is None:
        return _NO_WAIT
    return min(max(retry.retrying_at - now, _NO_WAIT), timedelta(milliseconds=retry.delay_ms))


def are_attempts_used(attempt: int, policy: RetryPolicy = DEFAULT_POLICY) -> bool:
    """Return whether no attempt is left. An attempt that crashed its process counts."""
    return attempt >= policy.max_attempts
