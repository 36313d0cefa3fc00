"""Which sandboxes run on this machine, and how they are ended for certain.

The launcher writes down the first process of a sandbox where the workspace cannot reach it; what the workspace itself
writes (`run/agent.json`) could name any process of the machine, and is never believed. A sandbox whose record was lost
is found by the mark of its outer process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path

import msgspec

from rookery.workspaces.drivers.launcher import identity
from rookery.workspaces.drivers.layout import Layout
from rookery.workspaces.drivers.protocol import DriverError

GONE_SECONDS = 30.0
_POLL_SECONDS = 0.02


class Running(msgspec.Struct, frozen=True):
    """A sandbox that runs: `pid` is its first process, whose end is the end of every other."""

    workspace_id: str
    generation: int
    pid: int
    pid_start: int
    confined: bool = True
    monitor: int | None = None
    monitor_start: int | None = None
    boot_id: str = ""


def find(layout: Layout) -> list[Running]:
    """What runs of this workspace, by its record and by marks; usually nothing or one."""
    found = {}
    if recorded := _recorded(layout.record):
        found[recorded.pid] = recorded
    for marked in scan():
        if marked.workspace_id == layout.directory.name:
            found.setdefault(marked.pid, marked)
    return list(found.values())


def find_all(workspaces: Path) -> list[Running]:
    """What runs of all workspaces below this directory."""
    found = {}
    if workspaces.is_dir():
        for directory in workspaces.iterdir():
            if recorded := _recorded(Layout(directory).record):
                found[recorded.pid] = recorded
    for marked in scan():
        # Another server on this machine has workspaces too, below a directory of its own.
        if (workspaces / marked.workspace_id).is_dir():
            found.setdefault(marked.pid, marked)
    return list(found.values())


def _recorded(path: Path) -> Running | None:
    try:
        running = msgspec.json.decode(path.read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None
    if running.boot_id != identity.boot_id() or identity.start_of(running.pid) != running.pid_start:
        return None
    return running


def scan() -> list[Running]:
    """Sandboxes by the mark of their outer process. Only processes outside of sandboxes count: inside, anything can
    call itself so."""
    found = []
    own = os.stat("/proc/self/ns/pid").st_ino
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            arguments = Path("/proc", entry, "cmdline").read_bytes()
            if (
                not arguments.startswith(identity.MARK.encode() + b" ")
                or os.stat(f"/proc/{entry}/ns/pid").st_ino != own
            ):
                continue
            children = Path("/proc", entry, "task", entry, "children").read_text().split()
        except OSError:
            continue
        _, workspace_id, generation = arguments.split(b"\0")[0].decode("utf-8", "replace").split(" ", 2)
        start = identity.start_of(int(entry))
        for child in children:
            child_start = identity.start_of(int(child))
            if start is not None and child_start is not None and generation.isdigit():
                running = Running(
                    workspace_id,
                    int(generation),
                    int(child),
                    child_start,
                    monitor=int(entry),
                    monitor_start=start,
                )
                found.append(running)
    return found


async def kill(running: Running) -> None:
    """End it from outside. Returns once every process of it is gone, which the kernel sees to: it ends all processes of
    a namespace before it lets go of the first."""
    if not running.confined:
        await _kill_plain(running)
        return
    _signal(running.pid, running.pid_start)
    await _until_gone(running.pid, running.pid_start)
    if running.monitor is not None and running.monitor_start is not None:
        # It ends by itself when its child does; one that was stopped would not.
        _signal(running.monitor, running.monitor_start)
        await _until_gone(running.monitor, running.monitor_start)


async def wait_until_gone(running: Running, seconds: float) -> bool:
    """Whether it ended by itself within this time."""
    try:
        await _until_gone(running.pid, running.pid_start, seconds=seconds)
    except DriverError:
        return False
    return True


def _signal(pid: int, start: int, number: int = signal.SIGKILL) -> None:
    """By a handle: between the look at the start time and the signal, the number cannot become another process."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if identity.start_of(pid) == start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        raise DriverError("stop_failed", f"This server may not end process {pid} of the workspace.") from error
    finally:
        os.close(handle)


async def _until_gone(pid: int, start: int, seconds: float = GONE_SECONDS) -> None:
    # Polled, not awaited by a handle: a process that nobody reaps would keep the handle silent on old kernels.
    deadline = time.monotonic() + seconds
    while identity.start_of(pid) == start:
        if time.monotonic() > deadline:
            raise DriverError("stop_failed", f"Process {pid} of the workspace did not end within {seconds:g} s.")
        await asyncio.sleep(_POLL_SECONDS)


async def _kill_plain(running: Running) -> None:
    """A workspace that is not confined: its agent is stopped first, so that it starts nothing while its processes are
    looked for, and adopts what loses its parent."""
    _signal(running.pid, running.pid_start, signal.SIGSTOP)
    mark = f"{identity.VARIABLE}={identity.mark(running.workspace_id, running.generation)}".encode()
    deadline = time.monotonic() + GONE_SECONDS
    while left := [one for one in _family(running.pid, mark) if one[0] != running.pid]:
        if time.monotonic() > deadline:
            raise DriverError("stop_failed", f"{len(left)} processes of the workspace did not end.")
        for pid, start in left:
            _signal(pid, start)
        await asyncio.sleep(_POLL_SECONDS)
    _signal(running.pid, running.pid_start)
    await _until_gone(running.pid, running.pid_start)


def _family(root: int, mark: bytes) -> list[tuple[int, int]]:
    """Descendants of a process, and whatever carries the mark of its workspace in its environment."""
    parents, marked = {}, set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry)] = int(fields[1])
            if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                marked.add(int(entry))
        except OSError:
            continue
    family = marked | {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [(pid, start) for pid in family if (start := identity.start_of(pid)) is not None]
