"""Context windows of models: the configured, catalogued, reported and learned sizes, and the effective one."""

from __future__ import annotations

from enum import StrEnum

import msgspec

# A request is estimated at three bytes a token, which is wrong by up to a third. A refusal below this share of the
# window shows that the window is smaller than assumed; above it, the estimate may be wrong.
_SURE_PERCENT = 75
DIFFERENCE_PERCENT = 10
# Chosen: every model reads at least this much. A refusal that suggests less has another cause, and would make the model
# unusable.
MIN_NAMED_TOKENS = 1000
MIN_GUESSED_TOKENS = 2000


class LearnedFrom(StrEnum):
    """The source of a learned window: the provider's number, or a guess after a refusal that named none."""

    PROVIDER = "provider"
    HALVING = "halving"


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one model config, in tokens; None or 0 means unknown."""

    configured: int | None = None
    catalogued: int | None = None
    reported: int | None = None
    learned: int | None = None
    learned_from: LearnedFrom | None = None

    @property
    def effective(self) -> int | None:
        """The smallest known window: a request that is too long for any of them is refused."""
        return smallest(self.configured, self.catalogued, self.reported, self.learned)

    @property
    def differs(self) -> bool:
        """Whether a catalogued, reported or learned window differs from the configured one by more than 10%."""
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
    """Return what a refusal teaches about a window; None if it only shows that this request was too long.

    `estimated` is our estimate of the refused request, `maximum` the number that the provider named. Without a number
    the window is guessed: at most half of the assumed window, and about the size of the refused request. `can_guess` is
    false if the refusal may have another cause. A guess is never less than `read_tokens`, which the model has read
    before, nor less than a quarter of the assumed window, because it applies to all users of the model.
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
