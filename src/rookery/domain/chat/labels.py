"""Validation of chat labels: their number, keys and values.

Labels are stored in a jsonb column. Characters that PostgreSQL cannot store (U+0000, lone surrogates) are refused here,
so that the error names the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rookery.domain.chat.errors import InvalidInput

MAX_LABELS = 50
MAX_KEY_BYTES = 64
MAX_VALUE_BYTES = 256

_KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/-]*")


def validate(labels: Mapping[str, object]) -> dict[str, str]:
    """Return the labels if all are valid. Raises `InvalidInput` for the first that is not."""
    _check_count(len(labels))
    return {_checked_key(key): _checked_value(key, value) for key, value in labels.items()}


def _check_count(count: int) -> None:
    if count > MAX_LABELS:
        raise InvalidInput("labels", f"A chat can have at most {MAX_LABELS} labels, not {count}.")


def _checked_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            _field(key),
            f"The label key '{_shown(key)}' must start with a letter or digit (a-z, A-Z, 0-9), "
            "followed only by letters, digits, '.', '_', '/' and '-'.",
        )
    # The pattern allows ASCII only, so each character is one byte.
    if len(key) > MAX_KEY_BYTES:
        raise InvalidInput(_field(key), f"A label key can have at most {MAX_KEY_BYTES} bytes; this one has {len(key)}.")
    return key


def _checked_value(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(_field(key), f"The value of label '{_shown(key)}' must be text.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(_field(key), f"The value of label '{_shown(key)}' contains a lone surrogate.") from None
    if "\0" in value:
        raise InvalidInput(_field(key), f"The value of label '{_shown(key)}' contains the character U+0000.")
    if not 1 <= size <= MAX_VALUE_BYTES:
        raise InvalidInput(
            _field(key), f"The value of label '{_shown(key)}' must have 1 to {MAX_VALUE_BYTES} bytes; it has {size}."
        )
    return value


def _field(key: str) -> str:
    return f"labels.{_shown(key)}"


def _shown(key: str) -> str:
    """Return the key for an error message: cut, with characters that are not printable as escapes."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in key[: MAX_KEY_BYTES + 1])
    return shown if len(key) <= MAX_KEY_BYTES else shown[:MAX_KEY_BYTES] + "…"
