"""What the worker counts: runners, leases, tasks, turns, tools, jobs, live parts."""

from __future__ import annotations

from collections import Counter

from rookery.domain.chat.decision import TurnEnd
from rookery.domain.chat.transitions import Transition
from rookery.metrics.families import Family, counter, gauge, histogram
from rookery.worker.stats import FAILED, INTERRUPTED
from rookery.worker.tasks import READ, TaskKind
from rookery.worker.worker import Worker

RUNNER_STATES = ("streaming", "tools", "retry_wait", "requires_action", "interrupting")
POOLS = ("root", "subagent")
# What a task may find refused by its fence.
FENCED = (
    READ,
    Transition.RECORD_GENERATION_ATTEMPT,
    Transition.RECORD_RETRY_STATE,
    Transition.COMMIT_STEP,
    Transition.ENTER_REQUIRES_ACTION,
    Transition.ASK_APPROVALS,
    Transition.FINISH_TURN,
    Transition.FINISH_ERROR,
    Transition.FINISH_INTERRUPTION,
    Transition.CANCEL_REQUIRES_ACTION,
    Transition.INTERRUPT,
    Transition.ABANDON,
    Transition.GIVE_WAY,
)

RUNNERS: tuple[Family[Worker], ...] = (
    gauge(
        "runners",
        "Chats that this replica drives, by what their task is at.",
        lambda worker: worker.manager.states(),
        labels=("state",),
        known=RUNNER_STATES,
    ),
    gauge("inflight_tasks", "Effects of finished turns that still run.", lambda worker: worker.inflight_tasks),
    counter(
        "acquire_total",
        "Tries to take a chat, by how they ended.",
        lambda worker: worker.stats.acquired,
        labels=("outcome",),
        known=("won", "lost", "full", "failed", "closed"),
    ),
    histogram(
        "acquire_lag_seconds",
        "Time from when a chat could run until a runner took it.",
        lambda worker: worker.stats.acquire_lag_seconds,
    ),
    counter(
        "gave_way_total",
        "Chats that were put back between two steps, because their owner held more slots than a fair share and another"
        " owner waited.",
        lambda worker: worker.stats.gave_way,
        labels=("pool",),
        known=POOLS,
    ),
    counter(
        "takeovers_total",
        "Chats taken over from another process: one that is gone (lock_gone), or whose lease had ended (lease).",
        lambda worker: worker.stats.takeovers,
        labels=("reason",),
        known=("lock_gone", "lease"),
    ),
    counter(
        "leases_lost_total",
        "Leases that were not this replica's any more (taken), or that it gave up because it could not renew (fenced).",
        lambda worker: worker.stats.leases_lost,
        labels=("reason",),
        known=("taken", "fenced"),
    ),
    histogram(
        "lease_renew_seconds",
        "Time of the statement that renews all leases of the replica.",
        lambda worker: worker.stats.lease_renew_seconds,
    ),
    counter(
        "fence_rejections_total",
        "Transitions, and looks at a chat (`read`), that were refused because the chat had moved on.",
        lambda worker: worker.stats.fence_rejections,
        labels=("transition",),
        known=FENCED,
    ),
    counter(
        "task_retries_total",
        "Tasks that failed and were run again.",
        lambda worker: worker.stats.task_retries,
        labels=("kind",),
        known=TaskKind,
    ),
    counter(
        "task_stalls_total",
        "Tasks that ended without moving their chat.",
        lambda worker: worker.stats.task_stalls.total(),
    ),
    histogram(
        "cancel_unwind_seconds",
        "Time from when a task was told to leave until it had left.",
        lambda worker: worker.stats.cancel_unwind_seconds,
        labels=("kind",),
    ),
)

TURNS: tuple[Family[Worker], ...] = (
    counter(
        "turns_total",
        "Turns that ended.",
        lambda worker: worker.stats.turns,
        labels=("outcome",),
        known=(*TurnEnd, FAILED, INTERRUPTED),
    ),
    histogram(
        "turn_seconds",
        "Time from the message of the user to the end of its turn.",
        lambda worker: worker.stats.turn_seconds,
        labels=("outcome",),
    ),
    gauge(
        "agents_active",
        "Chats at work in the whole deployment; the same on every replica, so aggregate with max.",
        lambda worker: worker.stats.agents_active,
        labels=("pool",),
        known=POOLS,
    ),
    gauge(
        "agents_queued_for_capacity",
        "Chats that wait for a slot in the whole deployment; the same on every replica, so aggregate with max.",
        lambda worker: worker.stats.agents_queued,
        labels=("pool",),
        known=POOLS,
    ),
)

