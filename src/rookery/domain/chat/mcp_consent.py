"""Consent to MCP servers that files of a workspace name: entries, states, and safe display.

A consent is for one entry, identified by its hash. The entry contains the whole command that is run. It does not
contain the values of variables, which may be secrets and stay in the workspace, or the contents of files.
"""

from __future__ import annotations

import hashlib
import unicodedata
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

_Line = Annotated[str, Meta(max_length=4096)]


class McpDecision(StrEnum):
    AGREE = "agree"
    DENY = "deny"


class McpState(StrEnum):
    """The state of consent. `changed`: the owner's answer was for another entry with this name."""

    ASKED = "asked"
    AGREED = "agreed"
    DENIED = "denied"
    CHANGED = "changed"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server in a file. `env` are the names of variables, and `folder` is the working directory."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    folder: _Line
    command: Annotated[str, Meta(min_length=1, max_length=4096)]
    args: Annotated[tuple[_Line, ...], Meta(max_length=100)] = ()
    env: Annotated[tuple[_Line, ...], Meta(max_length=50)] = ()

    @property
    def hash(self) -> str:
        fields = [self.name, self.folder, self.command, list(self.args), sorted(self.env)]
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def state(entry_hash: str, answered: tuple[str, McpDecision] | None) -> McpState:
    """Return the state of an entry. `answered` is the last answer for its name: an entry's hash, and the decision."""
    if answered is None:
        return McpState.ASKED
    if answered[0] != entry_hash:
        return McpState.CHANGED
    return McpState.AGREED if answered[1] is McpDecision.AGREE else McpState.DENIED


# Categories of characters that could hide or reorder displayed text: control and format characters, surrogates, private
# and unassigned characters, line ends.
_HIDING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return the text with escapes for characters that could hide or reorder displayed text."""
    return "".join(_written(each) if _hides(each) else each for each in text)


def _hides(character: str) -> bool:
    category = unicodedata.category(character)
    return category in _HIDING or (category == "Zs" and character != " ")


def _written(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
