"""Context variables with the debug run and the debug step of the current model call.

A call without a run is not recorded. Work that outlives a turn, such as a title, starts with both variables cleared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# The types are in `recorder`, which this module cannot import.
current_run: ContextVar[Any] = ContextVar("rookery_debug_run", default=None)
current_step: ContextVar[Any] = ContextVar("rookery_debug_step", default=None)


@contextmanager
def cleared() -> Iterator[None]:
    """Run a block without a run and step, for example the start of a background task."""
    run, step = current_run.set(None), current_step.set(None)
    try:
        yield
    finally:
        current_run.reset(run)
        current_step.reset(step)
