"""Metric families: name, help text, labels, and the function that reads the values.

Families are listed in tables, which the reference page, the exporter and the tests use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, TypeAlias, TypeVar

from rookery.metrics.prometheus_text import Kind, Section, label_pairs, number, sample
from rookery.telemetry.histogram import Histogram, Histograms

PREFIX = "rookery_"

S = TypeVar("S")
# A number without labels, or numbers by label values. A key is a tuple in the order of the labels, or a single value.
Numbers: TypeAlias = float | Mapping[Any, float]
Sizes: TypeAlias = Histogram | Histograms[Any]
Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One family. The label values in `known` are exported from the start.

    A counter that appears only with its first event would hide that event from a rate.
    """

    kind: Kind
    name: str
    help: str
    labels: Labels
    read: Callable[[S], Numbers | Sizes]
    known: tuple[Labels, ...]

    def collect(self, source: S) -> Section:
        found = self.read(source)
        lines = self._sizes(found) if isinstance(found, Histogram | Histograms) else self._numbers(found)
        return Section(self.name, self.kind, self.help, list(lines))

    def _numbers(self, found: Numbers) -> Iterator[str]:
        if not isinstance(found, Mapping):
            yield sample(self.name, "", found)
            return
        values = dict.fromkeys(self.known, 0.0) | {label_values(key): value for key, value in found.items()}
        for labels, value in values.items():
            yield sample(self.name, label_pairs(self.labels, labels), value)

    def _sizes(self, found: Sizes) -> Iterator[str]:
        each: Iterable[tuple[Any, Histogram]] = [((), found)] if isinstance(found, Histogram) else found.items()
        for key, histogram in each:
            pairs = label_pairs(self.labels, label_values(key))
            start = f"{self.name}_bucket{{{pairs},le=" if pairs else f"{self.name}_bucket{{le="
            count = 0
            for bound, count in histogram.cumulative():
                yield f'{start}"{number(float(bound))}"}} {count}\n'
            yield sample(f"{self.name}_count", pairs, count)
            yield sample(f"{self.name}_sum", pairs, histogram.total)


def counter(
    name: str,
    help: str,
    read: Callable[[S], Numbers],
    *,
    labels: Labels = (),
    known: Iterable[object] = (),
    prefix: str = PREFIX,
) -> Family[S]:
    assert name.endswith("_total"), name
    return Family(Kind.COUNTER, prefix + name, help, labels, read, tuple(map(label_values, known)))


def gauge(
    name: str,
    help: str,
    read: Callable[[S], Numbers],
    *,
    labels: Labels = (),
    known: Iterable[object] = (),
    prefix: str = PREFIX,
) -> Family[S]:
    return Family(Kind.GAUGE, prefix + name, help, labels, read, tuple(map(label_values, known)))


def histogram(name: str, help: str, read: Callable[[S], Sizes], *, labels: Labels = ()) -> Family[S]:
    return Family(Kind.HISTOGRAM, PREFIX + name, help, labels, read, ())


def label_values(key: object) -> Labels:
    """Return the key of a counter as label values."""
    return tuple(map(_text, key)) if isinstance(key, tuple) else (_text(key),)


def every(*values: Iterable[object]) -> Iterator[tuple[object, ...]]:
    """Return all combinations of label values, for `known`."""
    return product(*values)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
