"""Reads from a client, with deadlines and a signal when the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Reader(asyncio.StreamReader):
    """A stream that also signals immediately that its client has left, to handlers that do not read."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        self.gone.set()
        super().feed_eof()

    def set_exception(self, exc: Any) -> None:
        self.gone.set()
        super().set_exception(exc)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Make reads fail with a timeout, now and later, when the client needs longer than this."""
        # A timer instead of `wait_for`, which costs a task for each read on the Pythons this runs on.
        timer = asyncio.get_running_loop().call_later(seconds, lambda: self.set_exception(asyncio.TimeoutError()))
        try:
            yield
        finally:
            timer.cancel()
