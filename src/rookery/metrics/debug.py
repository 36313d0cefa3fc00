"""Metrics of debug records."""

from __future__ import annotations

from rookery.debug.stats import DebugStats, Dropped, Result
from rookery.metrics.families import Family, counter, every, gauge

OPERATIONS = ("run", "step", "finish", "attempt", "retry", "message", "close", "beat", "delete")

DEBUG: tuple[Family[DebugStats], ...] = (
    counter(
        "debug_ops_total",
        "Operations on debug records, by result: written (ok), older than the stored state (stale), the run has ended "
        "or is removed (refused), not finished in time (timeout), or failed (failed).",
        lambda stats: stats.operations,
        labels=("op", "result"),
        known=every(OPERATIONS, Result),
    ),
    counter(
        "debug_dropped_total",
        "Parts of debug records that were left out, by reason.",
        lambda stats: stats.dropped,
        labels=("reason",),
        known=every(Dropped),
    ),
    gauge("debug_queue_bytes", "Size of the debug records that wait to be written.", lambda stats: stats.queue_bytes),
)
