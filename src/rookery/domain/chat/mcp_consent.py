"""Consent to MCP servers that files of a workspace name: entries, states, and safe display.

A consent is for one entry, identified by its hash. The entry contains the whole command that is run, or the address
that is connected to. It does not contain the values of variables and headers, which may be secrets, or the contents of
files.
"""

from __future__ import annotations

import hashlib
import unicodedata
from enum import StrEnum
from typing import Annotated, Literal

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
    """An MCP server in a file: a command, which runs in the workspace, or an address, to which Rookery connects.

    `folder` is the folder of the file, in which the command runs. `headers` are the names of the headers that are sent
    to the address. `env` are names of variables: those that the command gets, or those whose values are in headers.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    folder: _Line
    command: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    args: Annotated[tuple[_Line, ...], Meta(max_length=100)] = ()
    env: Annotated[tuple[_Line, ...], Meta(max_length=50)] = ()
    url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    type: Literal["auto", "http", "sse"] | None = None
    headers: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=20)] = ()

    def __post_init__(self) -> None:
        has_address = self.url is not None
        if has_address is (self.command is not None) or has_address is not (self.type is not None):
            raise ValueError("an entry has either a command, or an address with its type")

    @property
    def hash(self) -> str:
        fields: list[object] = [self.name, self.folder]
        if self.url is None:
            fields += [self.command, list(self.args), sorted(self.env)]
        else:
            fields += [{"type": self.type, "url": self.url}, sorted(self.headers), sorted(self.env)]
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()

    def for_agent(self) -> dict[str, object]:
        """Return the entry as the agent has described it. The agent refuses an entry that has other fields."""
        shared: dict[str, object] = {"name": self.name, "folder": self.folder, "env": list(self.env)}
        if self.url is None:
            return {**shared, "command": self.command, "args": list(self.args)}
        return {**shared, "url": self.url, "type": self.type, "headers": list(self.headers)}


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
