"""Reasoning effort: what a chat may ask for, what it gets, and what the model at hand can do with it."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import EffortRange

SCALE: tuple[Effort, ...] = tuple(Effort)  # from least to most
_RANK = {effort: rank for rank, effort in enumerate(SCALE)}


def parse(text: str | None) -> Effort | None:
    """An effort as a request names it. Raises `InvalidInput` for a word that is not on the scale."""
    if text is None:
        return None
    try:
        return Effort(text)
    except ValueError:
        raise InvalidInput("reasoning_effort", f"The effort must be one of {', '.join(SCALE)}.") from None


def selectable(allowed: EffortRange | None) -> tuple[Effort, ...]:
    """What people can choose for a model config: the scale up to its maximum. Nothing, when it has no range."""
    return () if allowed is None else SCALE[: _RANK[allowed.max] + 1]


def effective(requested: Effort | None, allowed: EffortRange | None) -> Effort | None:
    """The effort of a turn. A config without a range ignores requests; a request above its maximum is lowered."""
    if allowed is None:
        return None
    return min(requested or allowed.default, allowed.max, key=_RANK.__getitem__)


def nearest_supported(effort: Effort, supported: Sequence[Effort]) -> Effort | None:
    """The lowest supported effort that is not below the wish, else the highest. None when the model has none."""
    if not supported:
        return None
    ranked = sorted(supported, key=_RANK.__getitem__)
    return next((each for each in ranked if _RANK[each] >= _RANK[effort]), ranked[-1])
