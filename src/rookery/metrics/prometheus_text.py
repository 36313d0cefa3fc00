"""The two Prometheus text formats: writes them, and parses text that it has written.

The client library is too slow, because a scrape runs on the event loop of a busy replica; docs/decisions has the
measurement. Tests check the output with the library's parsers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isnan

PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_SAMPLE = re.compile(r"([a-z_][a-z0-9_]*)(\{.*\})? (NaN|[+-]Inf|-?[0-9][0-9.e+-]*)")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Section:
    """A family as text. `lines` are its samples, which are the same in both formats. `help` needs no escaping."""

    name: str
    kind: Kind
    help: str
    lines: list[str] = field(default_factory=list)


def label_pairs(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the labels as `a="x",b="y"`, with escaped values."""
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(names, values, strict=True))


def sample(name: str, pairs: str, value: float) -> str:
    return f"{name}{{{pairs}}} {number(value)}\n" if pairs else f"{name} {number(value)}\n"


def number(value: float) -> str:
    if value == inf:
        return "+Inf"
    if value == -inf:
        return "-Inf"
    return "NaN" if isnan(value) else repr(value)


def render(sections: Iterable[Section], accept: str) -> tuple[str, bytes]:
    """Return the content type and the text: OpenMetrics if the scraper accepts it, else 0.0.4."""
    is_open = any(_is_openmetrics(each) for each in accept.split(","))
    out: list[str] = []
    for section in sections:
        # In OpenMetrics a family has the name of its counter without the suffix.
        name = section.name.removesuffix("_total") if is_open and section.kind is Kind.COUNTER else section.name
        out.append(f"# HELP {name} {section.help}\n# TYPE {name} {section.kind}\n")
        out.extend(section.lines)
    if is_open:
        out.append("# EOF\n")
    return OPENMETRICS_TYPE if is_open else PLAIN_TYPE, "".join(out).encode()


def parse(text: bytes) -> list[Section]:
    """Parse a text in format 0.0.4 that `render` has written. Raise `ValueError` for any other text."""
    if text and not text.endswith(b"\n"):
        raise ValueError("A metrics text must end with a line break; this one was cut off.")
    found: list[Section] = []
    said = ""
    # `splitlines` would also split at characters that may be in label values.
    for line in text.decode().split("\n")[:-1]:
        match line.split(" ", 3):
            case ["#", "HELP", _, help]:
                said = help
            case ["#", "TYPE", name, kind]:
                found.append(Section(name, Kind(kind), said))
            case _:
                sampled = _SAMPLE.fullmatch(line)
                if sampled is None or not found or not sampled[1].startswith(found[-1].name):
                    raise ValueError(f"This is not a line of metrics: {line[:80]!r}")
                found[-1].lines.append(f"{line}\n")
    return found


def with_label(line: str, pair: str) -> str:
    """Return the sample with one more label, before the others."""
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{pair},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{pair}}} {value}"


def _is_openmetrics(accepted: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in accepted.split(";"))
    return kind == OPENMETRICS and "q=0" not in parameters
