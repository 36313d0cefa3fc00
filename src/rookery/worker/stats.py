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
    jobs: Counter[str] = field(default_factory=Counter)  # runs of housekeeping that were seen through, by job
    jobs_failed: Counter[str] = field(default_factory=Counter)  # by job
    job_seconds: dict[str, float] = field(default_factory=dict)  # of the last run, by job
    purged: Counter[str] = field(default_factory=Counter)  # by what was removed
    # Of the whole deployment, so the same on every replica; by pool.
    agents_active: dict[str, int] = field(default_factory=dict)
    agents_queued: dict[str, int] = field(default_factory=dict)
