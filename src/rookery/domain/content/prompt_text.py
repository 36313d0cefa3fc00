"""Cleans the prompt text of admins, users and files before a model reads it.

Characters that nobody sees can carry instructions that nobody reviewed, and turn text around on the screen. The
zero-width non-joiner stays: Persian and other scripts need it to be spelled right.
"""

from __future__ import annotations

import re

from rookery.domain.chat.errors import InvalidInput

MAX_PROMPT_BYTES = 128 * 1024

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b\u200d\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_TRAILING_SPACES = re.compile(r"[^\S\n]+$", re.MULTILINE)
_MANY_NEWLINES = re.compile(r"\n{3,}")
# An unclosed comment hides the rest of the file from people who read it rendered, so it goes as well.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def clean(text: str) -> str:
    """The text without what people cannot see. Cleaning twice changes nothing."""
    text = text.replace("\r\n", "\n")
    text = _INVISIBLE.sub("", text)
    text = _TRAILING_SPACES.sub("", text)
    return _MANY_NEWLINES.sub("\n\n", text).strip()


def clean_markdown(text: str) -> str:
    """As `clean`, and without HTML comments: an instruction file is judged by how it is shown."""
    return clean(_COMMENT.sub("", text))


def check_prompt(text: str, *, field: str) -> str:
    """The cleaned prompt as it is stored; `InvalidInput` when it is larger than a prompt may be."""
    cleaned = clean(text)
    # Lone surrogates are stored as U+FFFD, which has three bytes as well.
    size = len(cleaned.encode("utf-8", "surrogatepass"))
    if size > MAX_PROMPT_BYTES:
        raise InvalidInput(field, f"A prompt has at most {MAX_PROMPT_BYTES} bytes; this one has {size}. Shorten it.")
    return cleaned
