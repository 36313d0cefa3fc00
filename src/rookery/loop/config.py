"""The numbers of the loop, in one place, so that tests and operators can change each."""

from __future__ import annotations

import msgspec


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All chosen (worker.md, "Numbers"). Times are seconds."""

    stream_silence_seconds: float = 600.0
    # A stream that says something now and then, for ever: more than any answer takes.
    stream_max_seconds: float = 2 * 3600.0
    stream_max_parts: int = 1_000_000
    # All that an answer says and makes, in characters and bytes: many times the longest, and still fit to be stored.
    stream_max_size: int = 32 * 1024 * 1024
    compaction_seconds: float = 1800.0
    tool_default_deadline_seconds: float = 600.0
    tool_max_deadline_seconds: float = 4 * 3600.0
    # What a cancelled tool gets to clean up; after that nobody waits for it.
    tool_cleanup_seconds: float = 5.0
    tool_batch_concurrency: int = 16
    # All results of a batch together, in per cent of the context window.
    batch_percent: int = 60
    # A provider that pauses more often than this in one turn is taken at its word no longer.
    max_pauses: int = 10
