"""The values of a tool call's arguments, in the forms that approval rules are matched against.

A rule that permits is matched against a value as it is. A rule that restricts is matched against every reading of it:
as a path, and as each shell command in it. `TooComplex` is raised if a value is too long or a call takes too much work.
It must not be treated as a permission.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from rookery.domain.chat import approval_patterns
from rookery.domain.chat.approval_patterns import Texts

# The limit of all values under one path together. Longer values match every rule that restricts their tool, and no rule
# that permits it.
MAX_VALUE_BYTES = 16 * 1024
# The limit of work for one call, in about nanoseconds. Values beyond this limit count as too long.
MAX_WORK = 20_000_000
_MAX_STRINGS_CHARS = 3 * MAX_VALUE_BYTES
# The first character of JSON must be within this many leading characters.
_MAX_INDENT = 1024

T = TypeVar("T")


def text_of(value: object) -> str:
    """Return the text of a JSON value: a string as it is, other values as JSON with sorted keys and without spaces."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


class TooComplex(Exception):
    """Raised if a value is too long, or if the call exceeds its limit of work."""


class _Values(msgspec.Struct, frozen=True):
    """The values under a path. `is_complete`: the path exists in every item of the lists that it passes through."""

    found: tuple[object, ...]
    is_complete: bool


class CallValues:
    """The arguments of one call, with caches for matching several rules."""

    def __init__(self, args: Mapping[str, object]) -> None:
        self._args = args
        self._left = MAX_WORK
        self._values: dict[str, _Values | None] = {}
        self._exact: dict[str, Texts | None] = {}
        self._readings: dict[str, Texts | None] = {}
        self._parsed: dict[str, object] = {}

    def restricts(self, path: str, pattern: str) -> bool:
        """Return whether any reading of any value under the path matches the pattern. Raises `TooComplex`."""
        if path not in self._readings:
            self._readings[path] = self._texts(path, lambda found: Texts(self._read(found), is_narrow=False))
        return bool(_present(self._readings[path]).match(pattern, self._spend))

    def permits(self, path: str, pattern: str) -> bool:
        """Return whether all values under the path match the pattern as they are, and none is missing.

        Raises `TooComplex`.
        """
        if path not in self._exact:
            self._exact[path] = self._texts(path, lambda found: Texts(list(map(text_of, found)), is_narrow=True))
        texts = _present(self._exact[path])
        values = self._values[path]
        if values is None or not values.found or not values.is_complete:
            return False
        if texts.match(pattern, self._spend) != texts.ends:
            return False
        return not approval_patterns.has_wildcard(pattern) or not any(
            _parent.search(text_of(each)) for each in values.found
        )

    def _texts(self, path: str, make: Callable[[tuple[object, ...]], Texts]) -> Texts | None:
        """Return the texts of a path; None if they are too long."""
        try:
            if path not in self._values:
                self._values[path] = None
                self._values[path] = self._find(path)
            values = _present(self._values[path])
            if not is_within(values.found, MAX_VALUE_BYTES):
                return None
            texts = make(values.found)
            self._spend(50 * texts.size)
        except TooComplex:
            return None
        return texts

    def _spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise TooComplex

    def _find(self, path: str) -> _Values:
        """Return the values under a path. Lists that the path passes through are expanded."""
        nodes: list[object] = [self._args]
        is_complete = True
        for name in path.split("."):
            found: list[object] = []
            for node in self._items(nodes):
                if isinstance(node, Mapping) and name in node:
                    found.append(node[name])
                else:
                    is_complete = False
            nodes = found
        return _Values(tuple(nodes), is_complete)

    def _items(self, nodes: Sequence[object]) -> list[object]:
        """Return the items of lists.

        Strings that contain JSON are parsed, because tools also parse them where their schema declares a list or an
        object.
        """
        found: list[object] = []
        waiting = list(reversed(nodes))
        while waiting:
            value = self._unwrapped(waiting.pop())
            self._spend(400)
            if isinstance(value, list | tuple):
                self._spend(20 * len(value))
                waiting.extend(reversed(value))
            else:
                found.append(value)
        return found

    def _unwrapped(self, node: object) -> object:
        if not isinstance(node, str) or node[:_MAX_INDENT].lstrip()[:1] not in ("", "{", "["):
            return node
        if len(node) > MAX_VALUE_BYTES:
            raise TooComplex
        if node in self._parsed:
            return self._parsed[node]
        self._spend(100 * len(node))
        if node.lstrip()[:1] not in ("{", "["):
            return node
        try:
            self._parsed[node] = json.loads(node)
        except (ValueError, RecursionError):
            self._parsed[node] = node
        return self._parsed[node]

    def _read(self, values: Iterable[object]) -> list[str]:
        """Return all readings of the values: as they are, as paths, and each command in them."""
        whole = [text_of(value) for value in values]
        texts = dict.fromkeys(self._strings(values))
        paths = [posixpath.normpath(text).replace("//", "/") for text in texts if "/" in text]
        return list(dict.fromkeys((*whole, *texts, *paths, *_commands(texts))))

    def _strings(self, values: Iterable[object]) -> list[str]:
        """Return every text in the values, including texts in strings of JSON."""
        found: list[str] = []
        size, nodes = 0, list(values)
        while nodes:
            node = nodes.pop()
            self._spend(400)
            if isinstance(node, Mapping):
                nodes += node.values()
                continue
            if isinstance(node, list | tuple):
                nodes += node
                continue
            found.append(text_of(node))
            size += len(found[-1])
            if size > _MAX_STRINGS_CHARS:
                raise TooComplex
            if (inner := self._unwrapped(node)) is not node:
                nodes.append(inner)
        return found


