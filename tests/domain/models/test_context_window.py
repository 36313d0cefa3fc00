"""The effective context window, and the estimate after a refused request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.models import context_window
from rookery.domain.models.context_window import Learned, LearnedFrom, Windows

LIMITS = st.none() | st.integers(-10, 10**9)


@pytest.mark.parametrize(
    ("known", "effective", "differs"),
    [
        (Windows(configured=200_000), 200_000, False),
        (Windows(configured=200_000, reported=0, catalogued=None), 200_000, False),
        (Windows(configured=200_000, reported=190_000), 190_000, False),
        (Windows(configured=200_000, reported=180_000), 180_000, False),
        (Windows(configured=200_000, reported=179_999), 179_999, True),
        (Windows(configured=200_000, catalogued=1_000_000), 200_000, True),
        (Windows(configured=200_000, learned=20_000), 20_000, True),
        (Windows(configured=100, reported=90, catalogued=95, learned=92), 90, False),
        (Windows(reported=5), 5, False),
        (Windows(), None, False),
    ],
)
def test_smallest_window_decides_and_a_difference_of_more_than_a_tenth_is_told(
    known: Windows, effective: int | None, differs: bool
) -> None:
    assert (known.effective, known.differs) == (effective, differs)


@given(LIMITS, LIMITS, LIMITS, LIMITS)
def test_window_in_force_is_never_larger_than_any_that_is_known(
    configured: int | None, catalogued: int | None, reported: int | None, learned: int | None
) -> None:
    known = Windows(configured=configured, catalogued=catalogued, reported=reported, learned=learned)
    positive = [each for each in (configured, catalogued, reported, learned) if each is not None and each > 0]

    assert known.effective == (min(positive) if positive else None)


@pytest.mark.parametrize(
    ("window", "estimated", "maximum", "learned"),
    [
        (200_000, 300_000, 128_000, Learned(128_000, LearnedFrom.PROVIDER)),
        (None, 300_000, 128_000, Learned(128_000, LearnedFrom.PROVIDER)),
        (128_000, 140_000, 128_000, None),
        (100_000, 140_000, 128_000, None),
        # No number: the estimate may be wrong near the window, and is not far below it.
        (200_000, 190_000, None, None),
        (200_000, 300_000, None, None),
        (200_000, 150_000, None, Learned(100_000, LearnedFrom.HALVING)),
        (2_000_000, 700_000, None, Learned(700_000, LearnedFrom.HALVING)),
        # A guess counts for everybody: one refusal takes no more than three quarters of the window.
        (2_000_000, 250_000, None, Learned(500_000, LearnedFrom.HALVING)),
        (400_000, 4_000, None, Learned(100_000, LearnedFrom.HALVING)),
        (None, 250_000, None, Learned(250_000, LearnedFrom.HALVING)),
        # Nonsense must not leave a model that nobody can use.
        (200_000, 30, None, None),
        (200_000, 30, 5, None),
        (3_000, 2_100, None, Learned(2_000, LearnedFrom.HALVING)),
        (2_000, 2_000, None, None),
    ],
)
def test_refusal_teaches(window: int | None, estimated: int, maximum: int | None, learned: Learned | None) -> None:
    assert context_window.learn(window, estimated=estimated, maximum=maximum) == learned


def test_refusal_that_may_be_about_something_else_teaches_only_the_number_it_names() -> None:
    assert context_window.learn(400_000, estimated=150_000, maximum=None, can_guess=False) is None
    assert context_window.learn(None, estimated=150_000, maximum=None, can_guess=False) is None
    named = context_window.learn(400_000, estimated=150_000, maximum=128_000, can_guess=False)
    assert named == Learned(128_000, LearnedFrom.PROVIDER)


@pytest.mark.parametrize(
    ("window", "read_tokens", "guess"), [(400_000, 180_000, 180_000), (400_000, 400_000, None), (None, 90_000, 90_000)]
)
def test_guess_is_never_less_than_what_the_model_has_read(
    window: int | None, read_tokens: int, guess: int | None
) -> None:
    learned = context_window.learn(window, estimated=50_000, maximum=None, read_tokens=read_tokens)

    assert (None if learned is None else learned.tokens) == guess


@given(st.integers(1, 10**8), st.integers(0, 10**8), st.none() | st.integers(-5, 10**8))
def test_learned_window_is_always_smaller_than_the_assumed_one(
    window: int, estimated: int, maximum: int | None
) -> None:
    learned = context_window.learn(window, estimated=estimated, maximum=maximum)

    assert learned is None or context_window.MIN_NAMED_TOKENS <= learned.tokens < window
