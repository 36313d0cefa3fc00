"""The running sandboxes of this machine: functions that find and kill them.

The launcher records the first process of a sandbox in `sandbox.json`, which the workspace cannot change. A process is
identified by its id and start time, because ids are reused. If the record is lost, the sandbox is found by the mark of
its outer process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

GONE_SECONDS = 30.0
POLL_SECONDS = 0.02
# The mark of a sandbox: the first word of the outer process's name.
MARK = "rookery-workspace"
# The mark of an unconfined workspace: an environment variable that all its processes inherit.
MARK_VARIABLE = "ROOKERY_WORKSPACE"


def mark(workspace_id: str, generation: int) -> str:
    return f"{MARK} {workspace_id} {generation}"


def start_time(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the process is in parentheses, and may itself contain parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@dataclass(frozen=True)
class Running:
    """A running sandbox. `pid` is its first process; when that process ends, all others end too."""

    workspace_id: str
    generation: int
    pid: int
    pid_start: int
    confined: bool = True
    monitor: int | None = None
    monitor_start: int | None = None
    boot_id: str = ""

    @property
    def is_running(self) -> bool:
        return start_time(self.pid) == self.pid_start


def find(directory: Path) -> list[Running]:
    """Return the running sandboxes of the workspace with this directory, from its record and from marks."""
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
    """Return the sandbox of the launcher's record, if it is still running."""
    try:
        running = Running(**json.loads((directory / "sandbox.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return running if running.boot_id == boot_id() and running.is_running else None


def scan() -> list[Running]:
    """Return the sandboxes that have a mark. Processes inside of sandboxes are ignored, because they could fake it."""
    found = []
    prefix = f"{MARK} ".encode()
    own = os.stat("/proc/self/ns/pid").st_ino
    for pid in _pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not arguments.startswith(prefix) or os.stat(f"/proc/{pid}/ns/pid").st_ino != own:
                continue
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        words = arguments.split(b"\0")[0].decode("utf-8", "replace").split(" ")
        start = start_time(pid)
        if len(words) != 3 or not words[2].isdigit() or start is None:
            continue
        for child in map(int, children):
            child_start = start_time(child)
            if child_start is not None:
                running = Running(words[1], int(words[2]), child, child_start, monitor=pid, monitor_start=start)
                found.append(running)
    return found


def kill(running: Running) -> None:
    """Kill the sandbox, and wait until all its processes have ended.

    When the first process of a namespace has ended, the kernel has ended all others.
    """
    if not running.confined:
        _kill_unconfined(running)
        return
    _signal(running.pid, running.pid_start)
    _wait_until_gone(running.pid, running.pid_start)
    if running.monitor is not None and running.monitor_start is not None:
        # The monitor ends with its child, unless a signal has stopped it.
        _signal(running.monitor, running.monitor_start)
        _wait_until_gone(running.monitor, running.monitor_start)


def _signal(pid: int, start: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process with this start time. A handle prevents reuse of the id before the signal."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) == start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise LaunchError(f"process {pid} of the workspace belongs to another user", "stop_failed") from error
    finally:
        os.close(handle)


def _wait_until_gone(pid: int, start: int) -> None:
    # A handle would not report a zombie as ended, so this polls.
    deadline = time.monotonic() + GONE_SECONDS
    while start_time(pid) == start:
        if time.monotonic() > deadline:
            raise LaunchError(f"process {pid} of the workspace did not end within {GONE_SECONDS:g} s", "stop_failed")
        time.sleep(POLL_SECONDS)


def _kill_unconfined(running: Running) -> None:
    """Kill an unconfined workspace. The agent is stopped first, so that it starts no process meanwhile."""
    _signal(running.pid, running.pid_start, signal.SIGSTOP)
    variable = f"{MARK_VARIABLE}={mark(running.workspace_id, running.generation)}".encode()
    deadline = time.monotonic() + GONE_SECONDS
    while left := [one for one in _family(running.pid, variable) if one[0] != running.pid]:
        if time.monotonic() > deadline:
            raise LaunchError(f"{len(left)} processes of the workspace did not end", "stop_failed")
        for pid, start in left:
            _signal(pid, start)
        time.sleep(POLL_SECONDS)
    _signal(running.pid, running.pid_start)
    _wait_until_gone(running.pid, running.pid_start)


def _family(root: int, variable: bytes) -> list[tuple[int, int]]:
    """Return the descendants of a process, and all processes that have the mark in their environment."""
    parents, family = {}, {root}
    for pid in _pids():
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
            if variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                family.add(pid)
        except OSError:  # noqa: PERF203 - any process may end meanwhile
            continue
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [(pid, start) for pid in family if (start := start_time(pid)) is not None]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
