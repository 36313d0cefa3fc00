"""What is counted about workspaces."""

from __future__ import annotations

from rookery.metrics.families import Family, gauge, histogram
from rookery.workspaces.stats import WorkspaceStats

WORKSPACES: tuple[Family[WorkspaceStats], ...] = (
    gauge(
        "workspaces",
        "Workspaces of the whole deployment that are not deleted.",
        lambda stats: stats.workspaces,
        labels=("driver", "state"),
    ),
    histogram(
        "workspace_start_seconds",
        "Time from the beginning of a start to the answer of the workspace agent, or to its failure.",
        lambda stats: stats.start_seconds,
        labels=("driver", "result"),
    ),
)
