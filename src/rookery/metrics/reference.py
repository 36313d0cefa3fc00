"""The reference page of the metrics, made from the tables that export them."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.metrics.export import TABLES
from rookery.metrics.families import PREFIX
from rookery.metrics.merge import SCRAPE_ERRORS, SLOT_RESTARTS, SLOTS

INTRODUCTION = f"""# Metrics

Every replica answers `GET /metrics` on its internal listener; with `metrics_listen` set, `rookery serve` answers there
for all its replicas, each sample under a label `process`. The format is Prometheus text 0.0.4, or OpenMetrics for
whoever asks for it. Names begin with `{PREFIX}`, but for those that every process has. Sets of label values are
closed: what clients, models and providers make up is counted as `other` or `unknown`.

A process that does not answer within a second when it is gathered is left out, and counted in
`{SCRAPE_ERRORS}`. The server with several replicas adds `{SLOTS}` (gauge, by
`state`: ready, starting, or paused because the replica died) and `{SLOT_RESTARTS}` (by `process`).
"""


def reference_markdown() -> str:
    """`docs/reference/metrics.md`."""
    return "\n".join((INTRODUCTION, *_sections()))


def _sections() -> Iterator[str]:
    for table in TABLES:
        yield f"## {table.title}\n"
        yield "| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |"
        for family in table.families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"
        yield ""
