"""The load of this machine, for limits that must hold beside other work."""

from __future__ import annotations

import os

# Processes per core of a test run (WORKERS in the Makefile): this load is normal.
OWN_LOAD = 3.0


def slowdown() -> float:
    """Return how much slower this machine is than one that only runs these tests; 1 on a quiet machine."""
    cores = len(os.sched_getaffinity(0))
    return max(1.0, os.getloadavg()[0] / (OWN_LOAD * cores))
