"""`rookery bench`: what Rookery costs on this machine, next to a bare floor that is measured in the same run.

It starts its own PostgreSQL, provider and servers in a temporary folder, and removes everything at the end.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import aiohttp
import msgspec
from websockets.exceptions import WebSocketException

from rookery import __version__
from rookery.cli.bench import cpu, measures, report
from rookery.cli.bench.measures import CHATS_PER_LANE, FULL, QUICK, REPLICAS, TURNS_AT_ONCE, Bench, Effort, Measure
from rookery.cli.bench.rig import BenchRig, open_rig
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output

# The machine is too busy to measure if its other processes use more than this part of it.
BUSY_SHARE = 0.15
IDLE_SECONDS = 0.5
PARTS = 7
PEOPLE = 100


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cores: int
    processor: str
    memory_bytes: int
    system: str
    python: str
    busy_share: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    version: str
    machine: Machine
    is_quick: bool
    seconds: float
    measures: list[MeasureView]


class MeasureView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    value: float
    floor: float
    ratio: float | None
    floor_is: str
    is_less_better: bool
    details: dict[str, float]


async def run(out: Output, *, is_quick: bool = False) -> int:
    if not sys.platform.startswith("linux"):
        raise Refused("rookery bench reads CPU times from /proc and needs Linux. `rookery bench load` runs anywhere.")
    with _ended_by_hangup():
        began = time.monotonic()
        machine = await _describe_machine()
        if machine.busy_share > BUSY_SHARE:
            out.warning(
                f"other programs use {machine.busy_share:.0%} of this machine. The figures will vary; "
                "measure again when it is idle."
            )
        found = await _measure(QUICK if is_quick else FULL, out)
        seconds = time.monotonic() - began
    _show(found, machine, seconds, out, is_quick=is_quick)
    out.result(
        Report(
            version=__version__,
            machine=machine,
            is_quick=is_quick,
            seconds=round(seconds, 1),
            measures=[_view(each) for each in found],
        )
    )
    return Exit.OK


async def _measure(effort: Effort, out: Output) -> list[Measure]:
    """Measure everything. Errors of the rig are refusals: they say nothing about the user's installation."""
    try:
        return await _run_parts(effort, out)
    except ExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise _refusal(error) from error
    except (aiohttp.ClientError, WebSocketException, TimeoutError) as error:
        raise _refusal(error) from error


def _refusal(error: BaseException) -> BaseException:
    match error:
        case aiohttp.ClientError() | WebSocketException() | TimeoutError():
            reason = " ".join(str(error).split()) or "it took too long"
            return Refused(f"A request of the measurement failed: {reason}. Measure again when the machine is idle.")
    return error


async def _run_parts(effort: Effort, out: Output) -> list[Measure]:
    began, part = time.monotonic(), 0

    def step(what: str) -> None:
        nonlocal part
        part += 1
        out.progress(f"[{part}/{PARTS}] {what} ({time.monotonic() - began:.0f} s)")

    step("starting a database, a provider and a server")
    async with open_rig(people=PEOPLE) as rig:
        found: list[Measure] = []
        async with rig.serving(replicas=1) as server:
            chats = await rig.create_chats(server, max(effort.many, measures.FEW, TURNS_AT_ONCE * CHATS_PER_LANE))
            bench = Bench(rig, server, effort, chats)
            parts: list[tuple[str, Callable[[], Awaitable[Measure]]]] = [
                ("CPU per token", bench.tokens),
                ("the first token", bench.first_token),
                ("short turns", bench.turns),
                (f"{effort.many} answers at once", bench.streams),
            ]
            for name, measure in parts:
                step(f"measuring {name}")
                found.append(await measure())
        found.append(await _takeover(rig, effort, step))
        step("removing everything")
    return found


async def _takeover(rig: BenchRig, effort: Effort, step: Callable[[str], None]) -> Measure:
    step(f"killing replicas, {effort.kills} times")
    async with rig.serving(replicas=REPLICAS) as server:
        return await Bench(rig, server, effort, await rig.create_chats(server, 1)).takeover()


async def _describe_machine() -> Machine:
    used, passed = cpu.busy_share()
    await asyncio.sleep(IDLE_SECONDS)
    used_later, passed_later = cpu.busy_share()
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=cpu.processor() or platform.machine(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        busy_share=round((used_later - used) / max(passed_later - passed, 1e-9), 3),
    )


def _show(found: list[Measure], machine: Machine, seconds: float, out: Output, *, is_quick: bool) -> None:
    rows = [
        [
            each.label,
            f"{report.number(each.value)} {_short(each.unit)}".strip(),
            report.number(each.floor),
            "-" if each.ratio is None else f"{each.ratio:.2f}x",
        ]
        for each in found
    ]
    report.table(out, ["Measured", "Rookery", "Floor", "Ratio"], rows)
    out.line()
    for each in found:
        for line in textwrap.wrap(f"Floor of {each.name}: {each.floor_is}.", report.WIDTH, subsequent_indent="  "):
            out.line(line)
    out.line()
    memory = machine.memory_bytes / 2**30
    out.line(
        f"{machine.cores} cores, {machine.processor[:30]}, {memory:.0f} GiB, Python {machine.python}, {seconds:.0f} s."
    )
    out.line("CPU includes PostgreSQL. Compare the ratios: figures depend on the machine.")
    if is_quick:
        out.line("This was a quick run: the figures are rough.")


def _short(unit: str) -> str:
    return unit if unit in ("us", "ms") else ""


def _view(each: Measure) -> MeasureView:
    return MeasureView(
        name=each.name,
        unit=each.unit,
        value=round(each.value, 3),
        floor=round(each.floor, 3),
        ratio=None if each.ratio is None else round(each.ratio, 3),
        floor_is=each.floor_is,
        is_less_better=each.is_less_better,
        details={name: round(value, 3) for name, value in each.details.items()},
    )


@contextmanager
def _ended_by_hangup() -> Iterator[None]:
    """Clean up when the terminal is closed, as after SIGTERM."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
