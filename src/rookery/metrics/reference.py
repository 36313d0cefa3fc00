"""Generates the reference page of the metrics from the tables in `export`."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.metrics.export import TABLES
from rookery.metrics.families import PREFIX
from rookery.metrics.merge import SCRAPE_ERRORS, SLOT_RESTARTS, SLOTS

INTRODUCTION = f"""# Metrics

Every replica serves `GET /metrics` on its internal listener. If `metrics_listen` is set, `rookery serve` also serves
the metrics of all its replicas at that address, with a label `process` on each sample. The format is Prometheus text
0.0.4, or OpenMetrics if the scraper accepts it. Names begin with `{PREFIX}`, except the general process metrics
(`process_*`, `python_*`). Label values are from fixed sets: a value that a client, model or provider has made up is
counted as `other` or `unknown`.

A replica that does not answer a scrape within a second is left out of the result and counted in
`{SCRAPE_ERRORS}`. A server with several replicas adds `{SLOTS}` (gauge, by `state`: ready,
starting, or paused because the replica died) and `{SLOT_RESTARTS}` (by `process`).
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
