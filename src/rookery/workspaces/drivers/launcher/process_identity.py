"""Which process a number means: numbers are used again, a number with its start time is not."""

from __future__ import annotations

# How a sandbox is told from any other bubblewrap: the name that the outer process goes by.
MARK = "rookery-workspace"


# Where a workspace that is not confined carries the same, in the environment of each of its processes.
VARIABLE = "ROOKERY_WORKSPACE"


def mark(workspace_id: str, generation: int) -> str:
    return f"{MARK} {workspace_id} {generation}"


def start_of(pid: int) -> int | None:
    """When a process began, in the kernel's ticks; None for one that is gone or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in parentheses and may hold anything, also parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
