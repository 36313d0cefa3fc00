"""Workspaces on this machine, in real sandboxes: their lifecycle, their files, and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.driver_interface import (
    DriverError,
    DriverUnavailable,
    Limits,
    Sandbox,
    Script,
    WorkspaceSpec,
)
from rookery.workspaces.drivers.launcher import bwrap_arguments
from rookery.workspaces.drivers.launcher.sandbox_processes import find_all
from rookery.workspaces.drivers.launcher.workspace_users import DEFAULT_RANGE
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import bounded, namespaces_advice
from rookery.workspaces.network_levels import Network
from tests.eventually import until
from tests.required_programs import requires
from tests.workspaces.drivers.driver_rig import known_machine, local_driver, processes_like, run, spec

LONG = 60.0
OF_THE_ROOT_HERE = [name for name in bwrap_arguments.ROOT_DIRECTORIES if os.path.lexists(f"/{name}")]


class LocalRig:
    """A driver and the workspaces it started, which are removed after the test."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.driver = self.another_driver()
        self.lines: list[str] = []
        self._started: list[WorkspaceSpec] = []

    def another_driver(self, **settings: Any) -> LocalDriver:
        """Return the driver of a second replica on the same node."""
        return local_driver(self.data_dir, machine=known_machine(), **settings)

    async def start(self, ws: WorkspaceSpec | None = None, **parts: Any) -> WorkspaceSpec:
        ws = ws or spec(**parts)
        self._started.append(ws)
        await self.driver.start(ws, self.lines.append)
        return ws

    async def run(self, ws: WorkspaceSpec, command: str) -> tuple[int, str]:
        return await asyncio.to_thread(run, self.driver, ws, command)

    def path(self, ws: WorkspaceSpec) -> Path:
        return self.data_dir / "workspaces" / ws.id

    def clear(self) -> None:
        async def stop_all() -> None:
            for ws in self._started:
                await self.another_driver().stop(ws, 0)

        asyncio.run(stop_all())


@pytest.fixture
def local_rig(tmp_path: Path) -> Iterator[LocalRig]:
    local_rig = LocalRig(tmp_path / "data")
    yield local_rig
    local_rig.clear()


async def test_nothing_of_opt_srv_and_var_is_seen_unless_a_template_binds_it(local_rig: LocalRig) -> None:
    ws = await local_rig.start()

    _, output = await local_rig.run(ws, "ls -d /opt /srv /var /root /mnt /media 2>/dev/null; ls /")

    assert output.split() == sorted({"dev", "etc", "home", "proc", "run", "tmp", "usr"} | set(OF_THE_ROOT_HERE))


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def test_started_workspace_answers_and_says_where_it_is(local_rig: LocalRig) -> None:
    ws = spec(directory="~/project")

    endpoint = await local_rig.driver.start(ws, local_rig.lines.append)
    probe = await local_rig.driver.probe(ws)
    await local_rig.driver.stop(ws, 5)

    assert (endpoint.home, endpoint.directory) == ("/home/agent", "/home/agent/project")
    assert endpoint.url == f"unix://{local_rig.path(ws)}/run/agent.sock"
    assert endpoint.warnings == ()
    assert (probe.alive, probe.answers, probe.generation) == (True, True, 1)
    assert local_rig.lines[-1] == "The agent answers."


async def test_directories_are_closed_and_belong_to_the_user_of_the_workspace(local_rig: LocalRig) -> None:
    ws = await local_rig.start()

    owner = DEFAULT_RANGE[0] if os.geteuid() == 0 else os.geteuid()
    modes = {
        name: (stat.S_IMODE(found.st_mode), found.st_uid)
        for name, found in (
            (name, (local_rig.path(ws) / name).stat()) for name in ("home", "run", "run/token", "run/config.json")
        )
    }
    assert modes == {
        "home": (0o700, owner),
        "run": (0o700, owner),
        "run/token": (0o600, owner),
        "run/config.json": (0o600, owner),
    }
    assert stat.S_IMODE(local_rig.path(ws).stat().st_mode) == 0o700
    assert stat.S_IMODE((local_rig.path(ws) / "sandbox.json").stat().st_mode) == 0o600


