"""Matches of `old_text` in a file: literal, else by lines without trailing blanks, else without outer blanks. Pure.

The first pass with a match decides, so a literal match always takes precedence over a looser one.
"""

from __future__ import annotations

from typing import NamedTuple

from rookery.workspaces.agent.edit import lines as edit_lines
from rookery.workspaces.agent.edit.lines import BLANKS

EXACT = 1
TRAILING = 2
OUTER = 3
ALL_PASSES = (EXACT, TRAILING, OUTER)


class Found(NamedTuple):
    """Matches of one pass, left to right and without overlap: character offsets in pass 1, line indexes in 2 and 3."""

    number: int
    starts: list[int]
    lines: list[int]
    """The line each match begins in, counted from 1."""


def find(text: str, wanted: str, *, passes: tuple[int, ...] = ALL_PASSES) -> Found | None:
    """Return the matches of the first pass that has any. `wanted` must not be empty."""
    for number in passes:
        if number == EXACT:
            starts = _substrings(text, wanted, step=len(wanted))
            if starts:
                return Found(EXACT, starts, _line_numbers(text, starts))
            continue
        starts = _windows(text, wanted, number=number, overlapping=False)
        if starts:
            return Found(number, starts, [start + 1 for start in starts])
    return None


def find_lines(text: str, wanted: str) -> list[int]:
    """Return the lines where `wanted` begins, by the first pass that finds it. Overlaps count, and each line once."""
    starts = _substrings(text, wanted, step=1)
    if starts:
        return sorted(set(_line_numbers(text, starts)))
    for number in (TRAILING, OUTER):
        windows = _windows(text, wanted, number=number, overlapping=True)
        if windows:
            return [start + 1 for start in windows]
    return []


def stripped(raw: str, number: int) -> str:
    """Return the part of a line that pass 2 or 3 compares."""
    content = edit_lines.content_of(raw)
    return content.rstrip(BLANKS) if number == TRAILING else content.strip(BLANKS)


def _substrings(text: str, wanted: str, *, step: int) -> list[int]:
    starts = []
    at = text.find(wanted)
    while at >= 0:
        starts.append(at)
        at = text.find(wanted, at + step)
    return starts


def _windows(text: str, wanted: str, *, number: int, overlapping: bool) -> list[int]:
    # Endings need no comparison: inside a window both sides are newlines, and at its end one of them may be missing.
    sought = [stripped(raw, number) for raw in edit_lines.split(wanted)]
    keys = [stripped(raw, number) for raw in edit_lines.split(text)]
    first, count = sought[0], len(sought)
    starts = []
    at = 0
    while at + count <= len(keys):
        if keys[at] == first and keys[at : at + count] == sought:
            starts.append(at)
            at += 1 if overlapping else count
        else:
            at += 1
    return starts


def _line_numbers(text: str, offsets: list[int]) -> list[int]:
    numbers = []
    line, counted = 1, 0
    for offset in offsets:
        line += text.count("\n", counted, offset)
        counted = offset
        numbers.append(line)
    return numbers
