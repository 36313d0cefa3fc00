"""Counters of workspace egress."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rookery.workspaces.egress.requests import Decision


@dataclass(slots=True)
class EgressStats:
    requests: Counter[Decision] = field(default_factory=Counter)
    # By direction, seen from the workspace: sent, received.
    bytes: Counter[str] = field(default_factory=Counter)
    connections: int = 0
