"""What the worker counts. Metrics are somebody else's: this is where they come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class WorkerStats:
    """Since the start of the process. Keys of the counters are label values; they are few and fixed."""

    acquired: Counter[str] = field(default_factory=Counter)  # by outcome
    leases_lost: Counter[str] = field(default_factory=Counter)  # by reason
    task_retries: Counter[str] = field(default_factory=Counter)  # by kind of task
    task_stalls: Counter[str] = field(default_factory=Counter)  # by kind of task
    stream_retries: Counter[str] = field(default_factory=Counter)  # by kind of error
    compactions: Counter[str] = field(default_factory=Counter)  # by result
    steps: int = 0
    empty_responses: int = 0
    auto_archived: int = 0
    lease_renew_seconds: float = 0.0  # of the last beat
