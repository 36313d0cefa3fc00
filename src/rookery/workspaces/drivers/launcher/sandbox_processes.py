"""The running sandboxes of this machine, and how to end them reliably.

The launcher records the first process of a sandbox where the workspace cannot reach it. The workspace's own record
(`run/agent.json`) could name any process of the machine, and is never trusted. A sandbox whose record was lost is found
by the mark of its outer process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rookery.workspaces.drivers.launcher import process_identity
from rookery.workspaces.drivers.launcher.plan import LaunchError

GONE_SECONDS = 30.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Running:
    """A running sandbox: `pid` is its first process, whose end ends all others."""

    workspace_id: str
    generation: int
    pid: int
    pid_start: int
    confined: bool = True
    monitor: int | None = None
    monitor_start: int | None = None
    boot_id: str = ""

    @property
    def is_there(self) -> bool:
        return process_identity.start_of(self.pid) == self.pid_start


def find(directory: Path) -> list[Running]:
    """Return the running sandboxes of the workspace in this directory, by its record and by marks; usually none or
    one.
    """
    found = {}
    if known := recorded(directory):
        found[known.pid] = known
    for marked in scan():
        if marked.workspace_id == directory.name:
            found.setdefault(marked.pid, marked)
    return list(found.values())


def find_all(workspaces: Path) -> list[Running]:
    """Return the running sandboxes of all workspaces below this directory."""
    found = {}
    if workspaces.is_dir():
        for directory in workspaces.iterdir():
            if known := recorded(directory):
                found[known.pid] = known
    for marked in scan():
        # Another server on this machine may have workspaces below its own directory.
        if (workspaces / marked.workspace_id).is_dir():
            found.setdefault(marked.pid, marked)
    return list(found.values())


def recorded(directory: Path) -> Running | None:
    """Return the sandbox that the launcher recorded, if it still runs."""
    try:
        running = Running(**json.loads((directory / "sandbox.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return running if running.boot_id == process_identity.boot_id() and running.is_there else None


def scan() -> list[Running]:
    """Return sandboxes by the mark of their outer process. Only processes outside of sandboxes count: inside, any
    process can use that name.
    """
    found = []
    mark = f"{process_identity.MARK} ".encode()
    own = os.stat("/proc/self/ns/pid").st_ino
    for pid in _pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not arguments.startswith(mark) or os.stat(f"/proc/{pid}/ns/pid").st_ino != own:
                continue
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        words = arguments.split(b"\0")[0].decode("utf-8", "replace").split(" ")
        start = process_identity.start_of(pid)
        if len(words) != 3 or not words[2].isdigit() or start is None:
            continue
        for child in map(int, children):
            child_start = process_identity.start_of(child)
            if child_start is not None:
                running = Running(words[1], int(words[2]), child, child_start, monitor=pid, monitor_start=start)
                found.append(running)
    return found


def kill(running: Running) -> None:
    """End the sandbox from outside. Returns once all its processes are gone: the kernel ends all processes of a
    namespace before the first one disappears.
    """
    if not running.confined:
        _kill_plain(running)
        return
    _signal(running.pid, running.pid_start)
    _until_gone(running.pid, running.pid_start)
    if running.monitor is not None and running.monitor_start is not None:
        # It ends with its child, unless it was stopped by a signal.
        _signal(running.monitor, running.monitor_start)
        _until_gone(running.monitor, running.monitor_start)


def _signal(pid: int, start: int, number: int = signal.SIGKILL) -> None:
    """Send a signal through a handle, so that the pid cannot be reused between the check of the start time and the
    signal.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if process_identity.start_of(pid) == start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise LaunchError(f"process {pid} of the workspace belongs to another user", "stop_failed") from error
    finally:
        os.close(handle)


def _until_gone(pid: int, start: int) -> None:
    # Polled instead of waiting on a handle: here a zombie counts as gone.
    deadline = time.monotonic() + GONE_SECONDS
    while process_identity.start_of(pid) == start:
        if time.monotonic() > deadline:
            raise LaunchError(f"process {pid} of the workspace did not end within {GONE_SECONDS:g} s", "stop_failed")
        time.sleep(POLL_SECONDS)


def _kill_plain(running: Running) -> None:
    """End an unconfined workspace. Its agent is stopped first, so that it starts nothing while its processes are
    searched, and adopts orphans.
    """
    _signal(running.pid, running.pid_start, signal.SIGSTOP)
    mark = f"{process_identity.VARIABLE}={process_identity.mark(running.workspace_id, running.generation)}".encode()
    deadline = time.monotonic() + GONE_SECONDS
    while left := [one for one in _family(running.pid, mark) if one[0] != running.pid]:
        if time.monotonic() > deadline:
            raise LaunchError(f"{len(left)} processes of the workspace did not end", "stop_failed")
        for pid, start in left:
            _signal(pid, start)
        time.sleep(POLL_SECONDS)
    _signal(running.pid, running.pid_start)
    _until_gone(running.pid, running.pid_start)


def _family(root: int, mark: bytes) -> list[tuple[int, int]]:
    """Return the descendants of a process, and every process with the mark of its workspace in its environment."""
    parents, family = {}, {root}
    for pid in _pids():
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                family.add(pid)
        except OSError:  # noqa: PERF203 - any of them may end while it is looked at
            continue
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [(pid, start) for pid in family if (start := process_identity.start_of(pid)) is not None]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
