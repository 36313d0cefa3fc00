"""Time slices: runs a long computation in pieces, so that the event loop's other tasks run in between.

A thread that never waits holds the GIL for 5 ms at a time. `in_pieces` runs a computation on the event loop, and
`ThreadPauses` lets a thread wait between its pieces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

# The time after which a computation pauses.
PIECE_SECONDS = 0.001

# Long enough for the event loop to take the GIL.
PAUSE_SECONDS = 0.0001

T = TypeVar("T")


async def in_pieces(steps: Generator[None, None, T]) -> T:
    """Run a computation that yields at points where it may pause, and return its result."""
    began = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.perf_counter() - began > PIECE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


class ThreadPauses:
    """Pauses of one thread: call it often, and it waits for a moment once per `PIECE_SECONDS` of work."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self) -> None:
        now = time.perf_counter()
        if now - self._began > PIECE_SECONDS:
            time.sleep(PAUSE_SECONDS)
            self._began = time.perf_counter()
