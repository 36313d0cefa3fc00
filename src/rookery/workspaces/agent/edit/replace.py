"""Replacement of matches in a file. Pure.

A literal match is replaced literally. A match by lines keeps the indentation, the trailing blanks and the line endings
of the file, unless the caller changes them:

- A new line with a body in place of an empty line is indented like an inserted line. Blanks of the empty line do not
  count.
- If the leads of the match equal those of `old_text`, the leads of `new_text` are used unchanged.
- A newline of `new_text` gets the form of the newline that it replaces, so a CRLF file stays a CRLF file.
- The last new line has the ending of the last matched line.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

from rookery.workspaces.agent.edit import lines as edit_lines
from rookery.workspaces.agent.edit.lines import CRLF, LF, Line


def replace_exact(
    text: str, starts: list[int], *, old_text: str, new_text: str, forced: str | None, exact: bool
) -> str:
    """Replace every literal match by `new_text`. All its line endings but the last become `forced`."""
    piece = _with_inner_endings(new_text, forced)
    out: list[str] = []
    done = 0
    for start in starts:
        begin, insert = start, piece
        if not exact and old_text.startswith(LF) and start > done and text[start - 1] == "\r":
            # The match begins inside of a CRLF. Its CR must be neither left over nor doubled.
            if new_text.startswith(LF):
                insert = piece[piece.index(LF) :]
            else:
                begin -= 1
        out += (text[done:begin], insert)
        done = start + len(old_text)
    return "".join([*out, text[done:]])


def replace_lines(text: str, starts: list[int], *, old_text: str, new_text: str, forced: str | None) -> str:
    """Replace the lines of every match, line by line. `starts` are the indexes of their first lines."""
    raws = edit_lines.split(text)
    old = edit_lines.parse_all(edit_lines.split(old_text))
    new = edit_lines.parse_all(edit_lines.split(new_text))
    pairing = align(old, new)
    dominant = edit_lines.dominant_ending(text)
    out: list[str] = []
    done = 0
    for start in starts:
        window = edit_lines.parse_all(raws[start : start + len(old)])
        out += raws[done:start]
        out += _Builder(window, old, new, pairing, forced, dominant).lines()
        done = start + len(old)
    return "".join([*out, *raws[done:]])


class Alignment(NamedTuple):
    """The mapping of new lines to old lines."""

    partners: list[int | None]
    """The old line of each new line; None for an inserted line."""
    prefix: int
    suffix: int


def align(old: list[Line], new: list[Line]) -> Alignment:
    """Pair equal lines at the beginning and the end, and the lines between them by position."""
    shorter = min(len(old), len(new))
    prefix = 0
    while prefix < shorter and old[prefix].body == new[prefix].body:
        prefix += 1
    suffix = 0
    while suffix < shorter - prefix and old[-1 - suffix].body == new[-1 - suffix].body:
        suffix += 1
    partners: list[int | None] = []
    for at in range(len(new)):
        if at >= len(new) - suffix:
            partners.append(at - len(new) + len(old))
        else:
            partners.append(at if at < len(old) - suffix else None)
    return Alignment(partners, prefix, suffix)


class _Builder:
    """Builds the replacement lines of one match. `window` are the matched lines."""

    def __init__(
        self,
        window: list[Line],
        old: list[Line],
        new: list[Line],
        alignment: Alignment,
        forced: str | None,
        dominant: str,
    ) -> None:
        self._window = window
        self._old = old
        self._new = new
        self._alignment = alignment
        self._forced = forced
        self._dominant = dominant
        self._open_end = window[-1].ending == ""
        self._file_unit = _indent_unit(window)
        self._same_leads = all(window[at].lead == line.lead for at, line in enumerate(old) if line.body)

    def lines(self) -> list[str]:
        return [
            (line.lead if not line.body else self._lead(at) + line.body + self._trail(at)) + self._ending(at)
            for at, line in enumerate(self._new)
        ]

    def _partner(self, at: int) -> int | None:
        """Return the old line that a new line takes its blanks from: its pair, unless that line has no body."""
        partner = self._alignment.partners[at]
        return partner if partner is not None and self._old[partner].body else None

    def _lead(self, at: int) -> str:
        line = self._new[at]
        partner = self._partner(at)
        if partner is None:
            return self._inserted_lead(at)
        old, here = self._old[partner], self._window[partner]
        if old.lead == line.lead:
            return here.lead
        unit = _indent_unit(self._old)
        if unit is None or unit == self._file_unit or _count_indented(self._old) < 2:
            return line.lead
        moved = _translated_lead(
            new=line.lead, old=old.lead, file=here.lead, caller_unit=unit, file_unit=self._file_unit
        )
        return line.lead if moved is None else moved

    def _inserted_lead(self, at: int) -> str:
        line = self._new[at]
        reference = None if self._same_leads else self._reference(line)
        if reference is None:
            return line.lead
        old, here = self._old[reference], self._window[reference]
        moved = _translated_lead(
            new=line.lead,
            old=old.lead,
            file=here.lead,
            caller_unit=_indent_unit([*self._old, *self._new]),
            file_unit=self._file_unit,
        )
        return here.lead if moved is None else moved

    def _reference(self, line: Line) -> int | None:
        """Return the old line that determines the indentation of an inserted line.

        It is the neighbor below or above with the same lead, else the one below, else the one above.
        """
        partners, prefix, suffix = self._alignment
        end = len(self._new)
        below = next((at for at in range(end - suffix, end) if self._partner(at) is not None), None)
        above = next((at for at in reversed(range(prefix)) if self._partner(at) is not None), None)
        for at in (below, above):
            if at is not None and self._new[at].lead == line.lead:
                return partners[at]
        for at in (below, above):
            if at is not None:
                return partners[at]
        pairs = [at for at in range(prefix, end - suffix) if self._partner(at) is not None]
        return partners[pairs[-1]] if pairs else None

    def _trail(self, at: int) -> str:
        line = self._new[at]
        partner = self._partner(at)
        if partner is not None and self._old[partner].trail == line.trail:
            return self._window[partner].trail
        return line.trail

    def _ending(self, at: int) -> str:
        ending = self._paired_ending(at)
        if at < len(self._new) - 1:
            return self._forced or ending
        if not self._open_end:
            return self._forced or ending or self._window[-1].ending
        return "" if self._alignment.partners[at] is None else ending

    def _paired_ending(self, at: int) -> str:
        ending = self._new[at].ending
        partner = self._alignment.partners[at]
        if partner is None:
            return ending
        inner = at < len(self._new) - 1
        if not inner:
            # The last new line is compared with the last old line, so that a file without a final newline does not get
            # one when its last lines are removed.
            partner = len(self._old) - 1
        here = self._window[partner].ending
        if bool(self._old[partner].ending) == bool(ending):
            return ending if inner and not here else here
        if not ending:
            return ""
        # Without a forced ending, the endings of `new_text` are mixed, and are used unchanged.
        return here or self._forced or (self._dominant if len(self._new) == 1 else ending)


def _with_inner_endings(text: str, forced: str | None) -> str:
    raws = edit_lines.split(text)
    if forced is None or len(raws) < 2:
        return text
    if forced == LF and CRLF not in text:
        return text
    return "".join([*(edit_lines.content_of(raw) + forced for raw in raws[:-1]), raws[-1]])


def _indent_unit(lines: Iterable[Line]) -> str | None:
    """Return one level of indentation in these lines: a tab, or a number of spaces; None if it is unclear."""
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


def _count_indented(lines: Iterable[Line]) -> int:
    return sum(1 for line in lines if line.body and line.lead)


def _indent_level(lead: str, unit: str) -> int | None:
    """Return the indentation level of a lead; None if it is not a multiple of the unit."""
    level, rest = divmod(len(lead), len(unit))
    return level if rest == 0 and lead == unit * level else None


def _translated_lead(*, new: str, old: str, file: str, caller_unit: str | None, file_unit: str | None) -> str | None:
    """Return the lead `file`, moved by as many levels as `new` is deeper than `old`.

    Return None if a unit is unknown, a lead is not a multiple of its unit, or the result would be negative.
    """
    if caller_unit is None or file_unit is None:
        return None
    after, before, here = (
        _indent_level(new, caller_unit),
        _indent_level(old, caller_unit),
        _indent_level(file, file_unit),
    )
    if after is None or before is None or here is None:
        return None
    target = here + after - before
    return file_unit * target if target >= 0 else None
