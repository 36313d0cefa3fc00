"""Standard process metrics with the names that dashboards expect: CPU, memory, file descriptors, garbage collection.

Values from /proc are omitted on systems without it.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path

from rookery.metrics.families import Family, Numbers, counter, gauge

_PROC = Path("/proc/self")
_PAGE_BYTES = resource.getpagesize()


class Process:
    """Reads the values of the current process."""

    def __init__(self) -> None:
        self.started_at = _found(_started_at)

    @property
    def cpu_seconds(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    @property
    def virtual_bytes(self) -> Numbers:
        return _found(lambda: _pages(0))

    @property
    def resident_bytes(self) -> Numbers:
        return _found(lambda: _pages(1))

    @property
    def open_files(self) -> Numbers:
        return _found(_open_files)

    @property
    def max_files(self) -> float:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return float("inf") if limit == resource.RLIM_INFINITY else limit

    def collections(self, figure: str) -> dict[int, int]:
        """Return a statistic of the garbage collector by generation."""
        return {generation: found[figure] for generation, found in enumerate(gc.get_stats())}


PROCESS: tuple[Family[Process], ...] = (
    counter("process_cpu_seconds_total", "CPU time of the process.", lambda process: process.cpu_seconds, prefix=""),
    gauge("process_resident_memory_bytes", "Memory in use.", lambda process: process.resident_bytes, prefix=""),
    gauge("process_virtual_memory_bytes", "Address space in use.", lambda process: process.virtual_bytes, prefix=""),
    gauge(
        "process_start_time_seconds",
        "Start time of the process, in seconds since 1970.",
        lambda process: process.started_at,
        prefix="",
    ),
    gauge("process_open_fds", "Open files and sockets.", lambda process: process.open_files, prefix=""),
    gauge("process_max_fds", "Maximum number of open files and sockets.", lambda process: process.max_files, prefix=""),
    counter(
        "python_gc_collections_total",
        "Runs of the garbage collector.",
        lambda process: process.collections("collections"),
        labels=("generation",),
        prefix="",
    ),
    counter(
        "python_gc_objects_collected_total",
        "Objects that the garbage collector freed.",
        lambda process: process.collections("collected"),
        labels=("generation",),
        prefix="",
    ),
    counter(
        "python_gc_objects_uncollectable_total",
        "Objects that the garbage collector could not free.",
        lambda process: process.collections("uncollectable"),
        labels=("generation",),
        prefix="",
    ),
)


def _found(read: Callable[[], float]) -> Numbers:
    try:
        return read()
    except OSError:
        return {}


def _pages(place: int) -> float:
    return int((_PROC / "statm").read_text().split()[place]) * _PAGE_BYTES


def _open_files() -> float:
    # Newer kernels report the number as the size of the directory. Listing it takes milliseconds with many clients.
    return (_PROC / "fd").stat().st_size or len(os.listdir(_PROC / "fd"))


def _started_at() -> float:
    # The fields are read after the name, which may contain spaces. The start time is field 22, in ticks since the boot.
    ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return float(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
