"""Limits of live parts: how much is kept, for how long, and how deltas are merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartLimits:
    episode_max_bytes: int = 4 * 1024 * 1024
    episode_retention_seconds: float = 15.0
    # Of all closed episodes together; the oldest without readers are dropped first.
    closed_max_bytes: int = 64 * 1024 * 1024
    subscriber_stall_seconds: float = 10.0
    merge_window_ms: float = 30.0
    merge_chars: int = 512
    # Chosen: shorter than the time for which the HTTP client gathers (`llm.http.GATHER_SECONDS`). Its pieces are merged
    # already and need not wait a second time; streams of 50 and more pieces a second are merged here.
    quiet_ms: float = 22.0
