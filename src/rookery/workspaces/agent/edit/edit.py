"""Edits of one text in memory. Pure. Read `match` next, then `replace`.

Edits are applied in order, each to the result of the previous one. If one of them cannot be applied, none is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.workspaces.agent.edit import lines, match, mismatch_messages, replace

BOM = "\ufeff"


class Edit(NamedTuple):
    """One replacement that the caller requests."""

    old_text: str
    new_text: str
    replace_all: bool = False
    exact: bool = False


class Applied(NamedTuple):
    """The result of an edit: the number of matches, and the search pass that found them (see `match`)."""

    matches: int
    pass_number: int


class EditFailed(Exception):
    """Raised when an edit cannot be applied. The message is for the model. `index` is the position of the edit."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


def apply(text: str, edits: Sequence[Edit]) -> tuple[str, list[Applied]]:
    """Return the text after all edits, and the result of each. Raise `EditFailed` for the first that fails."""
    # Callers do not see a byte order mark, so it is removed. Otherwise a search by lines could not match the first
    # line.
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
        raise EditFailed(mismatch_messages.EMPTY, index)
    intent = lines.has_ending_intent(old_text, new_text)
    literal = edit.exact or intent
    found = match.find(text, old_text, passes=(match.EXACT,) if literal else match.ALL_PASSES)
    if found is None:
        raise EditFailed(
            mismatch_messages.not_found(text, old_text=old_text, new_text=new_text, exact=edit.exact), index
        )
    if len(found.starts) > 1 and not edit.replace_all:
        raise EditFailed(mismatch_messages.ambiguous(found), index)
    forced = None if intent else lines.forced_ending(text, new_text)
    if found.pass_number == match.EXACT:
        text = replace.replace_exact(
            text, found.starts, old_text=old_text, new_text=new_text, forced=forced, exact=edit.exact
        )
    else:
        text = replace.replace_lines(text, found.starts, old_text=old_text, new_text=new_text, forced=forced)
    return text, Applied(len(found.starts), found.pass_number)
