"""The search for `old_text` in a file, in three passes. Pure.

Pass 1 compares the text literally. Pass 2 compares lines without trailing blanks, pass 3 without leading and trailing
blanks. The first pass with a match decides.
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
    """The matches of one pass, in order and without overlap.

    `starts` are character offsets in pass 1, and line indexes in passes 2 and 3.
    """

    pass_number: int
    starts: list[int]
    lines: list[int]
    """The numbers of the lines where matches begin, from 1."""


def find(text: str, wanted: str, *, passes: tuple[int, ...] = ALL_PASSES) -> Found | None:
    """Return the matches of the first pass that has any; None if there are none. `wanted` must not be empty."""
    for pass_number in passes:
        if pass_number == EXACT:
            starts = _substrings(text, wanted, step=len(wanted))
            if starts:
                return Found(EXACT, starts, _line_numbers(text, starts))
            continue
        starts = _windows(text, wanted, pass_number=pass_number, overlapping=False)
        if starts:
            return Found(pass_number, starts, [start + 1 for start in starts])
    return None


def find_lines(text: str, wanted: str) -> list[int]:
    """Return the line numbers where `wanted` begins, according to the first pass that finds it. Matches may overlap."""
    starts = _substrings(text, wanted, step=1)
    if starts:
        return sorted(set(_line_numbers(text, starts)))
    for pass_number in (TRAILING, OUTER):
        windows = _windows(text, wanted, pass_number=pass_number, overlapping=True)
        if windows:
            return [start + 1 for start in windows]
    return []


def stripped(raw: str, pass_number: int) -> str:
    """Return the part of a line that pass 2 or 3 compares."""
    content = edit_lines.content_of(raw)
    return content.rstrip(BLANKS) if pass_number == TRAILING else content.strip(BLANKS)


def _substrings(text: str, wanted: str, *, step: int) -> list[int]:
    starts = []
    at = text.find(wanted)
    while at >= 0:
        starts.append(at)
        at = text.find(wanted, at + step)
    return starts


def _windows(text: str, wanted: str, *, pass_number: int, overlapping: bool) -> list[int]:
    # Endings are not compared. Within a window both sides have an ending, and the ending of the last line may be
    # missing.
    sought = [stripped(raw, pass_number) for raw in edit_lines.split(wanted)]
    keys = [stripped(raw, pass_number) for raw in edit_lines.split(text)]
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
