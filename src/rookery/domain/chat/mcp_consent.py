"""MCP servers that the files of a workspace name: what an owner agrees to, and how that is shown.

An entry is all that decides what is run, except for the values of its variables (they may be secrets, and stay in the
workspace) and for what the files that it names say.
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
    """`changed`: the owner has answered about another entry of this name."""

    ASKED = "asked"
    AGREED = "agreed"
    DENIED = "denied"
    CHANGED = "changed"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server as a file names it. `env` are names of variables, `folder` is where it runs."""

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
    """Where an entry stands, by the last answer about its name: the entry that it was about, and what it was."""
    if answered is None:
        return McpState.ASKED
    if answered[0] != entry_hash:
        return McpState.CHANGED
    return McpState.AGREED if answered[1] is McpDecision.AGREE else McpState.DENIED


# What could hide or reorder what is shown: control and format characters, line ends, halves of pairs, and spaces that
# look like others.
_HIDING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text with every character written out that could hide or reorder what is shown."""
    return "".join(_written(each) if _hides(each) else each for each in text)


def _hides(character: str) -> bool:
    category = unicodedata.category(character)
    return category in _HIDING or (category == "Zs" and character != " ")


def _written(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
