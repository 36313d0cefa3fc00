"""The metrics of several processes merged into one text: every sample gets the label `process`.

For the parent of several replicas: a scrape of their shared port would reach a random one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from rookery.metrics.families import PREFIX
from rookery.metrics.text import Kind, Section, label_pairs, parse, render, sample, with_label
from rookery.runtime.replica_slots import ReplicaSlot, SlotState
from rookery.telemetry.log import get_logger

log = get_logger("metrics")

LABEL = "process"
SCRAPE_ERRORS = f"{PREFIX}scrape_errors_total"
SLOTS = f"{PREFIX}replica_slots"
SLOT_RESTARTS = f"{PREFIX}replica_restarts_total"
SILENT_SECONDS = 1.0

# Fetches the text (format 0.0.4) of one process, or raises.
Fetch: TypeAlias = Callable[[], Awaitable[bytes]]


class Gathering:
    """Scrapes the processes when it is scraped itself. `processes` is read each time, because processes come and go.

    A process that does not answer, or sends invalid text, is left out and counted; the others are still exported.
    """

    def __init__(
        self,
        processes: Callable[[], Mapping[str, Fetch]],
        *,
        slots: Callable[[], Sequence[ReplicaSlot]] = tuple,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._processes = processes
        self._slots = slots
        self._silent_seconds = silent_seconds
        self.errors: Counter[str] = Counter()

    async def scrape(self, accept: str) -> tuple[str, bytes]:
        processes = self._processes()
        asked = await asyncio.gather(*(self._ask(name, fetch) for name, fetch in processes.items()))
        answered = {name: found for name, found in zip(processes, asked, strict=True) if found is not None}
        own = [self._count(processes), *slot_sections(self._slots())]
        return await asyncio.to_thread(lambda: render([*combine(answered), *own], accept))

    async def _ask(self, name: str, fetch: Fetch) -> list[Section] | None:
        try:
            async with asyncio.timeout(self._silent_seconds):
                text = await fetch()
            # In a thread: a text has thousands of lines, and this process supervises the others.
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
    """Merge the texts (format 0.0.4) of several processes, by name. Raise `ValueError` for an invalid one."""
    return render(combine({name: parse(text) for name, text in texts.items()}), accept)


def combine(processes: Mapping[str, Iterable[Section]]) -> list[Section]:
    """Merge the sections of all processes: each family once, with all samples and the first help text."""
    found: dict[str, Section] = {}
    for process, sections in processes.items():
        pair = label_pairs((LABEL,), (process,))
        for section in sections:
            merged = found.setdefault(section.name, Section(section.name, section.kind, section.help))
            if merged.kind is not section.kind:
                continue  # a process of another version, where the name has another meaning
            merged.lines.extend(with_label(line, pair) for line in section.lines)
    return list(found.values())
