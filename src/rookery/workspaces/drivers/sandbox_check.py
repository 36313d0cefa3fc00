"""The sandbox check: starts one real sandbox to find out whether this machine can confine workspaces.

There is no weaker fallback. Missing requirements are reported with what an operator can do about them.
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

from rookery.workspaces.drivers import bubblewrap, launch
from rookery.workspaces.drivers.bubblewrap import INSTALL, Bubblewrap
from rookery.workspaces.drivers.launcher import archives, cgroups
from rookery.workspaces.drivers.launcher.plan import Plan
from rookery.workspaces.drivers.protocol import DriverError, DriverUnavailable, Limits
from rookery.workspaces.drivers.workspace_users import DEFAULT_RANGE, Users
from rookery.workspaces.network_levels import Network

USUAL_PYTHON = "/usr/bin/python3"
OLDEST_PYTHON = (3, 9)

# The largest share of a machine's memory and processors that one template's limits may take.
SHARE = 0.75
LEAST_MEMORY_MB = 2048
PROC = "The machine, usually a container, forbids a new /proc. Run the server outside of it, or with `--privileged`."
NAMESPACES = "user namespaces"
# Kernel settings that forbid user namespaces: the file, its forbidding value, and the setting that allows them.
_FORBIDDING = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)
_CONTAINERS = ("/.dockerenv", "/run/.containerenv")

# Error messages of bubblewrap, and what to do about them. The first match is reported.
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

_LOOK = """
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
    hidden: tuple[Path, ...] = ()  # also hidden from workspaces: the files that the server's settings name
    bwrap: Path | None = None
    uid: int | None = None  # of workspaces that may write to shared folders
    uid_range: tuple[int, int] = DEFAULT_RANGE  # of all others, when the server is root
    cgroup: Path | None = None
    network_max: Network = "public"
    net_allow_private: tuple[str, ...] = ()  # networks that the guard of outbound requests allows
    own_ports: tuple[int, ...] = ()  # ports of the server itself, which no exemption makes reachable
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
        """Every file and directory that is hidden from all workspaces, whatever they bind; the data comes first."""
        return [str(path) for path in (self.data_dir, *self.hidden)]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the check. `bwrap` is None when the settings let workspaces run unconfined."""

    bwrap: str | None
    bwrap_libraries: str | None = None
    python: str
    python_prefix: str | None
    notes: tuple[str, ...] = ()
    unconfined_because: str = ""


class Seen(msgspec.Struct, frozen=True):
    """The sandbox's report about itself."""

    uid: int
    capabilities: int
    no_new_privileges: bool
    filtered: bool
    writable: list[str]
    python: tuple[int, int]


async def look(config: LocalConfig, agent: Path) -> Machine:
    """Start a sandbox and check from inside that it confines. Raises `DriverUnavailable` if it does not.

    With `config.unsafe`, return a result without a sandbox instead; `unconfined_because` has the reason.
    """
    python, prefix = await _find_python()
    try:
        bwrap = await asyncio.to_thread(bubblewrap.find, config.bwrap)
        seen = await _look_inside(config, agent, bwrap=bwrap, python=python, prefix=prefix)
        _judge(seen)
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
    """Return notes for an operator about a working setup."""
    notes = []
    if config.users.is_root and problem_of_users(config) is None:
        low, high = config.uid_range
        notes.append(f"each has a user of its own, from {low} to {high}")
    elif not config.users.is_root:
        notes.append("they share the server's user, and with it the kernel's limits for one user")
    if config.cgroup is None:
        notes.append("no drivers.local.cgroup: limits of memory and processes hold for each process or user namespace")
    elif problem_of_limits(config) is None:
        notes.append(f"limits of memory, processors and processes hold for each workspace, by {config.cgroup}")
    return tuple(notes)


