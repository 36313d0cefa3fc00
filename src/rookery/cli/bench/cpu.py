"""CPU time of process trees and of this machine, from /proc."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    seconds: float  # with that of its ended children


def of_tree(pid: int) -> float:
    """Return the CPU seconds of a process and all its descendants so far, including those that have ended."""
    children: dict[int, list[_Process]] = defaultdict(list)
    found: dict[int, _Process] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            # A process may end meanwhile.
            with suppress(OSError):
                process = _read(int(entry.name))
                found[process.pid] = process
                children[process.parent].append(process)
    if pid not in found:
        return 0.0
    total, waiting = 0.0, [found[pid]]
    while waiting:
        process = waiting.pop()
        total += process.seconds
        waiting += children[process.pid]
    return total


def busy_share() -> tuple[float, float]:
    """Return the CPU seconds that all processes of this machine used, and those that passed, over all cores."""
    fields = [int(field) for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _TICKS, sum(fields) / _TICKS


def processor() -> str:
    """Return the name of the processor; empty if it is not known."""
    lines = (PROC / "cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _read(pid: int) -> _Process:
    # The name of a process may contain spaces and parentheses.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return _Process(pid, int(fields[1]), _own_seconds(pid) + sum(map(int, fields[13:15])) / _TICKS)


def _own_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, in nanoseconds' resolution. /proc counts only hundredths of a second."""
    # CPUCLOCK_SCHED of another process: what clock_getcpuclockid(3) returns, which Python does not offer.
    return time.clock_gettime((~pid << 3) | 2)
