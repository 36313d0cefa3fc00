"""Regular expressions that match in bounded time: the time depends on lengths alone, never on the content of the text.

`re` may need exponential time for some patterns and texts, and holds the event loop meanwhile. A pattern here becomes a
position automaton. The set of its active positions is an integer, so each character of the text costs a few operations
on integers. Only `fullmatch` is offered. The syntax is that of `re` without back references, look-around, flags inside
a pattern, and anchors except `^` at the start and `$` at the end. Those are refused with `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

MAX_PATTERN = 1000
# Repetitions such as {1,63} are written out, so they count.
MAX_POSITIONS = 1000
MAX_DEPTH = 50
# The work of a compilation: nested repetitions of empty groups have no positions, but take time.
MAX_ATOMS = 10_000
# The longest text that is matched. Callers refuse longer ones.
MAX_TEXT = 8192

Predicate: TypeAlias = Callable[[str], bool]

_CLASSES: dict[str, Predicate] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
    "D": lambda char: not char.isdecimal(),
    "W": lambda char: not (char.isalnum() or char == "_"),
    "S": lambda char: not char.isspace(),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_HEX = {"x": 2, "u": 4}


class Unsupported(ValueError):
    """Raised for a pattern that is invalid, too large, or uses a feature that this engine does not have."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the pattern: its first and last positions as bit sets, and whether it matches the empty text."""

    first: int
    last: int
    is_empty: bool


_EMPTY = _Piece(0, 0, True)


@dataclass(slots=True)
class _Set:
    """A set of characters: `chars`, or those for which a predicate of `tests` holds; the opposite if `negated`."""

    chars: set[str] = field(default_factory=set)
    ranges: list[tuple[str, str]] = field(default_factory=list)
    tests: list[Predicate] = field(default_factory=list)
    negated: bool = False

    def has(self, char: str) -> bool:
        found = (
            char in self.chars
            or any(low <= char <= high for low, high in self.ranges)
            or any(test(char) for test in self.tests)
        )
        return found is not self.negated


