"""Glob patterns of approval rules. The matching time depends on the lengths only, not on the content.

`*` stands for any run of characters, `?` for one character, and a backslash makes the next character literal. A pattern
matches a whole text. A set of positions is an integer with one bit for each character of all texts, so each token of a
pattern is one integer operation: m tokens over n characters take about m * n / 64 machine operations.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

MAX_CHARS = 256
MAX_WILDCARDS = 16
# Characters that wildcards do not match in a narrow match: control characters, line ends, shell operators.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u2028\u2029;&|<>$`(){}\\\\"
_unsafe = re.compile(f"[{_UNSAFE}]")
_special = re.compile(r"([*?\\])")
_escaped = re.compile(r"\\.", re.DOTALL)


class _Wild(Enum):
    ONE = "?"
    RUN = "*"


class _Glob(msgspec.Struct, frozen=True):
    tokens: tuple[str | _Wild, ...]
    has_wildcard: bool


@functools.lru_cache(maxsize=8192)
def find_problem(pattern: str) -> str | None:
    """Return why a pattern is invalid, or None. Length and wildcards have limits because they determine the work."""
    if len(pattern) > MAX_CHARS:
        return f"A pattern can have at most {MAX_CHARS} characters; this one has {len(pattern)}."
    wildcards = count_wildcards(pattern)
    if wildcards > MAX_WILDCARDS:
        return f"A pattern can have at most {MAX_WILDCARDS} wildcards (* and ?); this one has {wildcards}."
    return None


def count_wildcards(pattern: str) -> int:
    plain = _escaped.sub("", pattern)
    return plain.count("*") + plain.count("?")


def literal(text: str) -> str:
    """Return the glob that matches only this text."""
    return _special.sub(r"\\\1", text)


def has_wildcard(pattern: str) -> bool:
    return _compiled(pattern).has_wildcard


def fold(text: str) -> str:
    """Return the text in one case. Each character is folded to one character, so the length stays the same."""
    if text.isascii():
        return text.lower()
    text = text.replace("\u0130", "i").replace("\u0131", "i")
    folded = text.casefold()
    return folded if len(folded) == len(text) else "".join(map(_folded, text))


def _folded(character: str) -> str:
    return next((each for each in (character.casefold(), character.lower()) if len(each) == 1), character)


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> _Glob:
    tokens: list[str | _Wild] = []
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            if not tokens or tokens[-1] is not _Wild.RUN:
                tokens.append(_Wild.RUN)
        elif character == "?":
            tokens.append(_Wild.ONE)
        else:
            tokens.append(next(characters, "\\") if character == "\\" else character)
    return _Glob(tuple(tokens), any(isinstance(token, _Wild) for token in tokens))


class Texts:
    """Texts that are matched together.

    A broad match ignores case, and its wildcards match any character. In a narrow match, wildcards do not match control
    characters and shell operators.
    """

    # Measured: the bits that one token processes in about a nanosecond, and the fixed cost of a token.
    BITS: Final = 30
    BASE: Final = 150

    def __init__(self, texts: Sequence[str], *, is_narrow: bool) -> None:
        kept = texts if is_narrow else [fold(text) for text in texts]
        # Each text has one extra position for its end. The character at this position does not matter.
        joined = "".join([f"{text}\n" for text in kept])
        self.count = len(kept)
        self.size = len(joined)
        self._is_narrow = is_narrow
        places = bytearray(b"0" * self.size)
        place = self.size
        for text in kept:
            place -= len(text) + 1
            places[place] = 49  # "1"; the first position is the lowest digit
        self.ends = int(bytes(places), 2) if kept else 0
        everything = (1 << self.size) - 1
        self._starts = ((self.ends << 1) | 1) & everything if kept else 0
        self._inner = everything ^ self.ends
        self._planes = _planes(joined[::-1])
        self._masks: dict[str, int] = {}
        self._wild = self._inner & ~self._marked(_unsafe, joined) if is_narrow else self._inner

    def match(self, pattern: str, spend: Callable[[int], None]) -> int:
        """Return the set of ends of the texts that match. `spend` gets the cost of the work, in about nanoseconds."""
        states = self._starts
        step = self.BASE + self.size // self.BITS
        for token in _compiled(pattern if self._is_narrow else fold(pattern)).tokens:
            if not states:
                return 0
            spend(step)
            if token is _Wild.RUN:
                # The carry of the addition moves from each state to the end of its run of wildcard characters.
                states |= ((states & self._wild) + self._wild) ^ self._wild
            elif token is _Wild.ONE:
                states = (states & self._wild) << 1
            else:
                states = (states & self._mask(token, spend)) << 1
        return states & self.ends

    def _mask(self, character: str, spend: Callable[[int], None]) -> int:
        """Return the set of positions of a character."""
        found = self._masks.get(character)
        if found is None:
            spend(2 * self.size)
            code = ord(character)
            found = self._inner
            for plane, byte in zip(self._planes, (code & 255, code >> 8 & 255, code >> 16), strict=True):
                if plane:
                    found &= int(plane.translate(_only(byte)), 2)
                elif byte:
                    found = 0
            self._masks[character] = found
        return found

    def _marked(self, unwanted: re.Pattern[str], joined: str) -> int:
        if unwanted.search(joined) is None:
            return 0
        places = bytearray(b"0" * self.size)
        for found in unwanted.finditer(joined):
            places[self.size - 1 - found.start()] = 49
        return int(bytes(places), 2)


def _planes(text: str) -> tuple[bytes, bytes, bytes]:
    """Return the low, the middle and the high byte of each character's code point, as three byte strings.

    The middle or high one is empty if all its bytes are zero.
    """
    if text.isascii():
        return text.encode(), b"", b""
    data = text.encode("utf-32-le", "surrogatepass")
    low, middle, high = (data[byte::4] for byte in range(3))
    return low, middle if middle.strip(b"\0") else b"", high if high.strip(b"\0") else b""


@functools.lru_cache(maxsize=256)
def _only(byte: int) -> bytes:
    """Return a table that maps this byte to "1" and all others to "0"."""
    return bytes(49 if each == byte else 48 for each in range(256))


def _ignore_cost(units: int) -> None:
    pass


def matches(pattern: str, text: str, *, is_narrow: bool) -> bool:
    """Return whether a short text matches the pattern. Use `Texts.match` for long texts, to count the cost."""
    return bool(Texts((text,), is_narrow=is_narrow).match(pattern, _ignore_cost))
