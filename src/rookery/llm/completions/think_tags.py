"""The splitter for reasoning that comes as `<think>...</think>` inside the text of a stream.

A tag may be cut anywhere between two chunks: an end of text that could be the start of a tag is held back.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Splits text. `split` returns pieces of (is_reasoning, text), and `rest` what was still held back."""

    __slots__ = ("_held", "_inside", "_trims")

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        # Line ends after a closing tag belong to the tag.
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
    """Return how many characters at the end of `text` may begin `tag`, and must wait for the next text."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
