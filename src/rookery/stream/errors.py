"""Exceptions and close codes of streams.

StreamRefused         before the stream begins: an ordinary HTTP response
├── TooManyStreams    429
└── ReplicaDraining   503: this process is stopping; another one answers
StreamEnded           after the stream began: a close code (docs/api/streams.md)
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
        """Whether the same request may succeed after a short time."""
        return self in _RECONNECT


_RECONNECT = frozenset({CloseCode.INTERNAL, CloseCode.SHUTDOWN, CloseCode.NO_DATABASE, CloseCode.TOO_SLOW})


class StreamRefused(Exception):
    """Raised if the stream does not begin. The message is shown to users."""


class TooManyStreams(StreamRefused):
    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(f"You already have {maximum} open streams, which is the limit. Close one and try again.")


class ReplicaDraining(StreamRefused):
    def __init__(self) -> None:
        super().__init__("This server is about to stop. Connect again in a moment.")


class StreamEnded(Exception):
    """Raised if the stream has ended. The client gets the code and the reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{int(code)}: {reason}")