async def test_second_start_of_a_generation_that_answers_starts_nothing(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    first = await local_rig.driver.probe(ws)

    await local_rig.another_driver().start(ws, local_rig.lines.append)

    assert (await local_rig.driver.probe(ws)).pid == first.pid
    assert "It is already running." in local_rig.lines


async def test_two_starts_at_once_make_one_sandbox(local_rig: LocalRig) -> None:
    ws = spec()
    other = local_rig.another_driver()

    await asyncio.gather(local_rig.start(ws), other.start(ws, local_rig.lines.append))

    assert len(await local_rig.driver.list_running()) == 1


async def test_start_of_a_new_generation_ends_the_old_one(local_rig: LocalRig) -> None:
    old = await local_rig.start()
    await local_rig.run(old, "echo kept > ~/file")
    new = await local_rig.start(spec(workspace_id=old.id, generation=2))

    assert [found.generation for found in await local_rig.driver.list_running()] == [2]
    assert not (await local_rig.driver.probe(old)).alive
    assert await local_rig.run(new, "cat ~/file") == (0, "kept\n")


async def test_cancelled_start_leaves_what_a_stop_finds(local_rig: LocalRig) -> None:
    ws = spec(env={"FAKE": "silent"})
    starting = asyncio.create_task(local_rig.start(ws))
    await until(lambda: local_rig.driver.list_running(), timeout=LONG)

    starting.cancel()
    await asyncio.wait([starting])
    found = await local_rig.driver.list_running()
    await local_rig.driver.stop(ws, 0)

    assert starting.cancelled()
    assert [one.workspace_id for one in found] == [ws.id]
    assert await local_rig.driver.list_running() == []


async def test_stop_asks_first_with_the_time_that_is_given(local_rig: LocalRig) -> None:
    ws = await local_rig.start()

    await local_rig.driver.stop(ws, 7.5)

    assert (local_rig.path(ws) / "run" / "grace").read_text() == "7.5"
    assert not (await local_rig.driver.probe(ws)).alive


async def test_stop_leaves_no_process_not_even_a_daemon_that_hides(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    await local_rig.run(ws, "(setsid sh -c 'trap \"\" TERM HUP; exec sleep 98765' >/dev/null 2>&1 &) ; true")
    await until(lambda: processes_like("98765"), timeout=LONG)

    await local_rig.driver.stop(ws, 5)

    assert processes_like("98765") == []
    assert await local_rig.driver.list_running() == []


async def test_agent_that_does_not_end_is_killed_after_its_time(
    local_rig: LocalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.workspaces.drivers.local.ENDING_SECONDS", 0.1)
    ws = await local_rig.start(env={"FAKE": "stubborn"})

    await local_rig.driver.stop(ws, 0.1)

    assert not (await local_rig.driver.probe(ws)).alive


async def test_stop_of_what_does_not_run_is_fine(local_rig: LocalRig) -> None:
    ws = await local_rig.start()

    await local_rig.driver.stop(ws, 1)
    await local_rig.driver.stop(ws, 1)
    await local_rig.driver.stop(spec(), 1)


async def test_killed_agent_is_noticed(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    pid = (await local_rig.driver.probe(ws)).pid
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    async def dead() -> bool:
        return not (await local_rig.driver.probe(ws)).alive

    await until(dead, timeout=LONG)


async def test_sandbox_whose_record_is_lost_is_found_by_its_mark_and_stopped(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    (local_rig.path(ws) / "sandbox.json").unlink()

    found = await local_rig.driver.list_running()
    await local_rig.driver.stop_stray(found[0])

    assert [(one.workspace_id, one.generation) for one in found] == [(ws.id, 1)]
    assert await local_rig.driver.list_running() == []


async def test_sandbox_outlives_its_outer_process_and_is_still_stopped(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    running = find_all(local_rig.data_dir / "workspaces")[0]
    assert running.monitor is not None
    os.kill(running.monitor, signal.SIGKILL)

    await local_rig.driver.stop(ws, 5)

    assert not (await local_rig.driver.probe(ws)).alive


async def test_record_that_the_workspace_writes_itself_is_not_believed(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    victim = await asyncio.create_subprocess_exec("sleep", "1000")
    await local_rig.run(
        ws, f'echo \'{{"pid": {victim.pid}, "pid_start": 1, "generation": 1}}\' > /run/rookery/agent.json'
    )

    await local_rig.driver.stop(ws, 5)

    assert victim.returncode is None
    victim.kill()
    await victim.wait()


async def test_agent_that_ends_at_once_is_told_with_its_words(local_rig: LocalRig) -> None:
    with pytest.raises(DriverError) as failed:
        await local_rig.start(env={"FAKE": "exiting"})

    assert failed.value.code == "agent_exited"
    assert "this agent does not like it here" in failed.value.message


@pytest.mark.parametrize("fake", ["silent", "lying"])
async def test_agent_that_does_not_answer_as_it_should_is_ended(local_rig: LocalRig, fake: str) -> None:
    driver = local_rig.another_driver(answer_seconds=0.5)

    with pytest.raises(DriverError) as failed:
        await driver.start(spec(env={"FAKE": fake}), local_rig.lines.append)

    assert failed.value.code == "agent_timeout"
    assert await driver.list_running() == []


async def test_new_home_gets_the_files_of_the_template_once(local_rig: LocalRig) -> None:
    ws = await local_rig.start(files=archive(**{"notes/a.txt": "from the template", "b.txt": "b"}))
    await local_rig.run(ws, "echo mine > ~/notes/a.txt; rm ~/b.txt")
    await local_rig.driver.stop(ws, 1)
    again = spec(workspace_id=ws.id, generation=2, files=archive(**{"notes/a.txt": "newer", "c.txt": "c"}))
    await local_rig.start(again)

    assert await local_rig.run(again, "cat ~/notes/a.txt; ls ~") == (0, "mine\nnotes\n")


async def test_delete_removes_what_the_workspace_made_hard_to_remove(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    code, output = await local_rig.run(
        ws,
        "cd ~ && mkdir -p closed/inner && touch closed/inner/f && ln -s /etc link && chmod 0 closed/inner closed"
        " && python3 -c \"import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\"",
    )
    assert (code, output) == (0, "")

    await local_rig.driver.delete(ws)
    await local_rig.driver.delete(ws)

    assert list((local_rig.data_dir / "workspaces").iterdir()) == []
    assert os.listdir("/etc")


async def test_links_in_the_run_directory_do_not_lead_the_server_astray(local_rig: LocalRig, tmp_path: Path) -> None:
    ws = await local_rig.start()
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    await local_rig.run(
        ws,
        f"cd /run/rookery && rm -f config.json token .token.new && ln -s {outside} config.json && ln -s {outside} token"
        f" && ln -s {outside} .token.new && mkdir -p startup.sh/x && rm -f journal && ln -s {outside} agent.json",
    )
    await local_rig.driver.stop(ws, 1)

    await local_rig.start(spec(workspace_id=ws.id, generation=2, startup=Script(text="true", timeout_s=5)))

    assert outside.read_text() == "untouched"


async def test_socket_that_was_swapped_for_a_link_is_not_dialled(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    await local_rig.run(ws, "cd /run/rookery && mv agent.sock other.sock && ln -s /run/some.sock agent.sock")

    with pytest.raises(DriverError, match="is not the agent's socket"):
        await local_rig.driver.connector(ws).prepare()


async def test_environment_holds_what_the_template_says_and_nothing_of_the_server(
    local_rig: LocalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    ws = await local_rig.start(env={"COLOUR": "green = blue"})

    _, output = await local_rig.run(ws, "tr '\\0' '\\n' < /proc/1/environ; tr '\\0' ' ' < /proc/1/cmdline")

    assert "COLOUR=green = blue" in output
    assert "sk-very-secret" not in output
    assert ws.token not in output


async def test_no_network_means_none(local_rig: LocalRig) -> None:
    ws = await local_rig.start(sandbox=Sandbox(network="none"))

    _, output = await local_rig.run(ws, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; cat /etc/resolv.conf")

    assert output == "lo\n"


@pytest.mark.parametrize("most", ["none", "hosts", "public"])
async def test_network_of_a_template_is_capped_by_the_settings_and_told(local_rig: LocalRig, most: Network) -> None:
    driver = local_rig.driver = local_rig.another_driver(network_max=most)
    ws = spec(sandbox=Sandbox(network="host"))
    endpoint = await driver.start(ws, local_rig.lines.append)

    _, output = await asyncio.to_thread(run, driver, ws, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    await driver.stop(ws, 0)

    assert output == "lo\n"
    assert endpoint.network == most
    assert f"The template requests the network host; drivers.local.network_max allows {most}." in local_rig.lines


async def test_workspace_has_a_network_of_its_own_unless_settings_and_template_say_otherwise(
    local_rig: LocalRig,
) -> None:
    async def namespace(driver: LocalDriver, ws: WorkspaceSpec) -> str:
        await driver.start(ws, local_rig.lines.append)
        _, output = await asyncio.to_thread(run, driver, ws, "readlink /proc/self/ns/net")
        await driver.stop(ws, 0)
        return output.strip()

    machine = os.readlink("/proc/self/ns/net")
    open_driver = local_rig.another_driver(network_max="host")

    assert await namespace(local_rig.driver, spec()) != machine
    assert await namespace(local_rig.driver, spec(sandbox=Sandbox(network="host"))) != machine
    assert await namespace(open_driver, spec()) != machine
    assert await namespace(open_driver, spec(sandbox=Sandbox(network="host"))) == machine


@requires("bwrap")
@pytest.mark.parametrize(("nested", "works"), [(True, True), (False, False)])
async def test_nested_sandboxes_work_when_the_template_says_so(local_rig: LocalRig, nested: bool, works: bool) -> None:
    ws = await local_rig.start(sandbox=Sandbox(network="none", nested=nested))

    nest = "bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc true; echo $?; unshare -Ur true"
    code, output = await local_rig.run(ws, nest)

    assert ("0" in output.splitlines()) is works, output
    assert (code == 0) is works, output


async def test_binds_are_seen_as_the_template_says(local_rig: LocalRig, tmp_path: Path) -> None:
    for name in ("readable", "writable"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
    sandbox = Sandbox(ro_binds=(str(tmp_path / "readable"),), rw_binds=(str(tmp_path / "writable"),))
    ws = await local_rig.start(sandbox=sandbox)

    _, output = await local_rig.run(ws, f"cd {tmp_path}; cat */file; touch readable/new; touch writable/new; ls")

    assert "readablewritable" in output
    assert "Read-only file system" in output
    assert (tmp_path / "writable" / "new").exists()
    assert output.endswith("readable\nwritable\n")


@pytest.mark.parametrize(
    ("bind", "why"),
    [
        ("DATA", "the data of the server"),
        ("DATA/workspaces", "the data of the server"),
        ("/", "the data of the server"),
        ("/proc", "the sandbox itself"),
        ("/home/agent/x", "the sandbox itself"),
        ("/etc", "the sandbox itself"),
        ("relative", "absolute path"),
        ("/usr/../root", "absolute path"),
        ("/no/such/place", "does not exist"),
        ("LINK", "leads through a link"),
        ("LINK/below", "leads through a link"),
    ],
)
async def test_bind_that_would_open_the_sandbox_is_refused(
    local_rig: LocalRig, tmp_path: Path, bind: str, why: str
) -> None:
    (tmp_path / "secret" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    path = bind.replace("DATA", str(local_rig.data_dir)).replace("LINK", str(tmp_path / "link"))

    with pytest.raises(DriverError) as refused:
        await local_rig.start(sandbox=Sandbox(ro_binds=(path,)))

    assert refused.value.code == "invalid_workspace"
    assert why in refused.value.message


async def test_sandbox_whose_limits_cannot_be_set_does_not_run_without_them(
    local_rig: LocalRig, tmp_path: Path
) -> None:
    ws, groups = spec(limits=Limits(pids=30)), tmp_path / "groups"
    group = groups / f"rookery-{ws.id}"
    group.mkdir(parents=True)
    (groups / "cgroup.controllers").write_text("pids")
    for path in (groups / "cgroup.subtree_control", group / "pids.max"):
        path.write_text("")
    # A group that accepts no process.
    (group / "cgroup.procs").symlink_to("/dev/full")
    driver = local_rig.another_driver(cgroup=groups)

    with pytest.raises(DriverError) as failed:
        await driver.start(ws, local_rig.lines.append)

    assert "No space left on device" in failed.value.message
    assert await driver.list_running() == []


async def test_refusal_of_the_system_is_reported_and_not_retried_forever(local_rig: LocalRig) -> None:
    local_rig.data_dir.mkdir()
    (local_rig.data_dir / "workspaces").write_text("in the way")

    with pytest.raises(DriverError, match="Not a directory") as failed:
        await local_rig.start()

    assert failed.value.code == "sandbox_failed"


async def test_cancelled_caller_leaves_when_its_thread_is_done() -> None:
    """Otherwise the next action on the workspace would overlap the running one."""
    has_begun, may_end, done = threading.Event(), threading.Event(), []

    def work() -> None:
        has_begun.set()
        may_end.wait(LONG)
        done.append("work")

    waiting = asyncio.create_task(sandboxes.in_thread(work))
    await until(has_begun.is_set, timeout=LONG)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=0.05)
    may_end.set()
    await asyncio.wait([waiting])

    assert (waiting.cancelled(), done) == (True, ["work"])


async def test_folder_that_turns_into_a_link_while_it_is_bound_leads_nowhere_else(
    local_rig: LocalRig, tmp_path: Path
) -> None:
    """A user with write access to a shared folder replaces its content again and again."""
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    for folder in (shared / "project", secret):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    (secret / "key").write_text("a secret")
    project, aside, link = shared / "project", shared / "aside", shared / "link"
    link.symlink_to(secret)
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            project.rename(aside)
            link.rename(project)
            project.rename(link)
            aside.rename(project)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = []
    try:
        for _ in range(6):
            with contextlib.suppress(DriverError):
                ws = await local_rig.start(sandbox=Sandbox(rw_binds=(str(project),)))
                seen.append((await local_rig.run(ws, f"cat {project}/key"))[1])
    finally:
        is_over.set()
        swapping.join()

    assert not any("a secret" in each for each in seen)


@pytest.mark.parametrize(
    ("memory_mb", "cores", "effective"),
    [
        (65_536, 32, (4096, 4.0)),  # as the template sets it
        (4096, 4, (3072, 3.0)),
        (4096, 2, (3072, 1.5)),
        (1024, 1, (2048, 1.0)),  # never so little that builds fail
    ],
)
def test_limits_leave_a_small_machine_a_quarter_of_what_it_has(
    memory_mb: int, cores: int, effective: tuple[int, float]
) -> None:
    found = bounded(Limits(memory_mb=4096, cpus=4, pids=7), memory_mb=memory_mb, cores=cores)

    assert (found.memory_mb, found.cpus) == effective
    assert found.pids == 7
    assert bounded(Limits(), memory_mb=memory_mb, cores=cores) == Limits()


async def test_limits_of_shipped_templates_let_ordinary_programs_work(local_rig: LocalRig) -> None:
    """Many threads, a large heap, and much more reserved memory, as runtimes and browsers use it."""
    ws = await local_rig.start(limits=Limits(memory_mb=4096, cpus=4, pids=2048))
    threads = "import threading, time\nfor _ in range(300): threading.Thread(target=time.sleep, args=(1,)).start()"
    reserves = "import mmap; mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)"

    for code in (threads, "bytearray(1_200_000_000)", reserves):
        assert await local_rig.run(ws, f'python3 -c "{code}"') == (0, "")
    _, refused = await local_rig.run(ws, 'python3 -c "bytearray(5_000_000_000)" 2>&1 | tail -1')

    assert "MemoryError" in refused


async def test_limits_hold_for_processes_files_and_memory(local_rig: LocalRig) -> None:
    ws = await local_rig.start(limits=Limits(pids=20, disk_mb=1, memory_mb=256))

    many = "import subprocess as s\nfor _ in range(40): s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL)"

    _, output = await local_rig.run(
        ws,
        f'python3 -c "{many}" 2>&1 | tail -1; head -c 3000000 /dev/zero > ~/big; stat -c %s ~/big;'
        'python3 -c "bytearray(300_000_000)" 2>&1 | tail -1; ulimit -n; ulimit -c',
    )

    assert "Resource temporarily unavailable" in output
    assert "\n1048576\n" in output
    assert "MemoryError" in output
    assert output.endswith("4096\n0\n")


@pytest.mark.parametrize(
    ("says", "fix"),
    [
        ("bwrap: No permissions to create new namespace", "user namespaces"),
        ("bwrap: setting up uid map: Permission denied", "user namespaces"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "/proc"),
        ("bwrap: Unknown option --disable-userns", "0.8 or newer"),
    ],
)
async def test_machine_without_what_it_takes_says_so_and_does_not_fall_back(
    tmp_path: Path, says: str, fix: str
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f'#!/bin/sh\necho "{says}" >&2\nexit 1\n')
    bwrap.chmod(0o755)
    driver = local_driver(tmp_path / "data", bwrap=bwrap)

    with pytest.raises(DriverUnavailable) as unavailable:
        await driver.start(spec(), print)

    assert says in unavailable.value.message
    assert fix in unavailable.value.fix
    assert await driver.list_running() == []


@pytest.mark.parametrize(
    ("name", "says", "command"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("user/max_user_namespaces", "15000", "--security-opt seccomp=unconfined"),
        ("kernel/unprivileged_userns_clone", "1", "--privileged"),
    ],
)
def test_command_that_allows_user_namespaces_is_the_one_for_this_machine(
    tmp_path: Path, name: str, says: str, command: str
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{says}\n")

    assert command in namespaces_advice(tmp_path, [str(tmp_path)])
    assert "sysctl -w" in namespaces_advice(tmp_path, [])


async def test_unsafe_is_only_by_setting_warns_and_still_ends_everything(tmp_path: Path) -> None:
    driver = local_driver(tmp_path / "data", bwrap=tmp_path / "none", unsafe=True)
    ws = spec()

    endpoint = await driver.start(ws, print)
    await asyncio.to_thread(run, driver, ws, "(setsid sleep 87654 >/dev/null 2>&1 &) ; true")
    await until(lambda: processes_like("87654"), timeout=LONG)
    await driver.stop(ws, 0)

    assert "not confined" in endpoint.warnings[0]
    assert processes_like("87654") == []
    await driver.delete(ws)
    assert list((tmp_path / "data" / "workspaces").iterdir()) == []
