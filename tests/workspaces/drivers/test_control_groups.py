"""Limits of workspaces by control groups: the files that are written, and their effect in the kernel.

Groups of version 2 are also tested in User Mode Linux where it is installed (Debian: `user-mode-linux`): a separate
kernel, started as a normal process, that has all controllers whatever the machine does with its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rookery.workspaces.drivers.driver_interface import Limits
from rookery.workspaces.drivers.launcher import cgroups
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan
from tests.workspaces.drivers.driver_rig import known_machine, local_driver, run, spec

TOP = Path("/sys/fs/cgroup")
CONTROLLERS = {"memory", "cpu", "pids"}
KERNEL = shutil.which("linux.uml")
IN_KERNEL = "ROOKERY_TESTS_IN_OWN_KERNEL"


def plan(**parts: object) -> Plan:
    return Plan(workspace_id="w", generation=1, directory="/d", agent="/a", python="/p", **parts)  # type: ignore[arg-type]


@pytest.fixture
def writable() -> Iterator[Path]:
    """Return a directory where the tests can make groups with all three limits; skip where there is none."""
    made = TOP / f"rookery-test-{os.getpid()}"
    is_newer = (TOP / "cgroup.controllers").exists()
    try:
        if is_newer:
            missing = CONTROLLERS - set((TOP / "cgroup.subtree_control").read_text().split())
            if missing:
                pytest.skip(f"nobody was given the controllers {sorted(missing)} of this machine")
            made.mkdir()
        for name in () if is_newer else sorted(CONTROLLERS):
            (TOP / name / made.name).mkdir()
            (TOP / name / made.name).rmdir()
    except OSError as error:
        pytest.skip(f"nobody may make control groups here: {error.strerror}")
    yield made if is_newer else TOP
    if is_newer:
        made.rmdir()


class Limited:
    """A workspace with limits, and the files of its groups."""

    def __init__(self, data_dir: Path, cgroup: Path) -> None:
        self.driver = local_driver(data_dir, machine=known_machine(), cgroup=cgroup)
        self.spec = spec(limits=Limits(memory_mb=200, cpus=0.5, pids=30))
        self._cgroup = cgroup

    async def run(self, command: str) -> str:
        _, output = await asyncio.to_thread(run, self.driver, self.spec, command)
        return output

    def groups(self) -> list[Path]:
        return list(self._cgroup.glob(f"**/rookery-{self.spec.id}"))

    def read(self, *names: str) -> list[str]:
        """Return the existing files of these names; the versions name some files differently."""
        return [(group / name).read_text() for group in self.groups() for name in names if (group / name).exists()]

    def periods(self) -> int:
        """Return in how many periods of its processor quota the group has run."""
        (counted,) = self.read("cpu.stat")
        return int(dict(line.split() for line in counted.splitlines())["nr_periods"])


@pytest.fixture
async def limited(tmp_path: Path, writable: Path) -> AsyncIterator[Limited]:
    await asyncio.to_thread(known_machine)
    made = Limited(tmp_path, writable)
    try:
        await made.driver.start(made.spec, print)
        yield made
    finally:
        await made.driver.stop(made.spec, 0)
        await made.driver.delete(made.spec)
    assert made.groups() == []


# Three processes that hold memory until they are ended, and how many of them the kernel has killed.
HOLD = """python3 -c "
import subprocess as s
hold = 'held = bytearray(90_000_000); print(1, flush=True); input()'
all = [s.Popen(['python3', '-c', hold], stdin=s.PIPE, stdout=s.PIPE, stderr=s.DEVNULL) for _ in range(3)]
for one in all: one.stdout.readline()
for one in all: one.stdin.close()
print([one.wait() for one in all].count(-9))
" """
BURN = """python3 -c "
import time
while time.process_time() < 0.5: pass
" """


async def test_memory_is_limited_for_the_workspace_as_a_whole(limited: Limited) -> None:
    """The limit applies to all processes together, which no limit of a single process does."""
    assert await limited.run(HOLD) in ("1\n", "2\n")
    assert await limited.run("echo still here") == "still here\n"


async def test_processors_are_limited(limited: Limited) -> None:
    """Half a second of processor time fills ten quotas, however long the machine takes for it.

    Throttled periods are not counted: on a busy machine other processes leave the group less than its quota.
    """
    before = limited.periods()
    await limited.run(BURN)

    # The first quota and the last may be shared with other commands. Without a limit the kernel counts no periods, and
    # a process outside of the group adds none.
    assert limited.periods() - before >= 8
    assert [each.split()[0] for each in limited.read("cpu.max", "cpu.cfs_quota_us")] == ["50000"]


async def test_processes_are_counted_for_the_workspace_as_a_whole(limited: Limited) -> None:
    await limited.run("for _ in 1 2 3; do sleep 600 </dev/null >/dev/null 2>&1 & done")

    assert limited.read("pids.max") == ["30\n"]
    # The agent and the processes left behind, in each existing group.
    assert {len(each.split()) for each in limited.read("cgroup.procs")} == {4}


# Prints how many processes can run at the same time.
FORK = """
import os
print("ready", flush=True)
input()
wait, end = os.pipe()
made = 0
try:
    while made < 50:
        if os.fork() == 0:
            os.close(end)
            os.read(wait, 1)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
os.close(end)
for _ in range(made):
    os.wait()
"""


