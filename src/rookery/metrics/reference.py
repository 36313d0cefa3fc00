"""The reference page of the metrics, generated from the tables that export them."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.metrics.export import TABLES
from rookery.metrics.families import PREFIX
from rookery.metrics.merge import SCRAPE_ERRORS, SLOT_RESTARTS, SLOTS

INTRODUCTION = f"""# Metrics

Every replica serves `GET /metrics` on its internal listener. With `metrics_listen` set, `rookery serve` serves it there
for all of its replicas, with a label `process` on each sample. The format is Prometheus text 0.0.4, or OpenMetrics if
the scraper accepts it. Names begin with `{PREFIX}`, except those that every process has. Sets of label values are
closed: values that clients, models and providers invent are counted as `other` or `unknown`.

A process that does not answer the parent within a second is left out, and counted in `{SCRAPE_ERRORS}`. A server
with several replicas adds `{SLOTS}` (gauge, by `state`: ready, starting, or paused because the replica died)
and `{SLOT_RESTARTS}` (by `process`).
"""


def reference_markdown() -> str:
    """Return `docs/reference/metrics.md`."""
    return "\n".join((INTRODUCTION, *_sections()))


def _sections() -> Iterator[str]:
    for table in TABLES:
        yield f"## {table.title}\n"
        yield "| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |"
        for family in table.families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"
        yield ""
