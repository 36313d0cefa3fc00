"""Counters of the wires: repairs of histories, broken prefixes and unknown events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec

from rookery.llm.types import ReplayFault, Wire
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import printable

log = get_logger("llm.wire_stats")

# Providers choose the names of event types, which become label values, so their number and length are limited.
MAX_EVENT_TYPES = 100
MAX_TYPE_CHARS = 80
OTHER_TYPE = "other"


class ModelStats(Protocol):
    """Receives the events that the metrics count. Wires call it on the event loop, and never per token."""

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None: ...

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None: ...

    def prefix_broke(self, wire: Wire) -> None:
        """Count a request that does not begin with the prefix of the newest answer, so that caches miss."""
        ...

    def unknown_events(self, wire: Wire, by_type: Mapping[str, int]) -> None:
        """Count ignored events of unknown types."""
        ...


class NoStats:
    """Ignores all events."""

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None:
        pass

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None:
        pass

    def prefix_broke(self, wire: Wire) -> None:
        pass

    def unknown_events(self, wire: Wire, by_type: Mapping[str, int]) -> None:
        pass


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of `ModelCounters`."""

    repairs: Mapping[tuple[Wire, ReplayFault], int]
    unrepaired: Mapping[tuple[Wire, ReplayFault], int]
    prefix_breaks: Mapping[Wire, int]
    unknown_events: Mapping[tuple[Wire, str], int]


class ModelCounters:
    """Counts since the start of the process. One per process."""

    def __init__(self) -> None:
        self._repairs: Counter[tuple[Wire, ReplayFault]] = Counter()
        self._unrepaired: Counter[tuple[Wire, ReplayFault]] = Counter()
        self._prefix_breaks: Counter[Wire] = Counter()
        self._unknown: Counter[tuple[Wire, str]] = Counter()

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None:
        self._repairs[wire, rung] += 1

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None:
        self._unrepaired[wire, rung] += 1

    def prefix_broke(self, wire: Wire) -> None:
        self._prefix_breaks[wire] += 1

    def unknown_events(self, wire: Wire, by_type: Mapping[str, int]) -> None:
        for name, count in by_type.items():
            key = (wire, printable(name)[:MAX_TYPE_CHARS])
            if key not in self._unknown and len(self._unknown) >= MAX_EVENT_TYPES:
                key = (wire, OTHER_TYPE)
            if key not in self._unknown:
                # Each type is logged once. The provider has a new event that this version does not support.
                log.warning("unknown_event", wire=wire, event_type=key[1])
            self._unknown[key] += count

    def counts(self) -> Counts:
        return Counts(
            repairs=dict(self._repairs),
            unrepaired=dict(self._unrepaired),
            prefix_breaks=dict(self._prefix_breaks),
            unknown_events=dict(self._unknown),
        )
