"""A control group (v2) for one workspace, below a directory that the deployment gives to the server."""

from __future__ import annotations

import os

from rookery.workspaces.drivers.launcher.plan import LaunchError, Plan

MIB = 1024 * 1024
PERIOD_US = 100_000


def path_of(cgroup: str, workspace_id: str) -> str:
    return f"{cgroup}/rookery-{workspace_id}"


def limits_of(plan: Plan) -> dict[str, str]:
    limits: dict[str, str] = {}
    if plan.memory_mb:
        limits["memory.max"] = str(plan.memory_mb * MIB)
        limits["memory.swap.max"] = "0"
    if plan.cpus:
        limits["cpu.max"] = f"{int(plan.cpus * PERIOD_US)} {PERIOD_US}"
    if plan.pids:
        limits["pids.max"] = str(plan.pids)
    return limits


def prepare(plan: Plan) -> int | None:
    """Make the group and set its limits; the answer is where the number of a process is written to move it there.

    It is opened with the rights of the caller, and may be used after those are dropped.
    """
    limits = limits_of(plan)
    if plan.cgroup is None or not limits:
        return None
    group = path_of(plan.cgroup, plan.workspace_id)
    try:
        wanted = {name.split(".")[0] for name in limits}
        with open(f"{plan.cgroup}/cgroup.controllers") as file:
            offered = set(file.read().split())
        if missing := wanted - offered:
            raise LaunchError(f"{plan.cgroup} has no controller for {', '.join(sorted(missing))}", "driver_unavailable")
        _write(f"{plan.cgroup}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(wanted)))
        os.makedirs(group, exist_ok=True)
        for name, value in limits.items():
            # Machines without swap have no file for it.
            if name != "memory.swap.max" or os.path.exists(f"{group}/{name}"):
                _write(f"{group}/{name}", value)
        return os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LaunchError(
            f"the limits of this workspace cannot be set in {plan.cgroup}: {error.strerror}", "driver_unavailable"
        ) from error


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
