"""Page cursors: the encoded sort key of the last row of a page. They stay valid if that row changes or is deleted."""

from __future__ import annotations

import base64
import binascii
from typing import TypeVar

import msgspec

from rookery.domain.chat.errors import InvalidInput

T = TypeVar("T")


def encode(key: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode().rstrip("=")


def decode(cursor: str, kind: type[T]) -> T:
    """Return the sort key. Raises `InvalidInput` if the cursor does not belong to this list."""
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(packed, type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidInput("cursor", "This cursor does not belong to this list. Start without a cursor.") from None


def check_limit(limit: int, maximum: int) -> None:
    if not 1 <= limit <= maximum:
        raise InvalidInput("limit", f"The limit must be between 1 and {maximum}.")
