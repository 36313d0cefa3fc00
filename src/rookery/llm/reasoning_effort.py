"""Reasoning efforts: parsing, the limit of a model config, and the nearest effort that a model supports."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import EffortRange

SCALE: tuple[Effort, ...] = tuple(Effort)  # from least to most
_RANK = {effort: rank for rank, effort in enumerate(SCALE)}


def parse(text: str | None) -> Effort | None:
    """Parse the effort in a request. Raise `InvalidInput` for a name that is not on the scale."""
    if text is None:
        return None
    try:
        return Effort(text)
    except ValueError:
        raise InvalidInput("reasoning_effort", f"The effort must be one of {', '.join(SCALE)}.") from None


def selectable(allowed: EffortRange | None) -> tuple[Effort, ...]:
    """Return the efforts that a user can choose: the scale up to the config's maximum. Empty without a range."""
    return () if allowed is None else SCALE[: _RANK[allowed.max] + 1]


def effective(requested: Effort | None, allowed: EffortRange | None) -> Effort | None:
    """Return the effort of a turn: the requested one, limited by the config's maximum. None without a range."""
    if allowed is None:
        return None
    return min(requested or allowed.default, allowed.max, key=_RANK.__getitem__)


def nearest_supported(effort: Effort, supported: Sequence[Effort]) -> Effort | None:
    """Return the lowest supported effort that is not below `effort`, else the highest. None if none is supported."""
    if not supported:
        return None
    ranked = sorted(supported, key=_RANK.__getitem__)
    return next((each for each in ranked if _RANK[each] >= _RANK[effort]), ranked[-1])
