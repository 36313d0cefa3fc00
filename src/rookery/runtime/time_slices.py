"""Time slices: runs a long computation on the event loop in pieces, so that other tasks run in between.

A thread would hold the GIL for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

# The time after which a computation pauses.
PIECE_SECONDS = 0.001

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
