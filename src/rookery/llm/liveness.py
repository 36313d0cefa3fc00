"""Signs of life of an answer that are not parts of it, such as the keep-alive comments of gateways and pings.

The loop listens to them while it reads an answer, so that its silence limit ends dead streams only. They are not parts,
because neither clients nor records need them.
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
