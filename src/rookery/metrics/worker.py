"""Metrics of the worker: runners, leases, tasks, turns, tools, approvals, jobs, live parts and caches."""

from __future__ import annotations

from collections import Counter

from rookery.domain.chat.next_action import TurnEnd
from rookery.domain.chat.transitions import Transition
from rookery.metrics.families import Family, counter, gauge, histogram
from rookery.worker.stats import FAILED, INTERRUPTED
from rookery.worker.tasks import READ, TaskKind
from rookery.worker.worker import Worker

RUNNER_STATES = ("streaming", "tools", "retry_wait", "requires_action", "interrupting")
POOLS = ("root", "subagent")
# Transitions and reads that a task's fence may refuse.
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
        "Chats that this replica runs, by the current activity of their task.",
        lambda worker: worker.manager.states(),
        labels=("state",),
        known=RUNNER_STATES,
    ),
    gauge(
        "inflight_tasks",
        "Background tasks of the worker that run now, such as writing usage or labels.",
        lambda worker: worker.inflight_tasks,
    ),
    counter(
        "acquire_total",
        "Attempts to acquire a chat, by result.",
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
        "Chats that were released between two steps because their owner held more slots than a fair share and "
        "another owner waited.",
        lambda worker: worker.stats.gave_way,
        labels=("pool",),
        known=POOLS,
    ),
    counter(
        "takeovers_total",
        "Chats taken over from another process that is gone (lock_gone) or whose lease had ended (lease).",
        lambda worker: worker.stats.takeovers,
        labels=("reason",),
        known=("lock_gone", "lease"),
    ),
    counter(
        "leases_lost_total",
        "Leases lost to another replica (taken), or given up because they could not be renewed (fenced).",
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
        "Transitions and reads (`read`) that were refused because the chat had been changed by another writer.",
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
        "Tasks that ended without changing their chat.",
        lambda worker: worker.stats.task_stalls.total(),
    ),
    histogram(
        "cancel_unwind_seconds",
        "Time from the request to stop a task until it had stopped.",
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
        "Time from the user's message to the end of its turn.",
        lambda worker: worker.stats.turn_seconds,
        labels=("outcome",),
    ),
    gauge(
        "agents_active",
        "Running chats of the whole installation; the same on every replica, so aggregate with max.",
        lambda worker: worker.stats.agents_active,
        labels=("pool",),
        known=POOLS,
    ),
    gauge(
        "agents_queued_for_capacity",
        "Chats that wait for a slot in the whole installation; the same on every replica, so aggregate with max.",
        lambda worker: worker.stats.agents_queued,
        labels=("pool",),
        known=POOLS,
    ),
)

TOOLS: tuple[Family[Worker], ...] = (
    counter(
        "tool_calls_total",
        "Tool calls; a call that did not stop on request is also counted as abandoned.",
        lambda worker: worker.stats.tools.calls,
        labels=("tool", "outcome"),
    ),
    counter(
        "tool_errors_total",
        "Tool calls that returned an error, including refused ones.",
        lambda worker: _errors(worker.stats.tools.calls),
        labels=("tool",),
    ),
    counter(
        "tool_result_truncated_total",
        "Tool results that were truncated to fit the model.",
        lambda worker: worker.stats.tools.truncated,
        labels=("tool",),
    ),
    histogram("tool_seconds", "Duration of tool calls.", lambda worker: worker.stats.tools.seconds, labels=("tool",)),
    histogram(
        "tool_result_size_bytes",
        "Size of tool results, as stored.",
        lambda worker: worker.stats.tools.result_bytes,
        labels=("tool",),
    ),
)

APPROVALS: tuple[Family[Worker], ...] = (
    counter(
        "approvals_asked_total",
        "Tool calls that a user was asked to approve.",
        lambda worker: worker.stats.approvals_asked,
    ),
    gauge(
        "approvals_open",
        "Tool calls that wait for approval in the whole installation; the same on every replica, so aggregate "
        "with max.",
        lambda worker: worker.stats.approvals_open,
    ),
    gauge(
        "approval_oldest_seconds",
        "Waiting time of the tool call that has waited longest for approval, at the last count; 0 if none waits. "
        "Aggregate with max.",
        lambda worker: worker.stats.approval_oldest_seconds,
    ),
)

