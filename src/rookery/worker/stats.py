"""The worker's counters, exported as metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from rookery.domain.chat.messages import Role, Visibility
from rookery.models.call_stats import CallStats
from rookery.store.chats.step_reads import LoadedHistory, Step
from rookery.telemetry.histogram import Histogram, Histograms, exponential

# Used for acquisitions, lease renewals and cancelled tasks.
WAIT_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0)
TURN_BOUNDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
JOB_BOUNDS = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
TOOL_BOUNDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)

# Outcomes of turns that are not in `TurnEnd`.
FAILED = "error"
INTERRUPTED = "interrupted"

# The name of the job, and whether it succeeded.
JobKey: TypeAlias = tuple[str, bool]


class ToolStats:
    """Implements `loop.tool_batch.ToolStats`. Labels are tool names; the loop limits their number."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()  # by outcome
        self.truncated: Counter[str] = Counter()
        self.seconds = Histograms[str](TOOL_BOUNDS)
        self.result_bytes = Histograms[str](exponential(64, 4, 9))

    def tool_finished(self, tool: str, *, is_error: bool, seconds: float, result_bytes: int) -> None:
        self.calls[tool, "error" if is_error else "ok"] += 1
        self.seconds.observe(tool, seconds)
        self.result_bytes.observe(tool, result_bytes)

    def result_truncated(self, tool: str) -> None:
        self.truncated[tool] += 1

    def tool_abandoned(self, tool: str) -> None:
        """Count a tool that did not end after its cancellation. Its call may also be counted as an error."""
        self.calls[tool, "abandoned"] += 1


@dataclass(slots=True)
class WorkerStats:
    """Counters since the start of the process. Their keys are label values from fixed sets."""

    calls: CallStats = field(default_factory=CallStats)
    tools: ToolStats = field(default_factory=ToolStats)
    acquired: Counter[str] = field(default_factory=Counter)  # by outcome
    acquire_lag_seconds: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    gave_way: Counter[str] = field(default_factory=Counter)  # by pool
    takeovers: Counter[str] = field(default_factory=Counter)  # by reason
    leases_lost: Counter[str] = field(default_factory=Counter)  # by reason
    lease_renew_seconds: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    fence_rejections: Counter[str] = field(default_factory=Counter)  # by transition
    task_retries: Counter[str] = field(default_factory=Counter)  # by kind of task
    task_stalls: Counter[str] = field(default_factory=Counter)  # by kind of task
    cancel_unwind_seconds: Histograms[str] = field(default_factory=lambda: Histograms(WAIT_BOUNDS))  # by kind of task
    turns: Counter[str] = field(default_factory=Counter)  # by outcome
    turn_seconds: Histograms[str] = field(default_factory=lambda: Histograms(TURN_BOUNDS))  # by outcome
    auto_archived: int = 0
    approvals_asked: int = 0  # tool calls for which this replica asked for approval
    jobs: Counter[str] = field(default_factory=Counter)  # successful housekeeping runs, by job
    jobs_failed: Counter[str] = field(default_factory=Counter)  # by job
    job_seconds: Histograms[JobKey] = field(default_factory=lambda: Histograms(JOB_BOUNDS))
    purged: Counter[str] = field(default_factory=Counter)  # by kind of removed object
    # Values of the whole deployment, which are the same on every replica; by pool.
    agents_active: dict[str, int] = field(default_factory=dict)
    agents_queued: dict[str, int] = field(default_factory=dict)
    # Also values of the whole deployment.
    approvals_open: int = 0
    approval_oldest_seconds: float = 0.0

    def chat_acquired(self, runnable_since: datetime | None, now: datetime) -> None:
        if runnable_since is not None:
            self.acquire_lag_seconds.observe(_seconds(runnable_since, now))

    def turn_ended(self, outcome: str, step: Step, *, now: datetime) -> None:
        """Count the end of a turn. `step` is its last step."""
        if step.chat.compaction_requested_at is not None and not step.chat.compaction_resume:
            return  # the summary of a chat at rest is not a turn
        self.turns[outcome] += 1
        if (since := _begun_at(step.history)) is not None:
            self.turn_seconds.observe(outcome, _seconds(since, now))


def _begun_at(history: LoadedHistory) -> datetime | None:
    """Return the time of the message that began the turn; None if a compaction removed it from the history."""
    for row in reversed(history.rows):
        message = row.message
        if message.role is Role.USER and message.visibility is not Visibility.MODEL and not message.compressed:
            return message.created_at
    return None


def _seconds(start: datetime, end: datetime) -> float:
    """Return the seconds between two times; at least 0, because they may be from the clocks of two machines."""
    return max(0.0, (end - start).total_seconds())
