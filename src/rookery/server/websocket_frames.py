"""The encoding of WebSocket frames that a server sends. They are not masked."""

from __future__ import annotations

import struct

_SHORT_HEAD, _MEDIUM_HEAD, _LONG_HEAD = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")
# The first byte of a text message that is one frame.
_TEXT = 0x81


def text_frame(text: bytes) -> bytes:
    size = len(text)
    if size < 126:
        return _SHORT_HEAD.pack(_TEXT, size) + text
    if size < 65_536:
        return _MEDIUM_HEAD.pack(_TEXT, 126, size) + text
    return _LONG_HEAD.pack(_TEXT, 127, size) + text
