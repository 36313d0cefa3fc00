"""Metrics of workspaces."""

from __future__ import annotations

from typing import get_args

from rookery.metrics.families import Family, counter, gauge, histogram
from rookery.workspaces.egress.requests import Decision
from rookery.workspaces.shared_services import WorkspaceStats

WORKSPACES: tuple[Family[WorkspaceStats], ...] = (
    gauge(
        "workspaces",
        "Workspaces of the whole installation that are not deleted.",
        lambda stats: stats.workspaces,
        labels=("driver", "state"),
    ),
    histogram(
        "workspace_start_seconds",
        "Time from the beginning of a start until the workspace agent answers or the start fails.",
        lambda stats: stats.start_seconds,
        labels=("driver", "result"),
    ),
    counter(
        "workspace_agents_cut_off_total",
        "Workspace agents that broke the protocol and were cut off until the next start.",
        lambda stats: stats.cut_off,
    ),
    counter(
        "egress_requests_total",
        "Outgoing requests of workspaces, by result.",
        lambda stats: stats.egress.requests,
        labels=("decision",),
        known=get_args(Decision),
    ),
    counter(
        "egress_bytes_total",
        "Bytes that workspaces sent and received through the proxy of this replica (networks `hosts` and `public`).",
        lambda stats: stats.egress.bytes,
        labels=("direction",),
        known=("sent", "received"),
    ),
    gauge(
        "egress_connections",
        "Open connections of workspaces to the proxy of this replica.",
        lambda stats: stats.egress.connections,
    ),
)
