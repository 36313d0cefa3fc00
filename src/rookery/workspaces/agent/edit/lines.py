"""Lines of text for the edit engine, each split into lead, body, trail and ending. Pure.

Only `\\n` ends a line. A carriage return right before it belongs to the ending, any other to the body. Joining the
lines of any text reproduces that text, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BLANKS = " \t"
LF = "\n"
CRLF = "\r\n"


class Line(NamedTuple):
    """One line in its four parts. A line without body keeps all its blanks in `lead`."""

    lead: str
    body: str
    trail: str
    ending: str


def split(text: str) -> list[str]:
    """Return the lines of a text with their endings. Nothing follows a final newline, and an empty text has no
    lines.
    """
    found = text.splitlines(keepends=True)
    # Three times as fast, and equal unless the text has other characters that end a line for Python: a form feed, a
    # lone return.
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
    """Return the ending that all lines share (an unterminated last line is ignored); None for one line, or if they
    differ.
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
    """Return the ending for inserted lines: the file's, if `new_text` has several lines with one kind of ending."""
    return dominant_ending(text) if internal_ending(new_text) else None


def has_ending_intent(old_text: str, new_text: str) -> bool:
    """Return whether the caller wants to change line endings: both texts have one kind, and the kinds differ."""
    old, new = internal_ending(old_text), internal_ending(new_text)
    return old is not None and new is not None and old != new
