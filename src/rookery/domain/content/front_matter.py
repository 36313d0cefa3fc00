"""Front matter: the YAML at the beginning of Markdown files, such as skills and kinds of subagents.

The files come from workspaces, so they may be hostile. The YAML is read as a stream of parser events: no objects are
built from it, its size and depth are limited, and aliases are refused (docs/decisions/0061).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
import yaml

# Chosen: twice the size of the longest name and description. It limits the time of the parser.
MAX_CHARS = 8 * 1024
# Chosen: only texts and lists of the top level are used, and `metadata` in published skills is two levels deep.
MAX_DEPTH = 16
# Chosen: published skills have under 100. It bounds the time of the parser more tightly than the characters do: 1,600
# small mappings in one list take ten times as long as other texts of the same length.
MAX_EVENTS = 512

_FENCE = re.compile(r"---[ \t]*\n")
_COMMAS = re.compile(r"[,\s]+")
_FENCE_END = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)
# Without libyaml, the parser is the one written in Python.
_LOADER: type = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

# Represents a key that is a list or a mapping. YAML text cannot contain this character.
_NOT_A_TEXT = "\0"
_NO_FIELDS = "Its front matter has no fields such as `name: ...`."
_QUOTE = " A text with a colon and a space in it needs quotes."


class FrontMatterProblem(ValueError):
    """The reason why front matter cannot be read."""


# A text, a list of texts, or None for any nested value. Numbers, dates and booleans are read as texts.
Value: TypeAlias = str | tuple[str, ...] | None


class Fields(msgspec.Struct, frozen=True):
    """The fields of the top level."""

    values: Mapping[str, Value]

    def text(self, name: str) -> str | None:
        """Return the text of a field; None if it is not given. Raises `FrontMatterProblem` for another value."""
        if name not in self.values:
            return None
        value = self.values[name]
        if not isinstance(value, str):
            raise FrontMatterProblem(f"{name}: this must be a text.")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return the items of a field, written as a YAML list or as one text with commas; None if it is not given.

        Raises `FrontMatterProblem` for another value.
        """
        if name not in self.values:
            return None
        value = self.values[name]
        if value is None:
            raise FrontMatterProblem(f"{name}: this must be a list of texts.")
        return tuple(item for item in _COMMAS.split(value) if item) if isinstance(value, str) else value


def split(text: str) -> tuple[str | None, str]:
    """Return the YAML of the front matter, and the rest. Front matter that is not closed is part of the rest."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not (begin := _FENCE.match(text)) or not (end := _FENCE_END.search(text, begin.end())):
        return None, text
    return text[begin.end() : end.start()], text[end.end() :]


def read(text: str) -> tuple[Fields, str]:
    """Return the fields of the front matter, and the rest.

    Raises `FrontMatterProblem` if there is no front matter, or if it is not a YAML mapping within the limits.
    """
    head, body = split(text)
    if head is None:
        raise FrontMatterProblem("It does not begin with front matter (--- name: ... ---).")
    if len(head) > MAX_CHARS:
        raise FrontMatterProblem(f"Its front matter has more than {MAX_CHARS} characters.")
    try:
        return _fields(yaml.parse(head, Loader=_LOADER)), body
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        hint = _QUOTE if "mapping values" in str(error.problem) else ""
        raise FrontMatterProblem(f"Its front matter is not valid YAML{line}: {error.problem}.{hint}") from None
    except (yaml.YAMLError, UnicodeError):
        raise FrontMatterProblem("Its front matter has characters that YAML does not allow.") from None


def _fields(events: Iterable[yaml.Event]) -> Fields:
    values: dict[str, Value] = {}
    key: str | None = None
    items: list[str] | None = None  # the items of the list that is being read at the second level
    depth = 0
    for count, event in enumerate(events):
        if count > MAX_EVENTS:
            raise FrontMatterProblem("Its front matter has too many values.")
        if isinstance(event, yaml.AliasEvent):
            raise FrontMatterProblem("Its front matter uses YAML aliases, which are not supported.")
        if isinstance(event, yaml.CollectionStartEvent):
            is_list = isinstance(event, yaml.SequenceStartEvent)
            if depth == 0 and is_list:
                raise FrontMatterProblem(_NO_FIELDS)
            depth += 1
            if depth > MAX_DEPTH:
                raise FrontMatterProblem(f"Its front matter is nested more than {MAX_DEPTH} levels deep.")
            # A list with nested values is not a list of texts.
            items = [] if depth == 2 and is_list else None
            continue
        value: Value
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            value, items = (None if items is None else tuple(items)), None
        elif isinstance(event, yaml.ScalarEvent):
            value = event.value
            if depth == 0:
                raise FrontMatterProblem(_NO_FIELDS)
            if items is not None:
                items.append(event.value)
        else:
            continue
        if depth != 1:
            continue
        # A node of the top level is complete: a key, or the value of the last key.
        if key is None:
            key = value if isinstance(value, str) else _NOT_A_TEXT
            if key in values and key != _NOT_A_TEXT:
                raise FrontMatterProblem(f"Its front matter has the field {key[:40]} twice.")
            continue
        values[key], key = value, None
    return Fields(values)
