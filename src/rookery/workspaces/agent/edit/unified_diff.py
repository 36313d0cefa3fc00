"""Unified diffs, fast for large files. Pure.

`difflib` alone takes minutes for a log of 100,000 lines, because it compares every line with all equal lines. Here the
lines that occur once in both texts divide them into blocks, and `difflib` compares only these blocks. Most edits change
a few lines, so the common beginning and end are skipped before the texts are split into lines.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq, truth
from typing import NamedTuple

from rookery.workspaces.agent.edit import lines as edit_lines

CONTEXT = 3
# Chosen: a block with more pairs of lines is shown as replaced completely.
MAX_PAIRS = 1_000_000
MAX_BYTES = 1024 * 1024

NO_NEWLINE = "\\ No newline at end of file\n"


class Change(NamedTuple):
    """Lines `a:b` of the old text are replaced by lines `c:d` of the new text."""

    a: int
    b: int
    c: int
    d: int


def unified(path: str, before: str, after: str) -> str:
    """Return the unified diff with three lines of context, at most `MAX_BYTES`. It is empty for equal texts."""
    if before == after:
        return ""
    skipped, old, new = _changed_region(before, after)
    out = [f"--- {path}\n", f"+++ {path}\n"]
    size = 0
    for hunk in _hunks(changes(old, new)):
        lines = _hunk_lines(hunk, old, new, skipped)
        size += sum(len(line) for line in lines)
        if size > MAX_BYTES:
            out.append("[the rest of this diff is not shown]\n")
            break
        out += lines
    return "".join(out)


def _changed_region(before: str, after: str) -> tuple[int, list[str], list[str]]:
    """Return the lines of both texts that include all differences and their context.

    The first value is the number of lines before them.
    """
    start = before.rfind("\n", 0, edit_lines.common_prefix(before, after)) + 1
    same = _common_suffix(before, after, most=min(len(before), len(after)) - start)
    end, other = len(before) - same, len(after) - same
    if not (_begins_line(before, end) and _begins_line(after, other)):
        end = _next_line(before, end)
    for _ in range(CONTEXT):
        start = before.rfind("\n", 0, max(start - 1, 0)) + 1
        end = _next_line(before, end)
    other = len(after) - (len(before) - end)
    return before.count("\n", 0, start), edit_lines.split(before[start:end]), edit_lines.split(after[start:other])


def _common_suffix(before: str, after: str, *, most: int) -> int:
    same, end, other = 0, len(before), len(after)
    while same < most:
        middle = (same + most + 1) // 2
        if before[end - middle : end - same] == after[other - middle : other - same]:
            same = middle
        else:
            most = middle - 1
    return same


def _begins_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"


def _next_line(text: str, at: int) -> int:
    """Return the offset of the next line, or the length of the text."""
    return text.find("\n", at) + 1 or len(text)


def changes(old: list[str], new: list[str]) -> list[Change]:
    """Return the changes in order. Adjacent changes are merged."""
    found: list[Change] = []
    # A stack, because recursion would be thousands of levels deep for a large file.
    stack = [(0, len(old), 0, len(new))]
    while stack:
        a, b, c, d = stack.pop()
        same = _count_equal_at_start(old[a:b], new[c:d])
        a, c = a + same, c + same
        same = _count_equal_at_start(old[a:b][::-1], new[c:d][::-1])
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


def _count_equal_at_start(xs: list[str], ys: list[str]) -> int:
    """Return how many lines are equal at the start. The loop runs in C."""
    return len(list(takewhile(truth, map(eq, xs, ys))))


def _anchors(old: list[str], new: list[str], span: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Return pairs of equal lines that occur once in each text. The largest set with the same order is chosen."""
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
    """Return the longest subsequence of pairs, sorted by their first values, whose second values increase."""
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
    """Group changes whose context lines overlap or touch."""
    hunks: list[list[Change]] = []
    for change in found:
        if hunks and change.a - hunks[-1][-1].b <= 2 * CONTEXT:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _hunk_lines(hunk: list[Change], old: list[str], new: list[str], skipped: int) -> list[str]:
    first, last = hunk[0], hunk[-1]
    before = min(CONTEXT, first.a)
    behind = min(CONTEXT, len(old) - last.b)
    start, end = first.a - before, last.b + behind
    new_start, new_end = first.c - before, last.d + behind
    shown = _range(start + skipped, end + skipped), _range(new_start + skipped, new_end + skipped)
    out = [f"@@ -{shown[0]} +{shown[1]} @@\n"]
    at = start
    for change in hunk:
        out += [_shown(" ", line) for line in old[at : change.a]]
        out += [_shown("-", line) for line in old[change.a : change.b]]
        out += [_shown("+", line) for line in new[change.c : change.d]]
        at = change.b
    out += [_shown(" ", line) for line in old[at:end]]
    return out


def _range(start: int, end: int) -> str:
    # In the format of diff(1), an empty range has the number of the line before it.
    if end == start:
        return f"{start},0"
    return f"{start + 1}" if end - start == 1 else f"{start + 1},{end - start}"


def _shown(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}"
