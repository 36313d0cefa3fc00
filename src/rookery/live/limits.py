"""How much of live parts is kept and for how long, and how they are merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The numbers of worker.md, "Numbers"."""

    episode_max_bytes: int = 4 * 1024 * 1024
    episode_retention_seconds: float = 15.0
    # Of all closed episodes together; the oldest that nobody reads go first.
    closed_max_bytes: int = 64 * 1024 * 1024
    subscriber_stall_seconds: float = 10.0
    merge_window_ms: float = 30.0
    merge_chars: int = 512
    # Chosen: shorter than what the HTTP client gathers before it reads on (`llm.http.GATHER_SECONDS`). Its pieces
    # were merged on the way, and need not wait a second time; words of 50 a second and more are merged here.
    quiet_ms: float = 22.0