def is_within(values: Iterable[object], max_bytes: int) -> bool:
    """Return whether the texts of these values have at most `max_bytes` together. Stops as early as possible."""
    left, nodes = max_bytes, list(values)
    while nodes and left >= 0:
        node = nodes.pop()
        if isinstance(node, str):
            # Every character has at least one byte. The exact size is computed only if it might fit.
            left -= len(node) if len(node) > left else len(node.encode("utf-8", "replace"))
        elif isinstance(node, Mapping | list | tuple):
            left -= 2 * len(node)
            if left >= 0:
                nodes += [*node.keys(), *node.values()] if isinstance(node, Mapping) else node
        else:
            left -= node.bit_length() // 3 if isinstance(node, int) else len(str(node)) // 2
    return left >= 0


def _present(value: T | None) -> T:
    if value is None:
        raise TooComplex
    return value


# The path segment `..`.
_parent = re.compile(r"(?:^|[/\s=:,'\"])\.\.(?:$|[/\s:,'\"])")
# Characters that end a shell command, begin another, or redirect it. NUL separates two texts.
_OPERATORS = re.compile(r"[;&|<>(){}`\n\r$\0]+")
_QUOTES = re.compile(r"[\"'\\]")
_SPACES = re.compile(r"\s+")
_SPACES_IN_LINES = re.compile(r"[^\S\n\r]+")
# Words that may precede a command: assignments, keywords, and programs that run their arguments.
_PREFIX = re.compile(
    r"^(?:(?:\w++=\S*+|sudo|doas|env|exec|command|builtin|nohup|nice|time|xargs|then|do|else|if|!) )++", re.MULTILINE
)
_FOLDERS = re.compile(r"^[^ \n]*/", re.MULTILINE)


def _commands(texts: Iterable[str]) -> list[str]:
    """Return every command in the texts without quotes: as it is, and without the words before its program."""
    joined = _QUOTES.sub("", "\0".join(texts))
    whole = _SPACES.sub(" ", joined).split("\0")
    pieces = _OPERATORS.split(_SPACES_IN_LINES.sub(" ", joined))
    found = dict.fromkeys(command for each in (*whole, *pieces) if (command := each.strip()))
    if not found:
        return []
    lines = "\n".join(found)
    return [*found, *_FOLDERS.sub("", _PREFIX.sub("", lines)).split("\n")]
