"""Counters of debug recording, for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Result(StrEnum):
    """The result of an operation of the writer.

    `STALE`: a newer call, or a stronger status of the same call, is stored. `REFUSED`: the run has ended or is removed.
    """

    OK = "ok"
    STALE = "stale"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    FAILED = "failed"


class Dropped(StrEnum):
    """The reason why a part of a record was dropped."""

    ATTEMPT_BODY = "attempt_body"  # the queue was full
    REQUEST = "request"
    RUN = "run"
    OPERATION = "operation"
    DETACHED = "detached"  # its run could not be written to
    SHUTDOWN = "shutdown"
    KEPT_TURN = "kept_turn"  # too large to be kept in memory until its end


@dataclass(slots=True)
class DebugStats:
    operations: Counter[tuple[str, Result]] = field(default_factory=Counter)
    dropped: Counter[Dropped] = field(default_factory=Counter)
    queue_bytes: int = 0
