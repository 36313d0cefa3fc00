"""Splits streamed text into reasoning, which is inside `<think>...</think>`, and answer.

A chunk may end inside a tag, so text that could be the start of a tag is held back until the next chunk.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Splits a streamed text at think tags.

    `split` returns (is_reasoning, text) pairs, and holds back an end that may be the beginning of a tag. `rest` returns
    it as pairs when the text has ended.
    """

    __slots__ = ("_held", "_inside", "_trims")

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        # Line breaks after a closing tag belong to the tag.
        self._trims = False

    def split(self, text: str) -> list[tuple[bool, str]]:
        pieces: list[tuple[bool, str]] = []
        text = self._held + text
        while True:
            before, tag, after = text.partition(CLOSE if self._inside else OPEN)
            if not tag:
                break
            self._add(pieces, before)
            self._inside = not self._inside
            self._trims = not self._inside
            text = after
        keep = _held_back(text, CLOSE if self._inside else OPEN)
        self._held = text[len(text) - keep :]
        self._add(pieces, text[: len(text) - keep])
        return pieces

    def rest(self) -> list[tuple[bool, str]]:
        pieces: list[tuple[bool, str]] = []
        self._add(pieces, self._held)
        self._held = ""
        return pieces

    def _add(self, pieces: list[tuple[bool, str]], text: str) -> None:
        if self._trims:
            text = text.lstrip("\r\n")
            self._trims = not text
        if text:
            pieces.append((self._inside, text))


def _held_back(text: str, tag: str) -> int:
    """Return the number of characters at the end of `text` that may be the start of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