TOOLS: tuple[Family[Worker], ...] = (
    counter(
        "tool_calls_total",
        "Calls of tools; one that did not end when it was told to is abandoned as well.",
        lambda worker: worker.stats.tools.calls,
        labels=("tool", "outcome"),
    ),
    counter(
        "tool_errors_total",
        "Calls of tools that gave an error, refused ones included.",
        lambda worker: _errors(worker.stats.tools.calls),
        labels=("tool",),
    ),
    counter(
        "tool_result_truncated_total",
        "Results of tools that were cut to fit the model.",
        lambda worker: worker.stats.tools.truncated,
        labels=("tool",),
    ),
    histogram("tool_seconds", "Time of tool calls.", lambda worker: worker.stats.tools.seconds, labels=("tool",)),
    histogram(
        "tool_result_size_bytes",
        "Size of results of tools, as stored.",
        lambda worker: worker.stats.tools.result_bytes,
        labels=("tool",),
    ),
)

APPROVALS: tuple[Family[Worker], ...] = (
    counter(
        "approvals_asked_total",
        "Calls of tools that a person was asked about.",
        lambda worker: worker.stats.approvals_asked,
    ),
    gauge(
        "approvals_open",
        "Calls of tools that wait for an answer in the whole deployment; the same on every replica, so aggregate with "
        "max.",
        lambda worker: worker.stats.approvals_open,
    ),
    gauge(
        "approval_oldest_seconds",
        "How long the oldest of them has waited, as of the last count; 0 when nobody is asked. Aggregate with max.",
        lambda worker: worker.stats.approval_oldest_seconds,
    ),
)

JOBS: tuple[Family[Worker], ...] = (
    histogram(
        "job_seconds",
        "Time of runs of housekeeping.",
        lambda worker: worker.stats.job_seconds,
        labels=("job", "success"),
    ),
    counter(
        "records_purged_total",
        "Rows that housekeeping removed.",
        lambda worker: worker.stats.purged,
        labels=("type",),
        known=("tool_runs",),
    ),
    counter(
        "auto_archived_total",
        "Chats archived because nobody used them, subagents included.",
        lambda worker: worker.stats.auto_archived,
    ),
)

PARTS: tuple[Family[Worker], ...] = (
    gauge("part_buffer_episodes", "Episodes of live parts in memory.", lambda worker: worker.buffer.stats().episodes),
    gauge("part_buffer_bytes", "Size of live parts in memory.", lambda worker: worker.buffer.stats().size_bytes),
    counter(
        "part_buffer_dropped_total",
        "Live parts that were not kept because their episode was full; the answer itself is complete.",
        lambda worker: worker.buffer.stats().dropped,
    ),
    counter(
        "part_buffer_slow_total",
        "Readers of live parts that were given up because they did not read.",
        lambda worker: worker.buffer.stats().evicted,
    ),
)


CACHES: tuple[Family[Worker], ...] = (
    gauge(
        "cache_bytes",
        "Memory of a cache, as it counts it; what is kept, its bound and its age are in operations/memory.md.",
        lambda worker: {cache.name: cache.size_bytes for cache in worker.caches},
        labels=("cache",),
    ),
    gauge(
        "cache_max_bytes",
        "Bound of a cache.",
        lambda worker: {cache.name: cache.max_bytes for cache in worker.caches},
        labels=("cache",),
    ),
    gauge(
        "cache_entries",
        "Entries of a cache.",
        lambda worker: {cache.name: len(cache) for cache in worker.caches},
        labels=("cache",),
    ),
    counter(
        "cache_lookups_total",
        "Looks into a cache, by whether there was something.",
        lambda worker: {
            (cache.name, outcome): count
            for cache in worker.caches
            for outcome, count in (("hit", cache.stats().hits), ("miss", cache.stats().misses))
        },
        labels=("cache", "outcome"),
    ),
    counter(
        "cache_dropped_total",
        "Entries that a cache has let go of: to make room for others (room), or not used for too long (age).",
        lambda worker: {
            (cache.name, reason): count
            for cache in worker.caches
            for reason, count in (("room", cache.stats().evicted), ("age", cache.stats().expired))
        },
        labels=("cache", "reason"),
    ),
)


def _errors(calls: Counter[tuple[str, str]]) -> dict[str, int]:
    """Every tool that was called, so that a rate of errors has something to start from."""
    found = {tool: 0 for tool, _ in calls}
    return found | {tool: count for (tool, outcome), count in calls.items() if outcome == "error"}
