"""Whether the input of a tool call is whole: all wires ask when an answer was cut short, and must agree."""

from __future__ import annotations

import msgspec

_any_json = msgspec.json.Decoder()


def is_json(text: str) -> bool:
    """False for input that was cut off, and for none at all: that may be input which had not begun."""
    try:
        _any_json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
