"""Durations as models write them: `500ms`, `30s`, `5m`, `1h30m`, or a number of seconds."""

from __future__ import annotations

import math
import re

MAX_SECONDS = 3600.0

_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class BadDuration(ValueError):
    """Raised for an invalid duration; the text is for the model."""


def parse(text: str | float, *, field: str, may_be_zero: bool = False) -> float:
    """Return the seconds, not clamped. Zero is accepted only where it means a snapshot."""
    seconds = float(text) if isinstance(text, int | float) else _parsed(text.strip().lower())
    is_usable = seconds is not None and math.isfinite(seconds) and (seconds > 0 or (may_be_zero and seconds == 0))
    if seconds is None or not is_usable:
        limit = "0 or more" if may_be_zero else "more than 0"
        raise BadDuration(
            f"The argument `{field}` cannot be used: {text!r} is no duration of {limit}. "
            "Write it like 500ms, 30s, 5m or 1h30m, or as a number of seconds."
        )
    return seconds


def clamp(seconds: float) -> float:
    return min(seconds, MAX_SECONDS)


def shown(seconds: float) -> str:
    """Format a duration for users and models: `1h30m`, `2m5s`, `1.5s`, `250ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.3g}s"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    pieces = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in pieces if number)


def _parsed(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(text))
