"""The local driver together with the real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from rookery.runtime.clock import SystemClock
from rookery.workspaces import agent_bundle
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import Edit, FileEdits, StartProcess
from rookery.workspaces.drivers.driver_interface import Sandbox, Script, WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig, Machine
from rookery.workspaces.errors import AgentError
from tests.eventually import until
from tests.workspaces.drivers.driver_rig import known_machine, processes_like, spec

SPEC = spec(
    directory="~/project",
    env={"COLOUR": "green"},
    parameters={"SIZE": "large"},
    startup=Script(text="#!/bin/sh\necho started in $PWD > ~/startup\n", timeout_s=60),
    shutdown=Script(text="#!/bin/sh\necho $ROOKERY_PARAM_SIZE > ~/shutdown\n", timeout_s=60),
    sandbox=Sandbox(network="none"),
)


@pytest.fixture
def machine() -> Machine:
    return known_machine()


@pytest.fixture
async def driver(tmp_path: Path, machine: Machine) -> AsyncIterator[LocalDriver]:
    driver = LocalDriver(LocalConfig(data_dir=tmp_path / "data"), agent_bundle.build, machine=machine)
    yield driver
    await driver.stop(SPEC, 0)


def connection(driver: LocalDriver, ws: WorkspaceSpec) -> AgentHttp:
    return AgentHttp(driver.connector(ws), token=ws.token, generation=ws.generation, clock=SystemClock())


async def run(conn: AgentConn, command: str, *, read_only: bool = False) -> tuple[int | None, str]:
    process = await conn.start_process(StartProcess(command=command, read_only=read_only))
    ended = await conn.process_output(process.id, wait=60.0)
    return ended.exit_code, ended.output


async def test_workspace_with_the_real_agent_lives_and_ends(driver: LocalDriver, tmp_path: Path) -> None:
    endpoint = await driver.start(SPEC, print)
    home = tmp_path / "data" / "workspaces" / SPEC.id / "home"
    http = connection(driver, SPEC)
    conn = AgentConn(http)

    async def is_ready() -> bool:
        return (await conn.health()).agent_state == "ready"

    await until(is_ready, timeout=60)
    plain = await run(conn, "pwd; echo $COLOUR $ROOKERY_PARAM_SIZE")
    refused = await run(conn, "touch ~/file", read_only=True)
    edits = [FileEdits(path="/home/agent/fixed", edits=(Edit(old_text="kept", new_text="gone"),))]
    await run(conn, "echo kept > ~/fixed; chmod 444 ~/fixed")
    with pytest.raises(AgentError, match="/home/agent/fixed cannot be written"):
        await conn.write_file("/home/agent/fixed", b"gone", key=uuid4())
    with pytest.raises(AgentError, match="/home/agent/fixed cannot be written"):
        await conn.edit_files(edits, key=uuid4())
    await run(conn, "pkill -9 python3; kill -9 -1")
    health = await conn.health()
    await http.close()
    await driver.stop(SPEC, 30)

    assert (
        (health.home, health.directory) == (endpoint.home, endpoint.directory) == ("/home/agent", "/home/agent/project")
    )
    assert plain == (0, "/home/agent/project\ngreen large\n")
    assert refused[0] == 1
    assert "Read-only file system" in refused[1]
    assert (home / "fixed").read_text() == "kept\n"
    assert (home / "startup").read_text() == "started in /home/agent/project\n"
    assert (home / "shutdown").read_text() == "large\n"
    assert not (await driver.probe(SPEC)).alive


# Attempts of a read-only command, and what is left of them.
TRIES = {
    "write a file": "touch ~/new",
    "write in the project": "touch ~/project/new",
    "change a file": "echo changed > ~/project/file",
    "replace a file": "touch /tmp/new && mv /tmp/new ~/project/file",
    "remove a file": "rm -f ~/project/file",
    "change a mode": "chmod 777 ~/project/file",
    "write through a link": "ln -s ~/project/file /tmp/link && echo changed > /tmp/link",
    "write through the agent's root": "touch /proc/1/root/home/agent/new",
    "read the token, to ask the agent": "cat /run/rookery/token",
    "make it writable in a namespace": "unshare -Urm sh -c 'mount -o remount,bind,rw ~; touch ~/new'",
    "take the view away in a namespace": "unshare -Urm sh -c 'umount -l /; umount -l ~; touch ~/new'",
    "nest a writable one": "bwrap --bind / / --dev /dev touch ~/new",
    "connect to the agent": (
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('/run/rookery/agent.sock')\""
    ),
}


async def test_read_only_command_changes_nothing(driver: LocalDriver, tmp_path: Path) -> None:
    await driver.start(SPEC, print)
    home = tmp_path / "data" / "workspaces" / SPEC.id / "home"
    http = connection(driver, SPEC)
    conn = AgentConn(http)

    async def is_ready() -> bool:
        return (await conn.health()).agent_state == "ready"

    def state() -> list[tuple[str, int, str]]:
        files = [each for each in sorted(home.rglob("*")) if each.is_file()]
        return [(str(each), each.stat().st_mode, each.read_text()) for each in files]

    await until(is_ready, timeout=60)
    await run(conn, "mkdir -p ~/project && echo text > ~/project/file")
    before = state()
    ends = {name: await run(conn, command, read_only=True) for name, command in TRIES.items()}
    after = state()
    looked = await run(
        conn, "cat ~/project/file; touch /tmp/scratch ~/.rookery/plans/PLAN.md && echo kept", read_only=True
    )
    scratch = await run(conn, "ls /tmp")
    await http.close()

    assert [name for name, (code, _) in ends.items() if code == 0] == []
    assert after == before
    assert SPEC.token not in str(ends)
    assert looked == (0, "text\nkept\n")
    assert (home / ".rookery" / "plans" / "PLAN.md").exists()
    assert "scratch" not in scratch[1]


async def test_workspace_that_spoiled_its_own_directories_starts_again(driver: LocalDriver) -> None:
    spoil = (
        "cd /run/rookery && rm -f journal agent.log && mkfifo journal agent.log agent.json.new context.json.new"
        " && mkdir startup.json.new && chmod 0 config.json ~ /run/rookery"
    )
    await driver.start(SPEC, print)
    http = connection(driver, SPEC)
    assert await run(AgentConn(http), f"echo kept > ~/file; {spoil}") == (0, "")
    await http.close()
    await driver.stop(SPEC, 0)
    again = msgspec.structs.replace(SPEC, generation=2)

    await driver.start(again, print)
    http = connection(driver, again)
    kept = await run(AgentConn(http), "cat ~/file")
    await http.close()
    await driver.stop(again, 0)

    assert kept == (0, "kept\n")


async def test_unconfined_workspace_with_the_real_agent_ends_with_all_it_started(tmp_path: Path) -> None:
    config = LocalConfig(data_dir=tmp_path / "data", bwrap=tmp_path / "none", unsafe=True)
    driver = LocalDriver(config, agent_bundle.build)
    await driver.start(SPEC, print)
    http = connection(driver, SPEC)
    await run(AgentConn(http), "(setsid sleep 76543 >/dev/null 2>&1 &) ; true")
    await http.close()

    await driver.stop(SPEC, 10)

    assert processes_like("76543") == []
    await driver.delete(SPEC)
