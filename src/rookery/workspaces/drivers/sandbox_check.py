"""The sandbox check: starts one sandbox to find out whether this machine can confine workspaces.

There is no weaker sandbox to fall back to. A failed check tells the operator what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rookery.workspaces.drivers import bubblewrap, sandboxes
from rookery.workspaces.drivers.bubblewrap import INSTALL, Bubblewrap
from rookery.workspaces.drivers.driver_interface import DriverError, DriverUnavailable, Limits
from rookery.workspaces.drivers.launcher import cgroups, tree_removal
from rookery.workspaces.drivers.launcher.launch_plan import Plan
from rookery.workspaces.drivers.launcher.workspace_users import DEFAULT_RANGE, Users
from rookery.workspaces.network_levels import Network

USUAL_PYTHON = "/usr/bin/python3"
OLDEST_PYTHON = (3, 9)

# The limits of a template may be at most this share of the machine's memory and processors.
SHARE = 0.75
LEAST_MEMORY_MB = 2048
PROC = "This machine, usually a container, forbids a new /proc. Run the server outside of it, or with `--privileged`."
NAMESPACES = "user namespaces"
# Kernel settings that forbid user namespaces: the file, its forbidding value, and the setting that allows them.
_FORBIDDING = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)
_CONTAINERS = ("/.dockerenv", "/run/.containerenv")

# Error messages of bubblewrap, and their fixes. The first match counts.
_FIXES = (
    ("Unknown option", INSTALL),
    ("Can't mount proc", PROC),
    ("No permissions to creat", NAMESPACES),
    ("uid map", NAMESPACES),
    ("Creating new namespace failed", NAMESPACES),
    ("RTM_NEWADDR", NAMESPACES),
    ("No space left on device", NAMESPACES),
    ("Operation not permitted", NAMESPACES),
)

_REPORT_PROGRAM = """
import json, os, sys
looked_at = ("/", "/usr", "/etc", "/dev", "/proc/sys/kernel/core_pattern")
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"].strip(), 16) | int(status["CapBnd"].strip(), 16),
    "no_new_privileges": status["NoNewPrivs"].strip() == "1",
    "filtered": status["Seccomp"].strip() == "2",
    "writable": [path for path in looked_at if os.access(path, os.W_OK)],
    "python": list(sys.version_info[:2]),
}))
"""


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings `drivers.local.*`, with the data directory."""

    data_dir: Path
    hidden: tuple[Path, ...] = ()  # further paths to hide from workspaces: the files in the server's settings
    bwrap: Path | None = None
    uid: int | None = None  # the user of workspaces that may write to shared folders
    uid_range: tuple[int, int] = DEFAULT_RANGE  # the users of all other workspaces, if the server is root
    cgroup: Path | None = None
    network_max: Network = "public"
    net_allow_private: tuple[str, ...] = ()  # private networks that the address guard allows
    own_ports: tuple[int, ...] = ()  # ports of the server, which the address guard never allows
    tmp_mb: int = 1024
    unsafe: bool = False

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "workspaces"

    @property
    def users(self) -> Users:
        return Users(self.data_dir, self.uid_range, self.uid)

    @property
    def all_hidden(self) -> list[str]:
        """Return all paths that are hidden from workspaces. The data directory is the first."""
        return [str(path) for path in (self.data_dir, *self.hidden)]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the check. `bwrap` is None if workspaces run unconfined."""

    bwrap: str | None
    bwrap_libraries: str | None = None
    python: str
    python_prefix: str | None
    notes: tuple[str, ...] = ()
    unconfined_because: str = ""


class SandboxReport(msgspec.Struct, frozen=True):
    """The report of the program that runs in the sandbox."""

    uid: int
    capabilities: int
    no_new_privileges: bool
    filtered: bool
    writable: list[str]
    python: tuple[int, int]


async def check(config: LocalConfig, agent: Path) -> Machine:
    """Start a sandbox, and check from inside that it confines its processes. Raise `DriverUnavailable` if not.

    With `config.unsafe`, do not raise: return a result without a sandbox, with the reason in `unconfined_because`.
    """
    python, prefix = await _find_python()
    try:
        bwrap = await asyncio.to_thread(bubblewrap.find, config.bwrap)
        report = await _run_in_sandbox(config, agent, bwrap=bwrap, python=python, prefix=prefix)
        _require_confined(report)
    except DriverUnavailable as error:
        if not config.unsafe:
            raise
        return Machine(bwrap=None, python=python, python_prefix=prefix, unconfined_because=error.message)
    return Machine(
        bwrap=bwrap.path,
        bwrap_libraries=bwrap.libraries,
        python=python,
        python_prefix=prefix,
        notes=notes_of(config),
    )


def notes_of(config: LocalConfig) -> tuple[str, ...]:
    """Return notes for the operator about a machine that passed the check."""
    notes = []
    if config.users.is_root and problem_of_users(config) is None:
        low, high = config.uid_range
        notes.append(f"each has its own user, from {low} to {high}")
    elif not config.users.is_root:
        notes.append("they share the server's user, and with it the kernel's limits for one user")
    if config.cgroup is None:
        notes.append("no drivers.local.cgroup: limits of memory and processes hold for each process or user namespace")
    elif problem_of_limits(config) is None:
        notes.append(f"limits of memory, processors and processes hold for each workspace, by {config.cgroup}")
    return tuple(notes)


def bounded(limits: Limits, *, memory_mb: int | None = None, cores: int | None = None) -> Limits:
    """Return the limits of a template, reduced to three quarters of the machine's memory and processors.

    The rest is for the server. The reduced limits are never below 2 GiB and one processor, which builds need. No limit
    (0) stays no limit.
    """
    if memory_mb is None:
        memory_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024**2
    cores = cores or len(os.sched_getaffinity(0))
    return msgspec.structs.replace(
        limits,
        memory_mb=min(limits.memory_mb, max(LEAST_MEMORY_MB, int(memory_mb * SHARE))),
        cpus=min(limits.cpus, max(1.0, cores * SHARE)),
    )


def problem_of_users(config: LocalConfig) -> str | None:
    """Return why workspaces cannot have their own users, as a sentence; None if they can."""
    if not config.users.is_root:
        return None
    if (problem := config.users.problem()) is not None:
        return problem
    if names := config.users.accounts():
        low, high = config.uid_range
        return f"drivers.local.uid_range {low}-{high} holds accounts of this machine ({', '.join(names[:5])}); move it."
    return None


def problem_of_limits(config: LocalConfig) -> str | None:
    """Return why templates with limits cannot start, as a sentence.

    None if they can, or if there is no control group.
    """
    problem = None if config.cgroup is None else cgroups.problem_of(str(config.cgroup))
    if problem is None:
        return None
    return f"drivers.local.cgroup {config.cgroup} {problem}: templates with limits do not start."


async def _find_python() -> tuple[str, str | None]:
    """Return the Python of the machine if it is new enough, else that of the server; and its prefix outside of /usr."""
    if os.access(USUAL_PYTHON, os.X_OK):
        process = await asyncio.create_subprocess_exec(
            *(USUAL_PYTHON, "-I", "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath},
        )
        output, _ = await process.communicate()
        version = tuple(int(part) for part in output.split() if part.isdigit())
        if version >= OLDEST_PYTHON:
            return USUAL_PYTHON, None
    return _own_python()


def _own_python() -> tuple[str, str | None]:
    own, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    return own, None if prefix == "/usr" or prefix.startswith("/usr/") else prefix


async def _run_in_sandbox(
    config: LocalConfig, agent: Path, *, bwrap: Bubblewrap, python: str, prefix: str | None
) -> SandboxReport:
    config.workspaces.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Made in the directory of workspaces, so that problems with that path are found.
    directory = Path(tempfile.mkdtemp(prefix=".look-", dir=config.workspaces))
    check_uid = config.users.check_uid
    try:
        for name in ("home", "run"):
            (directory / name).mkdir(mode=0o700)
            if check_uid is not None:
                os.chown(directory / name, check_uid, check_uid)
        plan = Plan(
            workspace_id="look",
            generation=0,
            directory=str(directory),
            agent=str(agent),
            python=python,
            python_prefix=prefix,
            bwrap=bwrap.path,
            bwrap_libraries=bwrap.libraries,
            uid=check_uid,
            hidden=config.all_hidden,
            tmp_mb=1,
            command=[python, "-I", "-c", _REPORT_PROGRAM],
        )
        try:
            result = await sandboxes.launch(plan)
        except DriverUnavailable:
            raise
        except DriverError as error:
            raise _unavailable(error.message) from error
        if result["status"] != 0:
            raise _unavailable(result["log"] or f"bubblewrap ended with status {result['status']}")
        return msgspec.convert(json.loads(result["output"]), SandboxReport)
    finally:
        tree_removal.remove(directory)


def _unavailable(why: str) -> DriverUnavailable:
    last = why.strip().rpartition("\n")[2].removeprefix("The sandbox did not start: ")
    fix = next((fix for said, fix in _FIXES if said in why), "Run `rookery admin doctor` to find other problems.")
    return DriverUnavailable(
        f"a sandbox cannot be started here: {last}", namespaces_advice() if fix is NAMESPACES else fix
    )


def namespaces_advice(proc_sys: Path = Path("/proc/sys"), containers: Sequence[str] = _CONTAINERS) -> str:
    """Return a sentence with the command that allows user namespaces on this machine."""
    for name, forbids, allows in _FORBIDDING:
        try:
            found = (proc_sys / name).read_text().strip()
        except OSError:
            continue
        if found == forbids:
            return f"This machine forbids user namespaces; as root, run `sysctl -w {allows}`."
    if any(os.path.exists(path) for path in containers):
        return (
            "This container forbids user namespaces; start it with `--security-opt seccomp=unconfined --security-opt "
            "apparmor=unconfined`, or with `--privileged`."
        )
    return (
        "This machine forbids user namespaces to normal users; as root, run "
        "`sysctl -w user.max_user_namespaces=15000`, and see docs/operations/sandbox.md if that does not help."
    )


def _require_confined(report: SandboxReport) -> None:
    """Raise `DriverUnavailable` if the sandbox has started but does not confine."""
    wrong = [
        *(["its user is root"] if report.uid == 0 else []),
        *(["it has capabilities"] if report.capabilities else []),
        *([] if report.no_new_privileges else ["it may gain privileges"]),
        *([] if report.filtered else ["system calls are not filtered"]),
        *([f"it may write to {', '.join(report.writable)}"] if report.writable else []),
    ]
    if wrong:
        raise DriverUnavailable(f"the sandbox does not confine: {'; '.join(wrong)}.", INSTALL)
    if tuple(report.python) < OLDEST_PYTHON:
        raise DriverUnavailable("there is no Python 3.9 or newer for workspaces.", "Install python3.")
