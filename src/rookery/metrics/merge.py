"""Merges the metrics of several processes into one text, in which every sample has the label `process`.

The parent of several replicas uses it, because a scrape of their shared port would reach a random replica.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from rookery.metrics.families import PREFIX
from rookery.metrics.prometheus_text import Kind, Section, label_pairs, parse, render, sample, with_label
from rookery.runtime.replica_slots import ReplicaSlot, SlotState
from rookery.telemetry.log import get_logger

log = get_logger("metrics")

LABEL = "process"
SCRAPE_ERRORS = f"{PREFIX}scrape_errors_total"
SLOTS = f"{PREFIX}replica_slots"
SLOT_RESTARTS = f"{PREFIX}replica_restarts_total"
SCRAPE_SECONDS = 1.0

# Fetches the text (format 0.0.4) of one process, or raises.
Fetch: TypeAlias = Callable[[], Awaitable[bytes]]


class MergedMetrics:
    """Scrapes all processes at each scrape. `processes` is called each time, because processes start and end.

    A process that does not answer, or sends invalid text, is left out and counted.
    """

    def __init__(
        self,
        processes: Callable[[], Mapping[str, Fetch]],
        *,
        slots: Callable[[], Sequence[ReplicaSlot]] = tuple,
        scrape_seconds: float = SCRAPE_SECONDS,
    ) -> None:
        self._processes = processes
        self._slots = slots
        self._scrape_seconds = scrape_seconds
        self.errors: Counter[str] = Counter()

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        processes = self._processes()
        asked = await asyncio.gather(*(self._ask(name, fetch) for name, fetch in processes.items()))
        answered = {name: found for name, found in zip(processes, asked, strict=True) if found is not None}
        own = [self._count(processes), *slot_sections(self._slots())]
        return await asyncio.to_thread(lambda: render([*combine(answered), *own], accept))

    async def _ask(self, name: str, fetch: Fetch) -> list[Section] | None:
        try:
            async with asyncio.timeout(self._scrape_seconds):
                text = await fetch()
            # This runs in a thread, because a text has thousands of lines and this process supervises the others.
            return await asyncio.to_thread(parse, text)
        except Exception as error:
            self._failed(name, error)
            return None

    def _failed(self, name: str, error: Exception) -> None:
        self.errors[name] += 1
        log.warning("process_not_scraped", process=name, error=str(error) or type(error).__name__)

    def _count(self, processes: Iterable[str]) -> Section:
        names = sorted({*processes, *self.errors})
        lines = [sample(SCRAPE_ERRORS, label_pairs((LABEL,), (name,)), self.errors[name]) for name in names]
        return Section(SCRAPE_ERRORS, Kind.COUNTER, "Scrapes of a process that did not answer.", lines)


def slot_sections(slots: Sequence[ReplicaSlot]) -> list[Section]:
    """Return the states of the replica slots; empty if there are none."""
    if not slots:
        return []
    states = Counter(slot.state for slot in slots)
    return [
        Section(
            SLOTS,
            Kind.GAUGE,
            "Replica slots: ready, starting, or paused because their replica died.",
            [sample(SLOTS, label_pairs(("state",), (state,)), states[state]) for state in SlotState],
        ),
        Section(
            SLOT_RESTARTS,
            Kind.COUNTER,
            "Replicas that died and were restarted.",
            [sample(SLOT_RESTARTS, label_pairs((LABEL,), (str(slot.index),)), slot.restarts) for slot in slots],
        ),
    ]


def merge(texts: Mapping[str, bytes], accept: str = "") -> tuple[str, bytes]:
    """Merge the texts of several processes (format 0.0.4). Raise `ValueError` for an invalid text."""
    return render(combine({name: parse(text) for name, text in texts.items()}), accept)


def combine(processes: Mapping[str, Iterable[Section]]) -> list[Section]:
    """Merge the sections of all processes. Each family has all samples and the first help text."""
    found: dict[str, Section] = {}
    for process, sections in processes.items():
        pair = label_pairs((LABEL,), (process,))
        for section in sections:
            merged = found.setdefault(section.name, Section(section.name, section.kind, section.help))
            if merged.kind is not section.kind:
                continue  # in a process of another version, the name has another meaning
            merged.lines.extend(with_label(line, pair) for line in section.lines)
    return list(found.values())
