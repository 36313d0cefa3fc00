"""Long computations on the event loop, done in pieces so that other tasks run in between.

A thread would not help: it holds the GIL for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

# How long a computation runs without a pause.
PIECE_SECONDS = 0.001

T = TypeVar("T")


async def in_pieces(steps: Generator[None, None, T]) -> T:
    """Return the result of a computation that yields wherever it may be interrupted."""
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
