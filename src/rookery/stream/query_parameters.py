"""The query parameters of a chat's stream, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rookery.domain.chat.errors import InvalidInput

MAX_TAIL = 1000
DEFAULT_TAIL = 200

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class StreamParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a stream. `after_id` 0: the client has no messages. `tail` 0: the client wants no window.

    A stream marks messages as read only on request.
    """

    after_id: int = 0
    tail: int = DEFAULT_TAIL
    parts: bool = True
    mark_read: bool = False
    debug: bool = False


def parse(query: Mapping[str, str], *, last_event_id: str | None = None) -> StreamParams:
    """Return the parameters of a request. Raises `InvalidInput`, which names the wrong parameter.

    `Last-Event-ID` takes precedence over `after_id`.
    """
    for name in query:
        if name not in StreamParams.__struct_fields__:
            raise InvalidInput(name, f"There is no parameter {name!r} here.")
    given = dict(query)
    if last_event_id:
        given["after_id"] = last_event_id
    return StreamParams(
        after_id=_number(given, "after_id", default=0, maximum=2**63 - 1),
        tail=_number(given, "tail", default=DEFAULT_TAIL, maximum=MAX_TAIL),
        parts=_flag(given, "parts", default=True),
        mark_read=_flag(given, "mark_read", default=False),
        debug=_flag(given, "debug", default=False),
    )


def _number(given: Mapping[str, str], name: str, *, default: int, maximum: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > maximum:
        raise InvalidInput(name, f"{name} must be a number from 0 to {maximum}.")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text not in _BOOLEANS:
        raise InvalidInput(name, f"{name} must be true or false.")
    return _BOOLEANS[text]
