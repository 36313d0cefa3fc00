"""The clocks of the agent. Tests replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The two clocks. `now` is the time of day, for records that outlive the agent. `monotonic` measures durations."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
