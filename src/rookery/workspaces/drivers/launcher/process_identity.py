"""The identity of a process: its pid and start time, because pids are reused."""

from __future__ import annotations

# Marks a sandbox among other bubblewrap processes: the name of the outer process.
MARK = "rookery-workspace"


# Marks an unconfined workspace: the environment variable that each of its processes inherits.
VARIABLE = "ROOKERY_WORKSPACE"


def mark(workspace_id: str, generation: int) -> str:
    return f"{MARK} {workspace_id} {generation}"


def start_of(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks; None for one that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in parentheses and may contain anything, including parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
