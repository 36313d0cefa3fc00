"""The metrics of one replica: reads all families at each scrape, and writes them as text.

There is no global registry, because tests run several replicas in one process. Each replica has its own `Metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rookery.debug.stats import DebugStats
from rookery.llm.wire_stats import ModelCounters
from rookery.metrics import (
    debug,
    infrastructure,
    models,
    prometheus_text,
    standard_process,
    streams,
    worker,
    workspaces,
)
from rookery.metrics.families import Family
from rookery.metrics.infrastructure import Build, PubSub
from rookery.metrics.prometheus_text import Section
from rookery.metrics.standard_process import Process
from rookery.store.db.pool import Database
from rookery.store.db.replica_presence import Presence
from rookery.stream.relay.service import Relay
from rookery.stream.service import Streams
from rookery.telemetry.http_stats import HttpStats
from rookery.telemetry.loop_lag import LagMonitor
from rookery.worker.worker import Worker
from rookery.workspaces.shared_services import WorkspaceStats

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The components of a replica that have counters. A component that is None is not exported."""

    build: Build
    worker: Worker | None = None
    debug: DebugStats | None = None
    models: ModelCounters | None = None
    http: HttpStats | None = None
    streams: Streams | None = None
    relay: Relay | None = None
    database: Database | None = None
    pubsub: PubSub | None = None
    lag: LagMonitor | None = None
    presence: Presence | None = None
    workspaces: WorkspaceStats | None = None
    process: Process | None = field(default_factory=Process)


@dataclass(frozen=True, slots=True)
class Table(Generic[S]):
    """The families of one source."""

    title: str
    find: Callable[[Sources], S | None]
    families: tuple[Family[S], ...]

    def collect(self, sources: Sources) -> Iterator[Section]:
        source = self.find(sources)
        if source is not None:
            yield from (family.collect(source) for family in self.families)


TABLES: tuple[Table[Any], ...] = (
    Table("Runners and tasks", lambda sources: sources.worker, worker.RUNNERS),
    Table("Turns", lambda sources: sources.worker, worker.TURNS),
    Table("Models", lambda sources: sources.worker and sources.worker.stats.calls, models.CALLS),
    Table("Wires", lambda sources: sources.models, models.FAULTS),
    Table("Debug records", lambda sources: sources.debug, debug.DEBUG),
    Table("Tools", lambda sources: sources.worker, worker.TOOLS),
    Table("Approvals", lambda sources: sources.worker, worker.APPROVALS),
    Table("Answers to approvals", lambda sources: sources.http, infrastructure.APPROVALS),
    Table("Workspaces", lambda sources: sources.workspaces, workspaces.WORKSPACES),
    Table("Live parts", lambda sources: sources.worker, worker.PARTS),
    Table("Subagents and the advisor", lambda sources: sources.worker, worker.SUBAGENTS),
    Table("MCP servers and tool search", lambda sources: sources.worker, worker.MCP),
    Table("Caches", lambda sources: sources.worker, worker.CACHES),
    Table("Streams", lambda sources: sources.streams, streams.STREAMS),
    Table("Relay between replicas", lambda sources: sources.relay, streams.RELAY),
    Table("Requests", lambda sources: sources.http, infrastructure.HTTP),
    Table("Database", lambda sources: sources.database, infrastructure.DATABASE),
    Table("Hints", lambda sources: sources.pubsub, infrastructure.PUBSUB),
    Table("Housekeeping", lambda sources: sources.worker, worker.JOBS),
    Table("Event loop", lambda sources: sources.lag, infrastructure.LAG),
    Table("Replicas", lambda sources: sources.presence, infrastructure.PRESENCE),
    Table("Build", lambda sources: sources.build, infrastructure.BUILD),
    Table("Process", lambda sources: sources.process, standard_process.PROCESS),
)


class MetricsSource(Protocol):
    """Answers scrapes. `accept` is the header `Accept`. The result is the content type and the text."""

    async def scrape(self, accept: str) -> tuple[str, bytes]: ...


class Metrics:
    """The metrics of one replica. Use it on the event loop's thread, which owns the counters."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> list[Section]:
        return [section for table in TABLES for section in table.collect(self._sources)]

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return the content type and the text, in the format that the scraper prefers."""
        return prometheus_text.render(self.collect(), accept)

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        return self.render(accept)