class BoundedRegex:
    """A compiled pattern. Create it with `compile_pattern`."""

    def __init__(self, pattern: str) -> None:
        parser = _Parser(pattern)
        whole = parser.parse()
        self._first, self._last, self._is_empty = whole.first, whole.last, whole.is_empty
        self._follow = parser.follow
        self._literals = parser.literals
        self._sets = parser.sets
        # The followers of each set of eight positions, filled in as needed.
        self._steps: list[dict[int, int]] = [{} for _ in range(len(self._follow) // 8 + 1)]

    def fullmatch(self, text: str) -> bool:
        """Return whether the whole text matches. It has at most `MAX_TEXT` characters."""
        if len(text) > MAX_TEXT:
            raise ValueError("The text is too long to be matched.")
        if not text:
            return self._is_empty
        masks: dict[str, int] = {}
        reachable, active = self._first, 0
        for char in text:
            mask = masks.get(char)
            if mask is None:
                mask = masks[char] = self._mask(char)
            active = reachable & mask
            if not active:
                return False
            reachable = self._followers(active)
        return bool(active & self._last)

    def _mask(self, char: str) -> int:
        """Return the positions that accept the character."""
        mask = self._literals.get(char, 0)
        for chars, positions in self._sets:
            if chars.has(char):
                mask |= positions
        return mask

    def _followers(self, active: int) -> int:
        found = 0
        for place, octet in enumerate(active.to_bytes((active.bit_length() + 7) // 8, "little")):
            if not octet:
                continue
            step = self._steps[place].get(octet)
            if step is None:
                step = 0
                for bit in range(8):
                    if octet >> bit & 1:
                        step |= self._follow[place * 8 + bit]
                self._steps[place][octet] = step
            found |= step
        return found


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> BoundedRegex:
    """Compile a pattern. Raise `Unsupported` with a sentence."""
    return BoundedRegex(pattern)


class _Parser:
    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise Unsupported(f"A pattern may have at most {MAX_PATTERN} characters.")
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._atoms = 0
        self.follow: list[int] = []
        self.literals: dict[str, int] = {}
        self.sets: list[tuple[_Set, int]] = []

    def parse(self) -> _Piece:
        if self._peek() == "^":
            self._at += 1
        whole = self._alternatives()
        if self._at < len(self._pattern):
            raise Unsupported("A closing parenthesis has no opening one.")
        return whole

    def _peek(self, count: int = 1) -> str:
        return self._pattern[self._at : self._at + count]

    def _take(self) -> str:
        if self._at >= len(self._pattern):
            raise Unsupported("The pattern ends too early.")
        self._at += 1
        return self._pattern[self._at - 1]

    def _alternatives(self) -> _Piece:
        piece = self._sequence()
        while self._peek() == "|":
            self._at += 1
            other = self._sequence()
            piece = _Piece(piece.first | other.first, piece.last | other.last, piece.is_empty or other.is_empty)
        return piece

    def _sequence(self) -> _Piece:
        piece = _EMPTY
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "$":
                if self._depth or self._at != len(self._pattern) - 1:
                    raise Unsupported("`$` is supported at the end of the pattern only.")
                self._at += 1
                break
            piece = self._joined(piece, self._repeated())
        return piece

    def _joined(self, left: _Piece, right: _Piece) -> _Piece:
        self._connect(left.last, right.first)
        return _Piece(
            left.first | (right.first if left.is_empty else 0),
            right.last | (left.last if right.is_empty else 0),
            left.is_empty and right.is_empty,
        )

    def _connect(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self.follow[lowest.bit_length() - 1] |= first
            last ^= lowest

    def _repeated(self) -> _Piece:
        start = self._at
        piece = self._atom()
        end = self._at
        counts = self._counts()
        if counts is None:
            return piece
        least, most = counts
        if self._peek() == "?":
            self._at += 1  # a lazy repetition matches the same whole texts
        elif self._peek() == "+":
            raise Unsupported("Possessive repetitions are not supported.")
        if self._peek() in ("*", "+", "?") or self._at_counts():
            raise Unsupported("A repetition follows another one. Use parentheses.")
        after = self._at
        whole = _EMPTY
        for index in range(max(least, 1) if most is None else most):
            if index:
                # The atom is read again, so that each copy has positions of its own.
                self._at = start
                piece = self._atom()
                assert self._at == end
            if most is None and index == max(least, 1) - 1:
                self._connect(piece.last, piece.first)
            copy = _Piece(piece.first, piece.last, piece.is_empty or index >= least)
            whole = self._joined(whole, copy)
        self._at = after
        return whole

    def _at_counts(self) -> bool:
        at = self._at
        try:
            return self._counts() is not None
        finally:
            self._at = at

    def _counts(self) -> tuple[int, int | None] | None:
        """Read a repetition: its smallest and largest number, None for no limit. None if there is no repetition."""
        match self._peek():
            case "*":
                found: tuple[int, int | None] = (0, None)
            case "+":
                found = (1, None)
            case "?":
                found = (0, 1)
            case "{":
                return self._braces()
            case _:
                return None
        self._at += 1
        return found

    def _braces(self) -> tuple[int, int | None] | None:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, 0)].partition(",")
        is_number = all(not each or (each.isascii() and each.isdigit()) for each in (low, high))
        if end < 0 or not is_number or not (low or comma):
            return None  # a brace without numbers is a literal
        self._at = end + 1
        if len(low) > 4 or len(high) > 4:
            raise Unsupported(f"A repetition may count at most {MAX_POSITIONS} times.")
        least, most = int(low or 0), int(high) if high else (None if comma else int(low))
        if max(least, most or 0) > MAX_POSITIONS:
            raise Unsupported(f"A repetition may count at most {MAX_POSITIONS} times.")
        if most is not None and most < least:
            raise Unsupported("The largest number of a repetition is less than the smallest.")
        return least, most

    def _atom(self) -> _Piece:
        self._atoms += 1
        if self._atoms > MAX_ATOMS:
            raise Unsupported("The pattern is too large: it repeats groups too often.")
        if self._at_counts():
            raise Unsupported("There is nothing to repeat.")
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._set_position(self._char_set())
            case ".":
                return self._set_position(_Set(chars={"\n"}, negated=True))
            case "\\":
                return self._escaped()
            case "^":
                raise Unsupported("`^` is supported at the start of the pattern only.")
            case _:
                return self._literal(char)

    def _group(self) -> _Piece:
        if self._peek() == "?":
            if self._peek(2) != "?:":
                raise Unsupported("Groups that begin with `(?` are not supported, except `(?:`.")
            self._at += 2
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"Groups may be nested {MAX_DEPTH} deep at most.")
        piece = self._alternatives()
        self._depth -= 1
        if self._peek() != ")":
            raise Unsupported("An opening parenthesis has no closing one.")
        self._at += 1
        return piece

    def _escaped(self) -> _Piece:
        found = self._escape()
        return self._literal(found) if isinstance(found, str) else self._set_position(_Set(tests=[found]))

    def _escape(self) -> str | Predicate:
        """Read what follows a backslash: one character, or a class such as `\\d`."""
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char in _HEX:
            digits = self._peek(_HEX[char])
            if len(digits) != _HEX[char] or any(each not in "0123456789abcdefABCDEF" for each in digits):
                raise Unsupported(f"`\\{char}` needs {_HEX[char]} hexadecimal digits.")
            self._at += len(digits)
            return chr(int(digits, 16))
        if char.isascii() and char.isalnum():
            raise Unsupported(f"`\\{char}` is not supported.")
        return char

    def _char_set(self) -> _Set:
        made = _Set()
        if self._peek() == "^":
            self._at += 1
            made.negated = True
        is_first = True
        while self._peek() != "]" or is_first:
            is_first = False
            low = self._set_item()
            if self._peek() != "-" or self._peek(2) in ("-", "-]"):
                made.tests.append(low) if callable(low) else made.chars.add(low)
                continue
            self._at += 1
            high = self._set_item()
            if callable(low) or callable(high) or low > high:
                raise Unsupported("A range of characters is wrong.")
            made.ranges.append((low, high))
        self._at += 1
        return made

    def _set_item(self) -> str | Predicate:
        char = self._take()
        return self._escape() if char == "\\" else char

    def _literal(self, char: str) -> _Piece:
        position = self._position()
        self.literals[char] = self.literals.get(char, 0) | position
        return _Piece(position, position, False)

    def _set_position(self, chars: _Set) -> _Piece:
        position = self._position()
        for index, (known, positions) in enumerate(self.sets):
            if known == chars:
                self.sets[index] = (known, positions | position)
                break
        else:
            self.sets.append((chars, position))
        return _Piece(position, position, False)

    def _position(self) -> int:
        if len(self.follow) >= MAX_POSITIONS:
            raise Unsupported(f"The pattern is too large: with its repetitions it has over {MAX_POSITIONS} characters.")
        self.follow.append(0)
        return 1 << (len(self.follow) - 1)
