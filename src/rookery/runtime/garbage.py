"""Keeping the search for reference cycles short: while it runs, nobody gets a token."""

from __future__ import annotations

import gc

# Fewer and later than Python's own 700, 10, 10: almost everything here is freed without a search.
_THRESHOLDS = (2_000, 25, 25)


def leave_start_alone() -> None:
    """To be called once a process has started: what it has by then stays to its end, and is never looked at again.

    A search through all of it takes 100 ms and more, in the middle of everybody's answers. For the same reason none is
    made here: what garbage there is by now is not worth it.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