def test_kernel_refuses_processes_beyond_the_limit_of_a_group(writable: Path) -> None:
    """Without the additional limit of users: only a process that is in the group."""
    (group,) = cgroups.prepare(plan(cgroup=str(writable), pids=7))
    command = [sys.executable, "-I", "-c", FORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            os.write(group, str(process.pid).encode())
            said, _ = process.communicate(b"\n")
        finally:
            process.kill()
            os.close(group)
    cgroups.remove(str(writable), "w")

    assert said == b"6\n"
    assert not list(writable.glob("**/rookery-w"))


def test_group_gets_the_limits_of_the_template(tmp_path: Path) -> None:
    group = tmp_path / "rookery-w"
    group.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs"):
        (group / name).write_text("")

    cgroups.prepare(plan(cgroup=str(tmp_path), memory_mb=64, cpus=1.5, pids=32))

    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (group / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "pids.max").read_text() == "32"


def version_2(*controllers: str) -> tuple[Path, str]:
    """Return the directory of version 2 groups, and the first of these controllers that it offers."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            offered = (Path(place) / "cgroup.controllers").read_text().split()
            found = next((name for name in controllers if name in offered), None)
            if found is not None:
                return Path(place), found
    pytest.skip("this machine has no groups of version 2, or all their controllers are those of version 1")


@pytest.fixture
def delegated() -> Iterator[tuple[Path, str]]:
    """A version 2 group as a deployment delegates it to the server, and one of its controllers."""
    if os.geteuid() != 0:
        pytest.skip("only root may make groups, and become somebody who may not")
    top, controller = version_2("pids", "memory", "hugetlb")
    enabled = (top / "cgroup.subtree_control").read_text().split()
    made = top / f"rookery-test-{os.getpid()}"
    try:
        (top / "cgroup.subtree_control").write_text(f"+{controller}")
        made.mkdir()
    except OSError as error:
        pytest.skip(f"nobody may make groups of version 2 here: {error.strerror}")
    yield made, controller
    made.rmdir()
    if controller not in enabled:
        (top / "cgroup.subtree_control").write_text(f"-{controller}")


def test_kernel_limits_a_process_in_a_group_of_version_2(
    delegated: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the launcher does it: root opens the group, and the process is moved after the rights are dropped."""
    cgroup, controller = delegated
    # The kernel determines which limit can be tested: controllers of version 1 are not available in version 2.
    limits = {"pids": ("pids.max", "7"), "memory": ("memory.max", "67108864"), "hugetlb": ("hugetlb.2MB.max", "0")}
    name, value = limits[controller]
    monkeypatch.setattr(cgroups, "limits_of", lambda _: {name: value})
    (group,) = cgroups.prepare(plan(cgroup=str(cgroup), pids=7))
    with subprocess.Popen(["sleep", "600"], user=65534, group=65534, extra_groups=[]) as process:
        try:
            move = ["echo", str(process.pid)]
            subprocess.run(move, stdout=group, user=65534, group=65534, extra_groups=[], check=True)
            lines = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()
            limit = (cgroup / "rookery-w" / name).read_text().strip()
        finally:
            process.kill()
            process.wait()
            os.close(group)
            cgroups.remove(str(cgroup), "w")

    assert f"0::/{cgroup.name}/rookery-w" in lines
    assert limit == value
    assert not (cgroup / "rookery-w").exists()


def test_older_hierarchies_get_the_limits_of_the_template(tmp_path: Path) -> None:
    for name in ("memory", "cpu", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")

    assert cgroups.older_limits_of(plan(memory_mb=64, cpus=1.5, pids=32)) == {
        "memory": {"memory.limit_in_bytes": str(64 * 1024**2), "memory.memsw.limit_in_bytes": str(64 * 1024**2)},
        "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
        "pids": {"pids.max": "32"},
    }
    (tmp_path / "cpu" / "cgroup.procs").unlink()
    with pytest.raises(LaunchError, match="no controller for cpu"):
        cgroups.prepare(plan(cgroup=str(tmp_path), cpus=1.5, pids=32))


def test_group_without_the_controller_that_a_limit_needs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu")

    with pytest.raises(LaunchError, match="no controller for memory"):
        cgroups.prepare(plan(cgroup=str(tmp_path), memory_mb=64))


# The first process of the kernel. It sees the machine's files read-only; what it writes is in memory.
INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 none /sys/fs/cgroup
echo "+cpu +memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
cd {root}
mount -t tmpfs tmp /tmp -o mode=1777
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 CI=1 {mark}=1
{python} -m pytest -p no:cacheprovider -p no:randomly --color=no -q {file}
echo "The tests ended with $?."
echo o > /proc/sysrq-trigger
sleep 60
"""


@pytest.mark.skipif(IN_KERNEL in os.environ, reason="this is that kernel")
@pytest.mark.skipif(KERNEL is None, reason="User Mode Linux (linux.uml) is not installed")
def test_all_of_this_holds_with_groups_of_version_2_in_a_kernel_that_has_them() -> None:
    assert KERNEL is not None
    root = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory(prefix="rkk-") as folder:
        init = Path(folder) / "init"
        init.write_text(
            INIT.format(root=root, python=sys.executable, file=Path(__file__).relative_to(root), mark=IN_KERNEL)
        )
        init.chmod(0o755)
        command = [KERNEL, "mem=1G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"]
        command += ["con=null", "con0=null,fd:1", f"uml_dir={folder}", "quiet"]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)

    assert "The tests ended with 0." in ended.stdout, ended.stdout[-20_000:]
    assert "skipped" not in ended.stdout.replace("1 skipped", ""), ended.stdout[-20_000:]
