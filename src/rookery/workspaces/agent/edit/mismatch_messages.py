"""Error messages for an `old_text` that is not in the file or occurs too often. Pure.

A message has line numbers and at most one kind of hint, because several guesses confuse models.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from rookery.workspaces.agent.edit import lines as edit_lines
from rookery.workspaces.agent.edit import match
from rookery.workspaces.agent.edit.lines import BLANKS, CRLF

MAX_PLACES = 5
MAX_HINTS = 3
# Chosen: compared characters, plus 100 for each pair of lines. This takes about half a second.
MAX_COMPARED = 50_000_000

EMPTY = "old_text is empty. Give the text to replace; to write a whole file, use write_file."


def ambiguous(found: match.Found) -> str:
    return (
        f"old_text occurs {len(found.starts)} times ({_lines(found.lines)}). "
        "Add the lines around the one you mean until it is unique, or set replace_all to change them all."
    )


def not_found(text: str, *, old_text: str, new_text: str, exact: bool) -> str:
    if edit_lines.has_ending_intent(old_text, new_text):
        old, new = (_ending_name(edit_lines.internal_ending(part)) for part in (old_text, new_text))
        dominant = _ending_name(edit_lines.dominant_ending(text))
        return (
            f"old_text was not found. Its line endings are {old} and those of new_text are {new}, so it must match "
            f"the file exactly, line endings included; the file mostly has {dominant}."
        )
    if exact:
        message = "old_text was not found. With exact set, all whitespace must be as in the file; check it."
    else:
        message = "old_text was not found. Check whitespace, blank lines and line breaks against the file."
    hints = _miscount_hints(text, old_text, exact=exact) or _swap_hint(text, new_text)
    return " ".join([message, *hints])


class _Place(NamedTuple):
    line: int
    character: str
    times: int


def _miscount_hints(text: str, old_text: str, *, exact: bool) -> list[str]:
    """Return hints for lines of `old_text` that differ from a line of the file only in the count of one character."""
    shorten = edit_lines.content_of if exact else _body
    file_lines = [shorten(raw) for raw in edit_lines.split(text)]
    known = set(file_lines)
    hints: list[str] = []
    more = 0
    budget = MAX_COMPARED
    cost = sum(len(line) + 100 for line in file_lines)
    for number, raw in enumerate(edit_lines.split(old_text), start=1):
        wanted = shorten(raw)
        if not wanted.strip(BLANKS) or wanted in known:
            continue
        budget -= cost
        if budget < 0:
            break
        places: dict[str, list[_Place]] = {}
        for at, line in enumerate(file_lines, start=1):
            character = miscounted(wanted, line)
            if character is not None:
                places.setdefault(character, []).append(_Place(at, character, line.count(character)))
        for character, found in places.items():
            if len(hints) == MAX_HINTS:
                more += 1
            else:
                hints.append(_miscount_sentence(number, wanted.count(character), found))
    return [*hints, f"And {more} more of this kind."] if more else hints


def miscounted(wanted: str, line: str) -> str | None:
    """Return the character if two lines differ only in its count, and it occurs at least twice in one of them."""
    if len(wanted) == len(line) or not wanted or not line:
        return None
    longer, shorter = (wanted, line) if len(wanted) > len(line) else (line, wanted)
    # At the first difference, one of the two lines has an additional occurrence of the character.
    at = edit_lines.common_prefix(longer, shorter)
    for character in {longer[at], shorter[at] if at < len(shorter) else longer[at]}:
        often = longer.count(character)
        if often < 2 or often - shorter.count(character) != len(longer) - len(shorter):
            continue
        if longer.replace(character, "") == shorter.replace(character, ""):
            return character
    return None


def _miscount_sentence(number: int, count: int, places: list[_Place]) -> str:
    character = places[0].character
    name = unicodedata.name(character, "")
    shown = "; ".join(f"line {place.line} has {place.times}" for place in places[:MAX_PLACES])
    more = f"; and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
    label = f"U+{ord(character):04X}" + (f" {name}" if name else "")
    return (
        f"Line {number} of old_text has {count} of {character!r} ({label}), where a line of the file that is otherwise "
        f"the same has another number: {shown}{more}."
    )


def _swap_hint(text: str, new_text: str) -> list[str]:
    if not new_text.strip():
        return []
    lines = match.find_lines(text, new_text)
    if not lines:
        return []
    return [f"But new_text is in the file ({_lines(lines)}): did you swap the two, or is the edit already made?"]


def _body(raw: str) -> str:
    return edit_lines.content_of(raw).strip(BLANKS)


def _lines(numbers: Sequence[int]) -> str:
    unique = sorted(set(numbers))
    shown = ", ".join(str(number) for number in unique[:MAX_PLACES])
    more = f" and {len(unique) - MAX_PLACES} more" if len(unique) > MAX_PLACES else ""
    return f"{'line' if len(unique) == 1 else 'lines'} {shown}{more}"


def _ending_name(ending: str | None) -> str:
    return "CRLF" if ending == CRLF else "LF"
