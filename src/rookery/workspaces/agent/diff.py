"""Unified diffs that stay fast on large files. Pure.

`difflib` compares every line with every other of its kind, which takes minutes on a log of 100,000 lines. Lines that
occur once on both sides split the texts first; `difflib` sees only what is left between them.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq, truth
from typing import NamedTuple

from rookery.workspaces.agent import edit_lines

CONTEXT = 3
# Chosen: above this many pairs of lines, a block counts as replaced as a whole.
MAX_PAIRS = 1_000_000
MAX_BYTES = 1024 * 1024

NO_NEWLINE = "\\ No newline at end of file\n"


class Change(NamedTuple):
    """Lines `a:b` of the old text became lines `c:d` of the new one."""

    a: int
    b: int
    c: int
    d: int


def unified(path: str, before: str, after: str) -> str:
    """The unified diff with three lines of context, under one path; empty for equal texts, cut at `MAX_BYTES`."""
    if before == after:
        return ""
    old, new = edit_lines.split(before), edit_lines.split(after)
    out = [f"--- {path}\n", f"+++ {path}\n"]
    size = 0
    for hunk in _hunks(changes(old, new)):
        lines = _hunk_lines(hunk, old, new)
        size += sum(len(line) for line in lines)
        if size > MAX_BYTES:
            out.append("[the rest of this diff is not shown]\n")
            break
        out += lines
    return "".join(out)


def changes(old: list[str], new: list[str]) -> list[Change]:
    """What differs, in order; adjacent differences are one change."""
    found: list[Change] = []
    # A stack instead of recursion: thousands of anchors are normal in a large file.
    stack = [(0, len(old), 0, len(new))]
    while stack:
        a, b, c, d = stack.pop()
        same = _equal_at_start(old[a:b], new[c:d])
        a, c = a + same, c + same
        same = _equal_at_start(old[a:b][::-1], new[c:d][::-1])
        b, d = b - same, d - same
        if a == b or c == d:
            if a < b or c < d:
                found.append(Change(a, b, c, d))
            continue
        anchors = _anchors(old, new, (a, b, c, d))
        if anchors:
            i, j = a, c
            for k, m in anchors:
                stack.append((i, k, j, m))
                i, j = k + 1, m + 1
            stack.append((i, b, j, d))
        elif (b - a) * (d - c) > MAX_PAIRS:
            found.append(Change(a, b, c, d))
        else:
            matcher = SequenceMatcher(None, old[a:b], new[c:d], autojunk=False)
            found += [Change(a + i, a + k, c + j, c + m) for tag, i, k, j, m in matcher.get_opcodes() if tag != "equal"]
    return sorted(found)


def _equal_at_start(xs: list[str], ys: list[str]) -> int:
    """How many lines are the same before the first that is not; without a step of Python for each of them."""
    return len(list(takewhile(truth, map(eq, xs, ys))))


def _anchors(old: list[str], new: list[str], span: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Lines that occur once on both sides, as many as keep their order."""
    a, b, c, d = span
    where: dict[str, int] = {}
    for i in range(a, b):
        where[old[i]] = -1 if old[i] in where else i
    there: dict[str, int] = {}
    for j in range(c, d):
        there[new[j]] = -1 if new[j] in there else j
    pairs = [(i, there[line]) for line, i in where.items() if i >= 0 and there.get(line, -1) >= 0]
    return _longest_increasing(pairs)


def _longest_increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs (sorted by their first) whose seconds grow too."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for at, (_, j) in enumerate(pairs):
        slot = bisect_left(tails, j)
        previous.append(ends[slot - 1] if slot else -1)
        if slot == len(tails):
            tails.append(j)
            ends.append(at)
        else:
            tails[slot] = j
            ends[slot] = at
    chosen = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chosen.append(pairs[at])
        at = previous[at]
    return chosen[::-1]


def _hunks(found: list[Change]) -> list[list[Change]]:
    """Changes whose context would touch, together."""
    hunks: list[list[Change]] = []
    for change in found:
        if hunks and change.a - hunks[-1][-1].b <= 2 * CONTEXT:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _hunk_lines(hunk: list[Change], old: list[str], new: list[str]) -> list[str]:
    first, last = hunk[0], hunk[-1]
    before = min(CONTEXT, first.a)
    behind = min(CONTEXT, len(old) - last.b)
    start, end = first.a - before, last.b + behind
    new_start, new_end = first.c - before, last.d + behind
    out = [f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n"]
    at = start
    for change in hunk:
        out += [_shown(" ", line) for line in old[at : change.a]]
        out += [_shown("-", line) for line in old[change.a : change.b]]
        out += [_shown("+", line) for line in new[change.c : change.d]]
        at = change.b
    out += [_shown(" ", line) for line in old[at:end]]
    return out


def _range(start: int, end: int) -> str:
    # The form of diff(1): an empty range is named by the line before it.
    if end == start:
        return f"{start},0"
    return f"{start + 1}" if end - start == 1 else f"{start + 1},{end - start}"


def _shown(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}"
