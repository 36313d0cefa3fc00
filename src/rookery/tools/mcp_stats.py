"""Counters of the use of MCP servers in steps, for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SearchStats:
    """Searches for deferred tools. `rejected` are calls without words, and those that the budget had no room for."""

    calls: int = 0
    matches: int = 0
    activations: int = 0
    empty: int = 0
    rejected: int = 0


@dataclass(slots=True)
class McpUseStats:
    """`calls` are counted by outcome: ok, error, question, or the kind of the problem.

    `skipped` are servers that a step had to leave out, and `outdated` those that it used with their last known list.
    """

    calls: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    outdated: int = 0
    search: SearchStats = field(default_factory=SearchStats)
