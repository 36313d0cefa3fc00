"""The loop's numbers: limits and deadlines that tests and operators can change."""

from __future__ import annotations

import msgspec


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the loop. All defaults were chosen, not measured. Times are in seconds."""

    stream_silence_seconds: float = 600.0
    # For a stream that never ends but is never silent for long: more than any answer takes.
    stream_max_seconds: float = 2 * 3600.0
    stream_max_parts: int = 1_000_000
    # Size of an answer with its files, in characters and bytes: many times the longest, and still small enough to
    # store.
    stream_max_size: int = 32 * 1024 * 1024
    compaction_seconds: float = 1800.0
    tool_default_deadline_seconds: float = 600.0
    tool_max_deadline_seconds: float = 4 * 3600.0
    # Time for a cancelled tool to clean up; after that it is no longer waited for.
    tool_cleanup_seconds: float = 5.0
    tool_batch_concurrency: int = 16
    # All results of a batch together, in percent of the context window.
    batch_percent: int = 60
    # A provider that pauses more often than this in one turn may not pause again.
    max_pauses: int = 10
