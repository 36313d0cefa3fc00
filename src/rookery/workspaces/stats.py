"""Counters of workspaces, which `metrics` exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from rookery.telemetry.histogram import Histograms
from rookery.workspaces.egress.stats import EgressStats

START_BOUNDS = (0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0)


@dataclass(slots=True)
class WorkspaceStats:
    # By driver and result: succeeded, failed, canceled.
    start_seconds: Histograms[tuple[str, str]] = field(default_factory=lambda: Histograms(START_BOUNDS))
    # By driver and status, in the whole deployment; counted by the reconciler.
    workspaces: dict[tuple[str, str], int] = field(default_factory=dict)
    # Agents that broke the protocol and were cut off by this replica.
    cut_off: int = 0
    egress: EgressStats = field(default_factory=EgressStats)
