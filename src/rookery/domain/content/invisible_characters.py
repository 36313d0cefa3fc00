"""Removal of invisible characters from prompt text of administrators, users and files.

Invisible characters can hide instructions from a reader, and can reorder displayed text. The zero-width non-joiner is
kept, because Persian and other scripts need it.
"""

from __future__ import annotations

import re

from rookery.domain.chat.errors import InvalidInput

MAX_PROMPT_BYTES = 128 * 1024

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b\u200d\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_MANY_NEWLINES = re.compile(r"\n{3,}")
# An unclosed comment hides the rest of the rendered file, so the rest is removed as well.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def clean(text: str) -> str:
    """Return the text without invisible characters, trailing spaces and repeated blank lines. Idempotent."""
    text = text.replace("\r\n", "\n")
    text = _INVISIBLE.sub("", text)
    # Not a pattern such as `[^\S\n]+$`: it starts again at every space of a long run, and freezes the server.
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return _MANY_NEWLINES.sub("\n\n", text).strip()


def clean_markdown(text: str) -> str:
    """Return the cleaned text without HTML comments, which a reader of the rendered file does not see."""
    return clean(_COMMENT.sub("", text))


def check_prompt(text: str, *, field: str) -> str:
    """Return the cleaned prompt. Raises `InvalidInput` if it is too long."""
    cleaned = clean(text)
    # Lone surrogates are stored as U+FFFD, which has three bytes as well.
    size = len(cleaned.encode("utf-8", "surrogatepass"))
    if size > MAX_PROMPT_BYTES:
        raise InvalidInput(field, f"A prompt can have at most {MAX_PROMPT_BYTES} bytes; this one has {size}.")
    return cleaned
