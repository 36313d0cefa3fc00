"""The control groups of one workspace, in a directory that is delegated to the server.

With cgroup version 2 the directory is a group. With version 1 it has one directory for each hierarchy (`memory`, `cpu`
and `pids`), as `/sys/fs/cgroup` has.
"""

from __future__ import annotations

import contextlib
import os

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan

MIB = 1024 * 1024
PERIOD_US = 100_000
HIERARCHIES = ("memory", "cpu", "pids")


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


def older_limits_of(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the limits for version 1, by hierarchy. The limits of memory with and without swap are equal."""
    limits: dict[str, dict[str, str]] = {}
    if plan.memory_mb:
        most = str(plan.memory_mb * MIB)
        limits["memory"] = {"memory.limit_in_bytes": most, "memory.memsw.limit_in_bytes": most}
    if plan.cpus:
        quota = str(int(plan.cpus * PERIOD_US))
        limits["cpu"] = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
    if plan.pids:
        limits["pids"] = {"pids.max": str(plan.pids)}
    return limits


def prepare(plan: Plan) -> list[int]:
    """Make the groups and set their limits. Return descriptors; a process id written to them moves the process there.

    The descriptors stay usable after the launcher has dropped its privileges.
    """
    if plan.cgroup is None or not limits_of(plan):
        return []
    try:
        if os.path.exists(f"{plan.cgroup}/cgroup.controllers"):
            return [_prepare(plan, plan.cgroup)]
        return _prepare_older(plan, plan.cgroup)
    except OSError as error:
        raise LaunchError(
            f"the limits of this workspace cannot be set in {plan.cgroup}: {error.strerror}", "driver_unavailable"
        ) from error


def problem_of(cgroup: str) -> str | None:
    """Return why limits cannot be set in this directory, as the end of a sentence; None if they can."""
    is_newer = os.path.exists(f"{cgroup}/cgroup.controllers")
    try:
        if is_newer:
            with open(f"{cgroup}/cgroup.controllers") as file:
                offered = set(file.read().split())
        else:
            offered = {name for name in HIERARCHIES if os.path.exists(f"{cgroup}/{name}/cgroup.procs")}
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    missing = set(HIERARCHIES) - offered
    if missing:
        return f"has no controller for {', '.join(sorted(missing))}"
    places = [cgroup] if is_newer else [f"{cgroup}/{name}" for name in HIERARCHIES]
    if not all(os.access(place, os.W_OK) for place in places):
        return "is not writable for the server"
    return None


def remove(cgroup: str, workspace_id: str) -> None:
    """Remove the groups. Call this when no process of the workspace is running."""
    for parent in (cgroup, *(f"{cgroup}/{name}" for name in HIERARCHIES)):
        with contextlib.suppress(OSError):
            os.rmdir(path_of(parent, workspace_id))


def _prepare(plan: Plan, cgroup: str) -> int:
    limits = limits_of(plan)
    with open(f"{cgroup}/cgroup.controllers") as file:
        offered = set(file.read().split())
    wanted = {name.split(".")[0] for name in limits}
    _require(wanted - offered, cgroup)
    _write(f"{cgroup}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(wanted)))
    # Machines without swap do not have this file.
    return _make(path_of(cgroup, plan.workspace_id), limits, may_lack="memory.swap.max")


def _prepare_older(plan: Plan, cgroup: str) -> list[int]:
    limits = older_limits_of(plan)
    _require({name for name in limits if not os.path.exists(f"{cgroup}/{name}/cgroup.procs")}, cgroup)
    found = []
    for name, values in limits.items():
        group = path_of(f"{cgroup}/{name}", plan.workspace_id)
        # The group of a crashed start may have a lower limit with swap, above which the memory limit cannot be set.
        with contextlib.suppress(OSError):
            os.rmdir(group)
        found.append(_make(group, values, may_lack="memory.memsw.limit_in_bytes"))
    return found


def _require(missing: set[str], cgroup: str) -> None:
    if missing:
        raise LaunchError(f"{cgroup} has no controller for {', '.join(sorted(missing))}", "driver_unavailable")


def _make(group: str, limits: dict[str, str], *, may_lack: str) -> int:
    os.makedirs(group, exist_ok=True)
    for name, value in limits.items():
        if name != may_lack or os.path.exists(f"{group}/{name}"):
            _write(f"{group}/{name}", value)
    return os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