def bounded(limits: Limits, *, memory_mb: int | None = None, cores: int | None = None) -> Limits:
    """Return a template's limits, capped at three quarters of the machine's memory and processors, so that the rest of
    the machine, above all the server, keeps working. Templates without a limit stay without.

    The cap is never below 2 GiB of memory and one processor: below that, builds fail, and a machine that small has
    swap.
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
    """Return the problem with the users of workspaces, in a sentence; None when there is none."""
    if not config.users.is_root:
        return None
    if (problem := config.users.problem()) is not None:
        return problem
    if names := config.users.accounts():
        low, high = config.uid_range
        return f"drivers.local.uid_range {low}-{high} holds accounts of this machine ({', '.join(names[:5])}); move it."
    return None


def problem_of_limits(config: LocalConfig) -> str | None:
    """Return why templates with limits do not start, in a sentence; None when they do, or no control group is
    configured.
    """
    problem = None if config.cgroup is None else cgroups.problem_of(str(config.cgroup))
    if problem is None:
        return None
    return f"drivers.local.cgroup {config.cgroup} {problem}: templates with limits do not start."


async def _find_python() -> tuple[str, str | None]:
    """Return the machine's Python when it is new enough, else the one that the server runs on."""
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


async def _look_inside(config: LocalConfig, agent: Path, *, bwrap: Bubblewrap, python: str, prefix: str | None) -> Seen:
    config.workspaces.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In the directory of workspaces, so that problems of that path are found now.
    directory = Path(tempfile.mkdtemp(prefix=".look-", dir=config.workspaces))
    tester = config.users.tester
    try:
        for name in ("home", "run"):
            (directory / name).mkdir(mode=0o700)
            if tester is not None:
                os.chown(directory / name, tester, tester)
        plan = Plan(
            workspace_id="look",
            generation=0,
            directory=str(directory),
            agent=str(agent),
            python=python,
            python_prefix=prefix,
            bwrap=bwrap.path,
            bwrap_libraries=bwrap.libraries,
            uid=tester,
            hidden=config.all_hidden,
            tmp_mb=1,
            command=[python, "-I", "-c", _LOOK],
        )
        try:
            told = await launch.launch(plan)
        except DriverUnavailable:
            raise
        except DriverError as error:
            raise _unavailable(error.message) from error
        if told["status"] != 0:
            raise _unavailable(told["log"] or f"bubblewrap ended with status {told['status']}")
        return msgspec.convert(json.loads(told["output"]), Seen)
    finally:
        archives.discard(directory)


def _unavailable(why: str) -> DriverUnavailable:
    last = why.strip().rpartition("\n")[2].removeprefix("The sandbox did not start: ")
    fix = next((fix for said, fix in _FIXES if said in why), "Run `rookery admin doctor` for what else is wrong.")
    return DriverUnavailable(
        f"a sandbox cannot be started here: {last}", how_to_allow_namespaces() if fix is NAMESPACES else fix
    )


def how_to_allow_namespaces(proc_sys: Path = Path("/proc/sys"), containers: Sequence[str] = _CONTAINERS) -> str:
    """Return a sentence with the command that helps on this machine. Systems forbid user namespaces in different
    ways.
    """
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


def _judge(seen: Seen) -> None:
    """Fail closed: raise if the sandbox started but does not confine."""
    wrong = [
        *(["its user is root"] if seen.uid == 0 else []),
        *(["it has capabilities"] if seen.capabilities else []),
        *([] if seen.no_new_privileges else ["it may gain privileges"]),
        *([] if seen.filtered else ["system calls are not filtered"]),
        *([f"it may write to {', '.join(seen.writable)}"] if seen.writable else []),
    ]
    if wrong:
        raise DriverUnavailable(f"the sandbox does not confine: {'; '.join(wrong)}.", INSTALL)
    if tuple(seen.python) < OLDEST_PYTHON:
        raise DriverUnavailable("there is no Python 3.9 or newer for workspaces.", "Install python3.")
