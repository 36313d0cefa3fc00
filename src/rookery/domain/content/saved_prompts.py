"""Saved prompts: texts that users insert into a message by `/name`. Variables are written `{{name}}`."""

from __future__ import annotations

import re

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import check_storable

MAX_TEXT_BYTES = 64 * 1024
# Of a user, and of all shared prompts together. Chosen: a search of this many takes milliseconds.
MAX_PROMPTS = 10_000
SUMMARY_CHARS = 200

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_VARIABLE = re.compile(r"\{\{ ?([A-Za-z0-9_][A-Za-z0-9_ -]{0,39}?) ?\}\}")


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    if not is_name(name):
        raise InvalidInput(
            "name", "A name has 1 to 64 lowercase letters, digits and hyphens, and does not begin with a hyphen."
        )


def checked_text(text: str) -> str:
    """Return the text in stored form. Raises `InvalidInput`."""
    kept = text.replace("\r\n", "\n").strip()
    check_storable("text", kept)
    if not kept:
        raise InvalidInput("text", "A saved prompt needs a text.")
    if (size := len(kept.encode())) > MAX_TEXT_BYTES:
        raise InvalidInput("text", f"A saved prompt can have at most {MAX_TEXT_BYTES:,} bytes; this one has {size:,}.")
    return kept


def summary(text: str) -> str:
    """Return the beginning of the text in one line. Searches look at it and at the name."""
    return " ".join(text[: 4 * SUMMARY_CHARS].split())[:SUMMARY_CHARS]


def variables(text: str) -> tuple[str, ...]:
    """Return the names of the variables in their order, each once."""
    return tuple(dict.fromkeys(_VARIABLE.findall(text)))
