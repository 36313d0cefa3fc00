"""Workspaces behind a real sshd on the loopback, with the real agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.runtime.clock import SystemClock
from rookery.workspaces import agent_bundle
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import StartProcess
from rookery.workspaces.drivers import ssh
from rookery.workspaces.drivers.driver_interface import DriverError, Sandbox, Script, WorkspaceSpec
from rookery.workspaces.drivers.launcher import directory_setup
from rookery.workspaces.drivers.launcher.workspace_users import NOBODY, SSH_RANGE
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.drivers.ssh_connection import Facts
from rookery.workspaces.errors import AgentUnreachable
from tests.eventually import until
from tests.workspaces import python_versions
from tests.workspaces.drivers.driver_rig import known_machine, processes_like, spec
from tests.workspaces.drivers.sshd import Sshd

LONG = 60.0
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
PYTHONS = [os.path.realpath(path) for path in python_versions.find()]


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    # Short: the path of the agent's socket is below it.
    directory = Path(tempfile.mkdtemp(prefix="sshd-"))
    sshd = Sshd(directory)
    sshd.start()
    yield sshd
    sshd.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def driver() -> AsyncIterator[SshDriver]:
    driver = SshDriver(agent_bundle.build)
    yield driver
    await driver.close()


class Remote:
    """Workspaces on that machine, stopped when the test is over."""

    def __init__(self, sshd: Sshd, driver: SshDriver) -> None:
        self.sshd = sshd
        self.driver = driver
        self.lines: list[str] = []
        self.started: list[WorkspaceSpec] = []

    def spec(self, **parts: Any) -> WorkspaceSpec:
        return spec(ssh=self.sshd.place(), **{"sandbox": Sandbox(enabled=False, network="host"), **parts})

    async def start(self, ws: WorkspaceSpec) -> WorkspaceSpec:
        self.started.append(ws)
        await self.driver.start(ws, self.lines.append)
        return ws

    async def run(self, ws: WorkspaceSpec, command: str) -> str:
        http = AgentHttp(self.driver.connector(ws), token=ws.token, generation=ws.generation, clock=SystemClock())
        conn = AgentConn(http)
        process = await conn.start_process(StartProcess(command=command))
        output = await conn.process_output(process.id, wait=LONG)
        await http.close()
        return output.output

    def path(self, ws: WorkspaceSpec) -> Path:
        return self.sshd.home / ".rookery" / "workspaces" / ws.id


@pytest.fixture
async def remote(sshd: Sshd, driver: SshDriver) -> AsyncIterator[Remote]:
    remote = Remote(sshd, driver)
    yield remote
    for ws in remote.started:
        await SshDriver.delete(driver, ws)


async def test_workspace_of_another_machine_lives_and_ends(remote: Remote) -> None:
    ws = remote.spec(
        directory="~/project",
        parameters={"SIZE": "large"},
        startup=Script(text="#!/bin/sh\necho started > ~/startup\n", timeout_s=60),
    )
    endpoint = await remote.driver.start(ws, remote.lines.append)
    remote.started.append(ws)
    home = remote.path(ws) / "home"
    probe = await remote.driver.probe(ws)

    said = await remote.run(ws, "pwd; echo $ROOKERY_PARAM_SIZE; (setsid sleep 65432 >/dev/null 2>&1 &) ; true")
    await until(lambda: processes_like("65432"), timeout=LONG)
    await remote.driver.stop(ws, 10)

    assert endpoint.url == f"ssh-unix://127.0.0.1{remote.path(ws)}/run/agent.sock"
    assert (endpoint.home, endpoint.directory) == (str(home), f"{home}/project")
    assert "not confined" in endpoint.warnings[0]
    assert (probe.alive, probe.answers) == (True, True)
    assert said == f"{home}/project\nlarge\n"
    assert (home / "startup").read_text() == "started\n"
    assert processes_like("65432") == []
    assert not (await remote.driver.probe(ws)).alive
    assert remote.lines[-1] == "The agent answers."


async def test_workspace_is_confined_where_bubblewrap_is(remote: Remote) -> None:
    await asyncio.to_thread(known_machine)
    ws = await remote.start(remote.spec(sandbox=Sandbox(network="none")))

    said = await remote.run(ws, f"id -un; pwd; ls {remote.sshd.home} 2>&1; tail -n +3 /proc/net/dev | cut -d: -f1")
    await remote.driver.stop(ws, 10)

    assert said.split("\n")[:2] == ["agent", "/home/agent"]
    assert "No such file or directory" in said
    assert said.rstrip().endswith("lo")


def owner(remote: Remote, ws: WorkspaceSpec) -> int:
    """The user that the files of this workspace belong to, as whom it runs."""
    return (remote.path(ws) / "home").stat().st_uid


@as_root
async def test_each_workspace_of_a_root_login_has_a_user_of_its_own(remote: Remote, tmp_path: Path) -> None:
    await asyncio.to_thread(known_machine)
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)

    first, second = [await remote.start(remote.spec(sandbox=Sandbox(network="none"))) for _ in range(2)]
    sharing = await remote.start(remote.spec(sandbox=Sandbox(network="none", rw_binds=(str(folder),))))
    for ws in (first, second):
        assert await remote.run(ws, "touch ~/made && echo made") == "made\n"
    assert await remote.run(sharing, f"touch {folder}/made && echo made") == "made\n"

    assert (owner(remote, first), owner(remote, second)) == (SSH_RANGE[0], SSH_RANGE[0] + 1)
    assert (remote.path(second) / "home" / "made").stat().st_uid == SSH_RANGE[0] + 1
    assert owner(remote, sharing) == (folder / "made").stat().st_uid == NOBODY


@as_root
async def test_workspace_of_an_older_version_gets_a_user_of_its_own_at_its_next_start(remote: Remote) -> None:
    await asyncio.to_thread(known_machine)
    ws = await remote.start(remote.spec(sandbox=Sandbox(network="none")))
    await remote.run(ws, "echo mine > ~/file")
    await remote.driver.stop(ws, 1)
    for name in ("home", "run"):
        directory_setup.change_owner(remote.path(ws) / name, NOBODY)

    again = await remote.start(msgspec.structs.replace(ws, generation=2))

    assert await remote.run(again, "cat ~/file && echo more >> ~/file") == "mine\n"
    assert SSH_RANGE[0] <= owner(remote, again) <= SSH_RANGE[1]


# A container with the usual 65,536 users: the command runs as root of a new user namespace.
IN_A_CONTAINER = """
import ctypes, os, sys
inner, outer = os.pipe(), os.pipe()
command = os.getpid()
if os.fork() == 0:
    os.read(inner[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{command}/{name}", "w") as file:
            file.write("0 0 65536")
    os.write(outer[1], b"x")
    os._exit(0)
ctypes.CDLL(None).unshare(0x10000000)
os.write(inner[1], b"x")
os.read(outer[0], 1)
os.execv(sys.argv[1], sys.argv[1:])
"""


@as_root
async def test_machine_with_too_few_users_for_workspaces_is_told_with_each_of_them(sshd: Sshd, remote: Remote) -> None:
    await asyncio.to_thread(known_machine)
    await asyncio.to_thread(sshd.stop)
    await asyncio.to_thread(sshd.start, sys.executable, "-c", IN_A_CONTAINER)
    ws = remote.spec(sandbox=Sandbox(network="none"))
    remote.started.append(ws)

    endpoints = [await remote.driver.start(ws, remote.lines.append) for _ in range(2)]

    assert ["run as the same user" in each.warnings[0] for each in endpoints] == [True, True]
    assert owner(remote, ws) == NOBODY


async def test_second_start_finds_the_first_and_a_new_generation_ends_it(remote: Remote) -> None:
    ws = await remote.start(remote.spec())
    first = await remote.driver.probe(ws)
    other = SshDriver(agent_bundle.build)

    await other.start(ws, remote.lines.append)
    again = await remote.driver.probe(ws)
    new = remote.spec(workspace_id=ws.id, generation=2)
    await other.start(new, remote.lines.append)
    await other.close()

    assert again.pid == first.pid
    assert "It is already running." in remote.lines
    assert "Ended generation 1." in remote.lines
    assert (await remote.driver.probe(new)).answers
    assert not (await remote.driver.probe(ws)).alive


async def test_connection_that_broke_is_opened_again(remote: Remote) -> None:
    """The next request opens it: a turn keeps its client, and with it the dead socket."""
    ws = await remote.start(remote.spec())
    http = AgentHttp(remote.driver.connector(ws), token=ws.token, generation=ws.generation, clock=SystemClock())
    conn = AgentConn(http)
    await conn.health()

    await asyncio.to_thread(remote.sshd.stop)
    await asyncio.to_thread(remote.sshd.start)

    async def answers() -> bool:
        with contextlib.suppress(AgentUnreachable):
            return (await conn.health()).generation == 1
        return False

    await until(answers, timeout=LONG)
    assert (await remote.driver.probe(ws)).answers
    await http.close()


async def test_login_that_was_canceled_halfway_is_repeated(remote: Remote, tmp_path: Path) -> None:
    """A canceled caller must not leave an incomplete connection that others take for an open one."""
    slow, go = tmp_path / "ssh", tmp_path / "go"
    slow.write_text(f'#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexec ssh "$@"\n')
    slow.chmod(0o755)
    driver = SshDriver(agent_bundle.build, ssh=str(slow))
    ws = remote.spec()
    _, host = driver._host(ws)
    hurried = asyncio.create_task(host.connect())
    await until(lambda: host._master is not None, timeout=LONG)

    hurried.cancel()
    await asyncio.wait([hurried])
    go.touch()
    facts = await host.get_facts()
    await driver.close()

    assert facts.root == str((remote.sshd.home / ".rookery").resolve())


async def test_home_too_deep_for_sockets_is_told_at_once_and_can_be_deleted(sshd: Sshd, driver: SshDriver) -> None:
    await asyncio.to_thread(sshd.stop)
    deep = sshd.directory / ("d" * 60)
    deep.mkdir()
    text = (sshd.directory / "sshd_config").read_text()
    (sshd.directory / "sshd_config").write_text(text.replace(f"HOME={sshd.home}", f"HOME={deep}"))
    await asyncio.to_thread(sshd.start)
    ws = spec(ssh=sshd.place(), sandbox=Sandbox(network="host"))

    with pytest.raises(DriverError, match="too long for the sockets") as refused:
        await driver.start(ws, print)
    await driver.stop(ws, 1)
    await driver.delete(ws)

    assert refused.value.code == "invalid_workspace"
    assert not (deep / ".rookery" / "workspaces" / ws.id).exists()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ('{"root": "/x\\u0000", "python": "", "python_prefix": "", "bwrap": null}', "cannot be read"),
        ("$(head -c 3000000 /dev/zero | tr '\\0' x)", "more than 1048576 bytes"),
    ],
)
async def test_machine_that_answers_nonsense_is_told_as_one_that_failed(
    sshd: Sshd, driver: SshDriver, says: str, told: str
) -> None:
    """The workspace may control the login, with everything that it runs."""
    await asyncio.to_thread(sshd.stop)
    own = sshd.directory / "own"
    own.mkdir()
    said = says if says.startswith("$") else says.replace('"', '\\"')
    (own / "python3").write_text(f'#!/bin/sh\n/usr/bin/cat >/dev/null\necho "{said}"\n')
    (own / "python3").chmod(0o755)
    sshd.configure(path=f"{own}:/usr/bin:/bin")
    await asyncio.to_thread(sshd.start)

    with pytest.raises(DriverError, match=told) as refused:
        await driver.start(spec(ssh=sshd.place()), print)

    assert refused.value.code == "ssh_failed"


async def test_token_and_environment_are_in_no_argument(remote: Remote) -> None:
    ws = remote.spec(env={"COLOUR": "very-secret-green"})
    seen: set[bytes] = set()

    async def watch() -> None:
        while True:
            seen.update(command_lines())
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    await remote.start(ws)
    watching.cancel()

    assert any(b"127.0.0.1" in line for line in seen)
    assert not any(ws.token.encode() in line or b"very-secret-green" in line for line in seen)


def command_lines() -> set[bytes]:
    found = set()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                found.add(Path("/proc", name, "cmdline").read_bytes())
        except OSError:
            continue
    return found


async def test_agent_is_sent_once(remote: Remote) -> None:
    one = await remote.start(remote.spec())
    await remote.start(remote.spec())

    agents = os.listdir(remote.sshd.home / ".rookery" / "agents")
    assert remote.lines.count("Sending the agent.") == 1
    assert len(agents) == 1
    assert agents[0].endswith(".pyz")
    assert (remote.path(one) / "run" / "token").stat().st_mode & 0o777 == 0o600


async def test_delete_removes_the_directory(remote: Remote) -> None:
    ws = await remote.start(remote.spec())
    await remote.run(ws, "mkdir -p ~/a/b && chmod 0 ~/a/b ~/a")

    await remote.driver.delete(ws)
    await remote.driver.delete(ws)

    assert os.listdir(remote.path(ws).parent) == []


async def test_wrong_host_key_is_refused_with_its_code(sshd: Sshd, driver: SshDriver) -> None:
    another = await asyncio.to_thread(sshd.another_key)
    assert another
    public = (sshd.directory / "another.pub").read_text().split()
    known_hosts = f"[127.0.0.1]:{sshd.port} {public[0]} {public[1]}"

    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place(known_hosts=known_hosts)), print)

    assert refused.value.code == "ssh_hostkey"
    assert "Host key verification failed" in refused.value.message


async def test_unknown_host_is_refused_with_its_code(sshd: Sshd, driver: SshDriver) -> None:
    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place(known_hosts="elsewhere ssh-ed25519 AAAA")), print)

    assert refused.value.code == "ssh_hostkey"


async def test_wrong_key_is_refused_with_its_code(sshd: Sshd, driver: SshDriver) -> None:
    identity = await asyncio.to_thread(sshd.another_key)

    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place(identity=identity)), print)

    assert refused.value.code == "ssh_auth"
    assert "Permission denied" in refused.value.message
    assert identity.splitlines()[1] not in refused.value.message


async def test_machine_that_does_not_listen_is_told(sshd: Sshd, driver: SshDriver) -> None:
    await asyncio.to_thread(sshd.stop)

    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place()), print)

    assert refused.value.code == "ssh_failed"
    assert "Connection refused" in refused.value.message


@pytest.mark.parametrize(("python", "is_confined"), [*((each, True) for each in PYTHONS), (PYTHONS[0], False)])
async def test_any_python_of_a_machine_is_enough(remote: Remote, python: str, is_confined: bool) -> None:
    if is_confined:
        await asyncio.to_thread(known_machine)
    own = remote.sshd.directory / "bin"
    own.mkdir()
    (own / "python3").symlink_to(python)
    await asyncio.to_thread(remote.sshd.stop)
    remote.sshd.configure(path=f"{own}:/usr/bin:/bin")
    await asyncio.to_thread(remote.sshd.start)

    ws = await remote.start(remote.spec(sandbox=Sandbox(enabled=is_confined, network="host")))
    said = await remote.run(ws, "readlink /proc/$PPID/exe")
    await remote.driver.stop(ws, 10)

    assert said == f"{python}\n"
    assert not (await remote.driver.probe(ws)).alive


async def test_machine_without_python_is_told(sshd: Sshd, driver: SshDriver) -> None:
    await asyncio.to_thread(sshd.stop)
    empty = sshd.directory / "empty"
    empty.mkdir()
    (empty / "cat").symlink_to("/bin/cat")
    sshd.configure(path=str(empty))
    await asyncio.to_thread(sshd.start)

    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place()), print)

    assert refused.value.code == "python_missing"


@pytest.mark.parametrize(
    ("part", "value"),
    [("host", "-oProxyCommand=id"), ("user", "-x"), ("jump", "a -b"), ("port", 0), ("host", "a b")],
)
async def test_names_that_are_options_never_reach_ssh(sshd: Sshd, driver: SshDriver, part: str, value: object) -> None:
    with pytest.raises(DriverError) as refused:
        await driver.start(spec(ssh=sshd.place(**{part: value})), print)

    assert refused.value.code == "invalid_workspace"


async def test_machine_behind_another_is_reached_by_a_jump(remote: Remote) -> None:
    place = remote.sshd.place()
    ws = remote.spec()
    behind = spec(
        workspace_id=ws.id,
        sandbox=Sandbox(enabled=False, network="host"),
        ssh=remote.sshd.place(
            jump=f"{place.user}@localhost:{place.port}",
            known_hosts=f"{place.known_hosts}\n{place.known_hosts.replace('127.0.0.1', 'localhost')}",
        ),
    )

    await remote.start(behind)

    assert (await remote.driver.probe(behind)).answers


async def test_identity_lies_on_no_disk_after_the_login(remote: Remote) -> None:
    await remote.start(remote.spec())

    kept = remote.driver._socket_directory()
    assert [path.name for path in kept.iterdir() if path.suffix == ".key"] == []
    assert kept.stat().st_mode & 0o777 == 0o700


def test_listed_hosts_are_not_for_other_machines() -> None:
    """Such templates are refused when they are pushed; a stored manifest must not get the machine's network instead."""
    facts = Facts(root="/r", python="/usr/bin/python3", python_prefix="/usr", bwrap="/usr/bin/bwrap")

    with pytest.raises(DriverError, match="hosts") as caught:
        ssh._plan(spec(sandbox=Sandbox(network="hosts", hosts=("a.test",))), facts, "agent.pyz")

    assert caught.value.code == "invalid_workspace"
