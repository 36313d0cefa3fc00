"""Ended processes: how long they are kept, and the memory limit of their outputs, with a clock that tests move."""

from __future__ import annotations

import asyncio
import signal

import pytest

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.process import processes
from rookery.workspaces.agent.process.children import Children
from rookery.workspaces.agent.process.processes import Process, Processes, ProcessSpec
from rookery.workspaces.agent.server.http import ChatHeaders

SERVER = ChatHeaders()


class EndedProcesses:
    """Adds ended processes without running them."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.kept = Processes(Children(), Clock(now=lambda: self.seconds))
        self._count = 0

    def ended(self, output: bytes = b"") -> Process:
        self._count += 1
        spec = ProcessSpec("true", ["true"], "/", {}, SERVER)
        process = Process(f"p{self._count}", spec, self.seconds)
        process.output.append(output)
        process.close(0, self.seconds)
        self.kept.restore(process)
        return process

    def running(self) -> Process:
        self._count += 1
        process = Process(f"p{self._count}", ProcessSpec("sleep", ["sleep"], "/", {}, SERVER), self.seconds)
        self.kept.restore(process)
        return process

    def has(self, process: Process) -> bool:
        try:
            return self.kept.find(process.id, SERVER) is process
        except AgentError:
            return False


@pytest.fixture
async def ended_processes() -> EndedProcesses:
    return EndedProcesses()


async def test_ended_process_is_kept_for_an_hour_and_a_running_one_for_ever(ended_processes: EndedProcesses) -> None:
    ended, running = ended_processes.ended(), ended_processes.running()

    ended_processes.seconds += 60 * 60
    ended_processes.kept.sweep()
    assert ended_processes.has(ended)
    ended_processes.seconds += 1
    ended_processes.kept.sweep()

    assert not ended_processes.has(ended)
    assert ended_processes.has(running)


async def test_the_newest_256_ended_ones_are_kept(ended_processes: EndedProcesses) -> None:
    running = ended_processes.running()
    ended = []
    for _ in range(258):
        ended_processes.seconds += 1
        ended.append(ended_processes.ended())

    ended_processes.kept.sweep()

    assert [ended_processes.has(process) for process in ended] == [False] * 2 + [True] * 256
    assert ended_processes.has(running)


async def test_oldest_ended_outputs_shrink_when_all_together_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "MAX_HELD_BYTES", 1_000_000)
    children = Children()
    children.watch()
    kept = Processes(children, Clock())
    try:
        started = []
        for number in range(6):
            arguments = ["sh", "-c", "head -c 300000 /dev/zero; echo; echo end"]
            spec = ProcessSpec("", arguments, "/", {"PATH": "/usr/bin:/bin"}, SERVER)
            started.append(kept.start(spec, f"p{number}"))
            await asyncio.wait_for(started[-1].ended.wait(), 60)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    held = [process.output.held for process in started]
    assert sum(held) <= 1_000_000
    assert held[0] < 40_000
    assert held[-1] == 300_005
    assert started[0].view().text.endswith("end\n")
