"""Garbage collector settings: keep pauses short, because no tokens are sent during a collection."""

from __future__ import annotations

import gc

# Rarer than Python's own 700, 10, 10: almost all objects here are freed by reference counting.
_THRESHOLDS = (2_000, 25, 25)


def leave_start_alone() -> None:
    """Exempt all present objects from garbage collection. Call it once a process has started.

    A collection of all of them takes 100 ms and more, in the middle of users' responses. For the same reason none is
    made here: the garbage so far is not worth it.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
