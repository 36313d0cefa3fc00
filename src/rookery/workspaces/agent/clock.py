"""The clocks of the agent; tests supply their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """`now` is for records that outlive the agent, `monotonic` for measuring time."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
