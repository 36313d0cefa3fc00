"""Truncation of tool results that are too long for the model's window. The beginning and the end are kept.

A result is cut once, before it is stored. A cut that depended on the prompt would change the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.parts import Json
from rookery.domain.content.attachments import cut_utf8

MIN_BUDGET_BYTES = 16 * 1024
UNKNOWN_BUDGET_BYTES = 64 * 1024
BYTES_PER_TOKEN = 3

_MARKER_ROOM = 256
# The largest size of a path in the marker.
_MAX_PATH_BYTES = 140
_PLAIN_CUT_BELOW = 512
# Chosen: shorter strings would be useless.
_SHORTEST_STRING = 64


def budget_bytes(context_limit: int | None) -> int:
    """Return the largest size of one result: a third of the window, at three bytes per token."""
    if context_limit is None or context_limit <= 0:
        return UNKNOWN_BUDGET_BYTES
    return max(context_limit // 3 * BYTES_PER_TOKEN, MIN_BUDGET_BYTES)


def cut_text(text: str, max_bytes: int, *, kept_in: str = "") -> str:
    """Return the beginning and the end of a text around a marker with the number of missing bytes.

    The beginning has two thirds of the room. The result has at most `max_bytes`. If that is too little for the marker,
    only the beginning is returned. `kept_in` is the path of a file with the whole text, for the marker.
    """
    advice = "Narrow the query to see them."
    if kept_in and len(kept_in.encode("utf-8", "replace")) <= _MAX_PATH_BYTES:
        advice = f"All of it is in {kept_in}: read a range of that."
    return cut_middle(
        text, max_bytes, lambda removed: f"\n\n[... {removed} bytes of this result were removed. {advice} ...]\n\n"
    )


def cut_middle(text: str, max_bytes: int, marker: Callable[[int], str]) -> str:
    """Return the beginning and the end of a text around `marker(missing bytes)`. It has at most `max_bytes`."""
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return text
    if max_bytes <= _PLAIN_CUT_BELOW:
        return cut_utf8(data, max_bytes).decode()
    # The final number has at most as many digits as this number.
    kept = max_bytes - max(_MARKER_ROOM, len(marker(len(data)).encode("utf-8", "replace")))
    if kept <= 0:
        return cut_utf8(data, max_bytes).decode()
    head = cut_utf8(data, kept * 2 // 3)
    tail = _tail_utf8(data, kept // 3)
    return head.decode() + marker(len(data) - len(head) - len(tail)) + tail.decode()


def common_length(sizes: Sequence[int], max_bytes: int) -> int:
    """Return the largest length L such that all sizes, each limited to L, add up to at most `max_bytes`."""
    limit, left = max_bytes, len(sizes)
    for size in sorted(sizes):
        if size * left >= limit:
            break
        limit -= size
        left -= 1
    return limit // max(left, 1)


def cut_json(result: Raw, max_bytes: int, *, kept_in: str = "") -> Raw:
    """Return the result with its longest strings cut, so that its JSON fits. It is JSON of the same shape.

    If it does not fit even with short strings, the result is the cut text of its JSON. If the strings are too short for
    a marker, an object gets another member that names the file.
    """
    if len(bytes(result)) <= max_bytes:
        return result
    value = parts.json_value(result)
    cut = _fitted(result, value, max_bytes, kept_in)
    named = {"truncated": {"file": kept_in}}
    room = max_bytes - len(bytes(parts.json_raw(named)))
    is_named = not kept_in or bytes(parts.json_raw(kept_in))[1:-1] in bytes(cut)
    if is_named or not isinstance(value, dict) or room <= _PLAIN_CUT_BELOW:
        return cut
    return parts.json_raw({**parts.json_value(_fitted(result, value, room, kept_in)), **named})


def _fitted(result: Raw, value: Json, max_bytes: int, kept_in: str) -> Raw:
    # The shortest length is tried first. A result with very many short strings does not fit at any length, and each try
    # takes long.
    smallest = parts.json_raw(_with_strings_cut(value, _SHORTEST_STRING, kept_in))
    if len(bytes(smallest)) > max_bytes:
        # Half the room, because quotes and line ends are escaped when JSON becomes a string.
        return parts.json_raw({"output": cut_text(bytes(result).decode(), max_bytes // 2 - 32, kept_in=kept_in)})
    allowed = max_bytes
    while allowed > _SHORTEST_STRING:
        cut = parts.json_raw(_with_strings_cut(value, allowed, kept_in))
        if len(bytes(cut)) <= max_bytes:
            return cut
        allowed //= 2
    return smallest


def _with_strings_cut(value: Json, max_bytes: int, kept_in: str) -> Json:
    match value:
        case str():
            return cut_text(value, max_bytes, kept_in=kept_in)
        case list():
            return [_with_strings_cut(item, max_bytes, kept_in) for item in value]
        case dict():
            return {key: _with_strings_cut(item, max_bytes, kept_in) for key, item in value.items()}
        case _:
            return value


def _tail_utf8(data: bytes, max_bytes: int) -> bytes:
    start = len(data) - max_bytes
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
