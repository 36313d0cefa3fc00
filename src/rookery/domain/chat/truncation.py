"""Truncation of tool results to their share of the context window, keeping head and tail.

A result is cut once, before it is stored: cutting at prompt time would change what a model has already seen.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.parts import Json
from rookery.domain.content.attachments import cut_utf8

MIN_BUDGET_BYTES = 16 * 1024
UNKNOWN_BUDGET_BYTES = 64 * 1024
BYTES_PER_TOKEN = 3

_MARKER_ROOM = 256
# The part of that room that a path may take.
_MAX_PATH_BYTES = 140
_PLAIN_CUT_BELOW = 512
# Chosen: a shorter string would say too little.
_SHORTEST_STRING = 64


def budget_bytes(context_limit: int | None) -> int:
    """Return the longest size of one result: a third of the window at three bytes per token."""
    if context_limit is None or context_limit <= 0:
        return UNKNOWN_BUDGET_BYTES
    return max(context_limit // 3 * BYTES_PER_TOKEN, MIN_BUDGET_BYTES)


def cut_text(text: str, max_bytes: int, *, kept_in: str = "") -> str:
    """Return the first two thirds and the last third of what fits, around a marker with the number of missing bytes.

    The text is never longer than `max_bytes`. If the budget is too small for the marker, the text is simply cut.
    `kept_in` is the file with the whole text, which the marker then names.
    """
    advice = "Narrow the query to see them."
    if kept_in and len(kept_in.encode("utf-8", "replace")) <= _MAX_PATH_BYTES:
        advice = f"All of it is in {kept_in}: read a range of that."
    return cut_middle(
        text, max_bytes, lambda removed: f"\n\n[... {removed} bytes of this result were removed. {advice} ...]\n\n"
    )


def cut_middle(text: str, max_bytes: int, marker: Callable[[int], str]) -> str:
    """Return the two ends of a text around a marker that states the missing bytes. Never longer than `max_bytes`."""
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return text
    if max_bytes <= _PLAIN_CUT_BELOW:
        return cut_utf8(data, max_bytes).decode()
    # The number may have fewer digits in the end, never more.
    kept = max_bytes - max(_MARKER_ROOM, len(marker(len(data)).encode("utf-8", "replace")))
    if kept <= 0:
        return cut_utf8(data, max_bytes).decode()
    head = cut_utf8(data, kept * 2 // 3)
    tail = _tail_utf8(data, kept // 3)
    return head.decode() + marker(len(data) - len(head) - len(tail)) + tail.decode()


def cut_json(result: Raw, max_bytes: int, *, kept_in: str = "") -> Raw:
    """Return the result with its longest strings cut until its JSON fits; it stays valid JSON of the same shape.

    A result that does not fit even without its strings becomes the cut text of its JSON. If the strings of an object
    are cut too short for a marker, the object names the file in an extra member.
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
    # The smallest cut is tried first: a table of half a million short rows fits at no length, and each try walks all of
    # it.
    smallest = parts.json_raw(_with_strings_cut(value, _SHORTEST_STRING, kept_in))
    if len(bytes(smallest)) > max_bytes:
        # Half the budget: quotes and line ends of the JSON are escaped when it becomes a string.
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
