"""Keep-alive messages of an answer, such as comments of gateways and pings. They show that the server is working, and
are no parts of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[], None] | None] = ContextVar("liveness_listener", default=None)


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` for each sign of life in answers that this task reads."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def note() -> None:
    """Note that bytes have arrived which contain no part."""
    if (listener := _listener.get()) is not None:
        listener()
