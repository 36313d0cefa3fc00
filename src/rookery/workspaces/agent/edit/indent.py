"""Indentation as units and levels, so that a four-space caller can edit a tab file. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from rookery.workspaces.agent.edit.lines import Line


def unit_of(lines: Iterable[Line]) -> str | None:
    """Return one step of indentation in these lines: a tab, or the spaces that divide every lead; None if unclear."""
    width = 0
    tabs = False
    for line in lines:
        if not line.body or not line.lead:
            continue
        if line.lead.strip(" ") == "":
            width = gcd(width, len(line.lead))
        elif line.lead.strip("\t") == "":
            tabs = True
        else:
            return None
    if tabs:
        return None if width else "\t"
    return " " * width if width else None


def count_indented(lines: Iterable[Line]) -> int:
    return sum(1 for line in lines if line.body and line.lead)


def level_of(lead: str, unit: str) -> int | None:
    """Return the depth of a lead, or None when it is not a whole number of units."""
    level, rest = divmod(len(lead), len(unit))
    return level if rest == 0 and lead == unit * level else None


def translate(*, new: str, old: str, file: str, caller_unit: str | None, file_unit: str | None) -> str | None:
    """Return the lead that moves a line of the file as far as the caller moved it from `old` to `new`.

    None when a unit is unknown, a lead is not a whole number of units, or the result would be left of the margin.
    """
    if caller_unit is None or file_unit is None:
        return None
    after, before, here = level_of(new, caller_unit), level_of(old, caller_unit), level_of(file, file_unit)
    if after is None or before is None or here is None:
        return None
    target = here + after - before
    return file_unit * target if target >= 0 else None