SUBAGENTS: tuple[Family[Worker], ...] = (
    counter(
        "subagent_wakes_total",
        "Chats at rest that were resumed because one of their subagents ended.",
        lambda worker: worker.subagents.stats.woken,
    ),
    counter(
        "subagents_overdue_total",
        "Subagents that were stopped at their time limit.",
        lambda worker: worker.subagents.stats.overdue,
    ),
    counter(
        "advisor_calls_total",
        "Calls of the advisor, by the type of their result.",
        lambda worker: worker.advisor_stats.calls,
        labels=("type",),
        known=("advice", "limit_reached", "error"),
    ),
)

MCP: tuple[Family[Worker], ...] = (
    counter(
        "mcp_calls_total",
        "Calls of tools of MCP servers, by outcome: a result (ok, error), a question to the user, or a problem.",
        lambda worker: worker.mcp_stats.calls,
        labels=("outcome",),
        known=("ok", "error", "question"),
    ),
    counter(
        "mcp_servers_skipped_total",
        "MCP servers that a step had to leave out, because they did not answer or wanted a login.",
        lambda worker: worker.mcp_stats.skipped,
    ),
    counter(
        "mcp_servers_outdated_total",
        "MCP servers that did not answer, and were used with their last known list of tools.",
        lambda worker: worker.mcp_stats.outdated,
    ),
    counter("tool_searches_total", "Calls of find_tools.", lambda worker: worker.mcp_stats.search.calls),
    counter(
        "tool_search_matches_total", "Tools that find_tools found.", lambda worker: worker.mcp_stats.search.matches
    ),
    counter(
        "tool_search_activations_total",
        "Tools that find_tools activated.",
        lambda worker: worker.mcp_stats.search.activations,
    ),
    counter(
        "tool_search_empty_total",
        "Calls of find_tools that found nothing.",
        lambda worker: worker.mcp_stats.search.empty,
    ),
    counter(
        "tool_search_rejected_total",
        "Calls of find_tools without words, or whose tools did not fit in the limit for tool definitions.",
        lambda worker: worker.mcp_stats.search.rejected,
    ),
)

JOBS: tuple[Family[Worker], ...] = (
    histogram(
        "job_seconds",
        "Duration of housekeeping runs.",
        lambda worker: worker.stats.job_seconds,
        labels=("job", "success"),
    ),
    counter(
        "records_purged_total",
        "Rows that housekeeping deleted.",
        lambda worker: worker.stats.purged,
        labels=("type",),
        known=("tool_runs",),
    ),
    counter(
        "auto_archived_total",
        "Chats archived because they were unused, including subagents.",
        lambda worker: worker.stats.auto_archived,
    ),
)

PARTS: tuple[Family[Worker], ...] = (
    gauge("part_buffer_episodes", "Episodes of live parts in memory.", lambda worker: worker.buffer.stats().episodes),
    gauge("part_buffer_bytes", "Size of live parts in memory.", lambda worker: worker.buffer.stats().size_bytes),
    counter(
        "part_buffer_dropped_total",
        "Live parts that were dropped because their episode was full; the response itself is complete.",
        lambda worker: worker.buffer.stats().dropped,
    ),
    counter(
        "part_buffer_slow_total",
        "Readers of live parts that were dropped because they did not read.",
        lambda worker: worker.buffer.stats().evicted,
    ),
)


CACHES: tuple[Family[Worker], ...] = (
    gauge(
        "cache_bytes",
        "Memory of a cache, by its own count; docs/operations/memory.md lists the content, limit and age of each.",
        lambda worker: {cache.name: cache.size_bytes for cache in worker.caches},
        labels=("cache",),
    ),
    gauge(
        "cache_max_bytes",
        "Size limit of a cache.",
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
        "Lookups in a cache, by whether they found an entry.",
        lambda worker: {
            (cache.name, outcome): count
            for cache in worker.caches
            for outcome, count in (("hit", cache.stats().hits), ("miss", cache.stats().misses))
        },
        labels=("cache", "outcome"),
    ),
    counter(
        "cache_dropped_total",
        "Entries that a cache dropped: to make room for others (room), or because they were unused for too long (age).",
        lambda worker: {
            (cache.name, reason): count
            for cache in worker.caches
            for reason, count in (("room", cache.stats().evicted), ("age", cache.stats().expired))
        },
        labels=("cache", "reason"),
    ),
)


def _errors(calls: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return the number of errors of every tool that was called, so that a rate of errors starts from zero."""
    found = {tool: 0 for tool, _ in calls}
    return found | {tool: count for (tool, outcome), count in calls.items() if outcome == "error"}
