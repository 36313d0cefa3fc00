"""Consent to MCP servers that are named by files of a workspace: the entries and their display.

An entry is everything that decides what is run, except for the values of its variables, which may be secrets and stay
in the workspace, and the contents of files that it names.
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
    """The consent state. `changed`: the owner answered about another entry of this name."""

    ASKED = "asked"
    AGREED = "agreed"
    DENIED = "denied"
    CHANGED = "changed"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server as a file names it. `env` are names of variables, `folder` is its working directory."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    folder: _Line
    command: Annotated[str, Meta(min_length=1, max_length=4096)]
    args: Annotated[tuple[_Line, ...], Meta(max_length=100)] = ()
    env: Annotated[tuple[_Line, ...], Meta(max_length=50)] = ()

    @property
    def hash(self) -> str:
        told = [self.name, self.folder, self.command, list(self.args), sorted(self.env)]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def state(entry_hash: str, answered: tuple[str, McpDecision] | None) -> McpState:
    """Return the state of an entry, given the last answer about its name and the entry it was about."""
    if answered is None:
        return McpState.ASKED
    if answered[0] != entry_hash:
        return McpState.CHANGED
    return McpState.AGREED if answered[1] is McpDecision.AGREE else McpState.DENIED


# Characters that could hide or reorder displayed text: control and format characters, line ends, surrogates, and spaces
# that look alike.
_HIDING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return the text with every character escaped that could hide or reorder what is displayed."""
    return "".join(_written(each) if _hides(each) else each for each in text)


def _hides(character: str) -> bool:
    category = unicodedata.category(character)
    return category in _HIDING or (category == "Zs" and character != " ")


def _written(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
