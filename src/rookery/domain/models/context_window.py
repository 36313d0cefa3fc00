"""Context windows of models: configured, from the catalog, reported, learned, and the effective one. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

# The estimate of three bytes per token is wrong by up to a third. If a request below this percentage of the window is
# refused, the window is smaller than assumed. Above it, the estimate may be wrong.
_SURE_PERCENT = 75
DIFFERENCE_PERCENT = 10
# Chosen: every model accepts at least this many tokens. A refusal that suggests less has another cause.
MIN_NAMED_TOKENS = 1000
MIN_GUESSED_TOKENS = 2000


class LearnedFrom(StrEnum):
    """The source of a learned window: the number in a refusal, or a guess after a refusal without a number."""

    PROVIDER = "provider"
    HALVING = "halving"


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one model config, in tokens. None and 0 mean unknown."""

    configured: int | None = None
    catalogued: int | None = None
    reported: int | None = None
    learned: int | None = None
    learned_from: LearnedFrom | None = None

    @property
    def effective(self) -> int | None:
        """Return the smallest known window; None if none is known."""
        return smallest(self.configured, self.catalogued, self.reported, self.learned)

    @property
    def differs(self) -> bool:
        """Return whether another known window differs from the configured one by more than 10%."""
        configured = self.configured or 0
        others = (self.catalogued, self.reported, self.learned)
        return configured > 0 and any(
            abs(other - configured) * 100 > configured * DIFFERENCE_PERCENT for other in others if other
        )


class Learned(msgspec.Struct, frozen=True):
    tokens: int
    source: LearnedFrom


def smallest(*limits: int | None) -> int | None:
    """Return the smallest positive limit; None if there is none."""
    return min((limit for limit in limits if limit is not None and limit > 0), default=None)


def learn(
    window: int | None, *, estimated: int, maximum: int | None, can_guess: bool = True, read_tokens: int = 0
) -> Learned | None:
    """Return the window that a refusal shows; None if it shows only that this request was too long.

    `estimated` is the estimated size of the request, and `maximum` the number in the provider's refusal. Without a
    number, the window is guessed: about the size of the request, and at most half of the assumed window. `can_guess` is
    False if the refusal may have another cause. A guess is at least `read_tokens`, which the model has accepted before,
    and at least a quarter of the assumed window, because it applies to all users of the model.
    """
    known = window if window is not None and window > 0 else None
    if maximum is not None and maximum >= MIN_NAMED_TOKENS:
        return Learned(maximum, LearnedFrom.PROVIDER) if known is None or maximum < known else None
    if not can_guess or estimated < MIN_GUESSED_TOKENS:
        return None
    if known is None:
        return Learned(max(estimated, read_tokens), LearnedFrom.HALVING)
    if estimated * 100 > known * _SURE_PERCENT:
        return None
    guess = max(min(known // 2, estimated), known // 4, read_tokens, MIN_GUESSED_TOKENS)
    return Learned(guess, LearnedFrom.HALVING) if guess < known else None
