"""Search snippets: the piece of a text that shows why a search found it. Pure; plain text, without marks.

A snippet approximates what the database matched: it looks for the words of the query, not for its logic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# The length of text that is searched. Chosen: a later hit shows the beginning instead, and a page stays small.
SOURCE_CHARS = 10_000
MAX_CHARS = 160
_LEAD_CHARS = 60

_SPACES = re.compile(r"\s+")
# Terms that a web search excludes: the word after a minus, or the whole phrase.
_NOT_WANTED = re.compile(r'(?:^|(?<=\s))-(?:"[^"]*"|\S+)')
_WORD = re.compile(r"\w+")


def snippet(text: str, queries: Iterable[str]) -> str:
    """Return the text around the first of the words that the queries look for; its beginning if there is none."""
    shown = _SPACES.sub(" ", text[:SOURCE_CHARS]).strip()
    words = [word for query in queries for word in _WORD.findall(_NOT_WANTED.sub(" ", query)) if word.lower() != "or"]
    at = _first(shown, words)
    start = 0 if at <= _LEAD_CHARS else _word_start(shown, at - _LEAD_CHARS, before=at)
    end = start + MAX_CHARS
    cut = shown[start:end].strip()
    return f"{'…' if start else ''}{cut}{'…' if end < len(shown) or len(text) > SOURCE_CHARS else ''}"


def _first(text: str, words: list[str]) -> int:
    if not words:
        return 0
    wanted = "|".join(re.escape(word) for word in words)
    found = re.search(rf"\b(?:{wanted})\b", text, re.IGNORECASE)
    return found.start() if found else 0


def _word_start(text: str, at: int, *, before: int) -> int:
    """Return the beginning of a word at or after an index, if there is one before the hit."""
    space = text.find(" ", at, before)
    return space + 1 if space >= 0 else at
