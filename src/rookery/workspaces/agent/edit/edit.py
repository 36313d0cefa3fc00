"""Edits applied to one text in memory: find, check, replace. Pure; read `match` next, then `replace`.

Edits apply in order, each to the result of the previous one. Either all of them apply, or the text is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.workspaces.agent.edit import hints, lines, match, replace

BOM = "\ufeff"


class Edit(NamedTuple):
    """One replacement as the caller requested it."""

    old_text: str
    new_text: str
    replace_all: bool = False
    exact: bool = False


class Applied(NamedTuple):
    """The result of an edit: the number of matches, and the `number` of the search pass that found them.

    Pass 1 compares literally, pass 2 ignores trailing blanks, pass 3 ignores leading and trailing blanks.
    """

    matches: int
    number: int


class EditFailed(Exception):
    """Raised when an edit cannot be applied.

    The message is written for a model: it gives the reason and the lines concerned. `index` is the position of the edit
    in the request, from 0.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


def apply(text: str, edits: Sequence[Edit]) -> tuple[str, list[Applied]]:
    """Return the text after all edits and the result of each. Raises `EditFailed` for the first that cannot be
    applied.
    """
    # A byte order mark is not part of the first line that users see. Left in place, a search by lines could never find
    # that line.
    mark = BOM if text.startswith(BOM) and not any(edit.old_text.startswith(BOM) for edit in edits) else ""
    text = text[len(mark) :]
    applied = []
    for index, edit in enumerate(edits):
        text, done = _apply_one(text, edit, index)
        applied.append(done)
    return mark + text, applied


def _apply_one(text: str, edit: Edit, index: int) -> tuple[str, Applied]:
    old_text, new_text = edit.old_text, edit.new_text
    if not old_text:
        raise EditFailed(hints.EMPTY, index)
    intent = lines.has_ending_intent(old_text, new_text)
    literal = edit.exact or intent
    found = match.find(text, old_text, passes=(match.EXACT,) if literal else match.ALL_PASSES)
    if found is None:
        raise EditFailed(hints.not_found(text, old_text=old_text, new_text=new_text, exact=edit.exact), index)
    if len(found.starts) > 1 and not edit.replace_all:
        raise EditFailed(hints.ambiguous(found), index)
    forced = None if intent else lines.forced_ending(text, new_text)
    if found.number == match.EXACT:
        text = replace.replace_exact(
            text, found.starts, old_text=old_text, new_text=new_text, forced=forced, exact=edit.exact
        )
    else:
        text = replace.replace_lines(text, found.starts, old_text=old_text, new_text=new_text, forced=forced)
    return text, Applied(len(found.starts), found.number)
