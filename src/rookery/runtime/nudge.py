"""A nudge: a user's request that a waiting task continues immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Nudge:
    """Passes a user's nudges to the current waits. Without a wait, a nudge has no effect."""

    __slots__ = ("_listeners", "is_pending")

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []
        # Set when a nudge ended a model call: the delay before the next attempt is left out.
        self.is_pending = False

    def send(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def heard_by(self, listener: Callable[[], object]) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)
