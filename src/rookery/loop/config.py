"""The loop's configuration: limits and deadlines."""

from __future__ import annotations

import msgspec


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the loop. The defaults are estimates, not measurements."""

    # Before the first byte of an answer, and within it. Models may have limits of their own.
    first_byte_seconds: float = 300.0
    stream_silence_seconds: float = 120.0
    # Ends a stream that is never silent and never ends. No answer takes this long.
    stream_max_seconds: float = 2 * 3600.0
    stream_max_parts: int = 1_000_000
    # Size of an answer with its files: many times the longest answer, and small enough to store.
    stream_max_size: int = 32 * 1024 * 1024
    compaction_seconds: float = 1800.0
    tool_default_deadline_seconds: float = 600.0
    tool_max_deadline_seconds: float = 4 * 3600.0
    # Time for a cancelled tool to clean up. After that, the batch does not wait for it.
    tool_cleanup_seconds: float = 5.0
    tool_batch_concurrency: int = 16
    # Limit of all results of a batch together, in percent of the context window.
    batch_percent: int = 60
    # Limit of the pauses of a provider in one turn.
    max_pauses: int = 10
