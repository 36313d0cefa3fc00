"""Why a stream does not begin, or ends.

StreamRefused         before it begins: an ordinary HTTP answer
├── TooManyStreams    429
└── ReplicaDraining   503: this process is about to stop; another one answers
StreamEnded           after it began: a close code of streaming.md, "Close codes"
"""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    NORMAL = 1000
    ABUSE = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011
    SHUTDOWN = 1012
    NO_DATABASE = 1013
    UNAUTHENTICATED = 4401
    WITHDRAWN = 4403
    DELETED = 4404
    TOO_SLOW = 4408
    TOO_MANY = 4429

    @property
    def asks_to_reconnect(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self in _RECONNECT


_RECONNECT = frozenset({CloseCode.INTERNAL, CloseCode.SHUTDOWN, CloseCode.NO_DATABASE, CloseCode.TOO_SLOW})


class StreamRefused(Exception):
    """The stream does not begin. The message is a sentence for people."""


class TooManyStreams(StreamRefused):
    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(f"There are {maximum} open streams already, which is the limit. Close one and try again.")


class ReplicaDraining(StreamRefused):
    def __init__(self) -> None:
        super().__init__("This server is about to stop. Connect again in a moment.")


class StreamEnded(Exception):
    """The stream is over; the client is told the code and the reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{int(code)}: {reason}")
