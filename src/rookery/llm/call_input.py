"""The completeness check for the input of a tool call. All wires use it when an answer was cut short."""

from __future__ import annotations

import msgspec

_any_json = msgspec.json.Decoder()


def is_json(text: str) -> bool:
    """Return whether the input is complete JSON. Empty input counts as incomplete: it may not have begun."""
    try:
        _any_json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
