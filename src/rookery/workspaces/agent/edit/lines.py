"""Lines of text for edits, each split into lead, body, trail and ending. Pure.

Only `\\n` ends a line. A carriage return directly before it belongs to the ending; any other carriage return belongs to
the body. Joining the lines gives exactly the original text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BLANKS = " \t"
LF = "\n"
CRLF = "\r\n"


class Line(NamedTuple):
    """One line in its four parts. In a line without a body, all blanks are in `lead`."""

    lead: str
    body: str
    trail: str
    ending: str


def split(text: str) -> list[str]:
    """Return the lines of a text with their endings. No empty line follows a final newline."""
    found = text.splitlines(keepends=True)
    # `splitlines` is three times as fast. Its result differs only if the text has other line endings of Python, such as
    # a form feed or a lone carriage return.
    if len(found) == text.count(LF) + (text[-1:] not in ("", LF)):
        return found
    pieces = text.split(LF)
    last = pieces.pop()
    lines = [piece + LF for piece in pieces]
    return [*lines, last] if last else lines


def ending_of(raw: str) -> str:
    if raw.endswith(CRLF):
        return CRLF
    return LF if raw.endswith(LF) else ""


def content_of(raw: str) -> str:
    """Return a line without its ending."""
    return raw[: len(raw) - len(ending_of(raw))]


def parse(raw: str) -> Line:
    content = content_of(raw)
    body = content.strip(BLANKS)
    if not body:
        return Line(content, "", "", ending_of(raw))
    lead = content[: len(content) - len(content.lstrip(BLANKS))]
    return Line(lead, body, content[len(lead) + len(body) :], ending_of(raw))


def parse_all(raws: Iterable[str]) -> list[Line]:
    return [parse(raw) for raw in raws]


def internal_ending(text: str) -> str | None:
    """Return the ending that all lines share; None if they differ, or if there is only one line.

    A last line without an ending does not count.
    """
    raws = split(text)
    if len(raws) < 2:
        return None
    endings = {ending_of(raw) for raw in raws} - {""}
    return endings.pop() if len(endings) == 1 else None


def dominant_ending(text: str) -> str:
    crlf = text.count(CRLF)
    return CRLF if crlf > text.count(LF) - crlf else LF


def forced_ending(text: str, new_text: str) -> str | None:
    """Return the ending for all new lines: that of the file, if the lines of `new_text` share an ending."""
    return dominant_ending(text) if internal_ending(new_text) else None


def has_ending_intent(old_text: str, new_text: str) -> bool:
    """Return whether the edit changes line endings: each text uses one ending, and these endings differ."""
    old, new = internal_ending(old_text), internal_ending(new_text)
    return old is not None and new is not None and old != new


def common_prefix(one: str, other: str) -> int:
    """Return how many characters both texts begin with.

    Bisects, because comparing slices is much faster than a loop over characters.
    """
    same, end = 0, min(len(one), len(other))
    while same < end:
        middle = (same + end + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same
