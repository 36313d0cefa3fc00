"""The isolation check of a machine: it finds no problem on an isolated machine, and reports an open boundary."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rookery.workspaces import agent_bundle
from rookery.workspaces.drivers.driver_interface import Sandbox
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.isolation_check import Finding, IsolationCheck
from tests.workspaces.drivers.driver_rig import known_machine


@pytest.fixture
def config() -> Iterator[LocalConfig]:
    known_machine()
    # Below /tmp: the users of workspaces must be able to reach it, and socket addresses must be short.
    with tempfile.TemporaryDirectory(prefix="rki") as directory:
        Path(directory).chmod(0o755)
        yield LocalConfig(data_dir=Path(directory))


@asynccontextmanager
async def driving(config: LocalConfig) -> AsyncIterator[LocalDriver]:
    driver = LocalDriver(config, agent_bundle.build, machine=await asyncio.to_thread(known_machine))
    try:
        yield driver
    finally:
        await driver.egress_sockets.close()
        assert await driver.list_running() == []


def open_ones(findings: list[Finding]) -> dict[str, str]:
    return {each.subject: each.detail for each in findings if each.is_held is False}


async def test_every_wall_of_a_usual_workspace_holds(config: LocalConfig) -> None:
    async with driving(config) as driver:
        findings = await IsolationCheck(driver, config).run()

    assert open_ones(findings) == {}
    assert len(findings) == 6
    assert list(config.workspaces.glob("doctor-*")) == []


async def test_workspace_with_the_machines_network_is_found_out(config: LocalConfig) -> None:
    config = msgspec.structs.replace(config, network_max="host")
    async with driving(config) as driver:
        findings = await IsolationCheck(driver, config, sandbox=Sandbox(network="host")).run()

    assert open_ones(findings).keys() == {"server ports"}
    assert "127.0.0.1:" in open_ones(findings)["server ports"]


async def test_file_that_a_workspace_can_read_is_named(config: LocalConfig) -> None:
    async with driving(config) as driver:
        told = msgspec.structs.replace(config, hidden=(Path("/usr/bin/env"),))
        findings = await IsolationCheck(driver, told, shared_folders=["/"]).run()

    assert open_ones(findings).keys() == {"hidden files", "shared folders"}
    assert "/usr/bin/env" in open_ones(findings)["hidden files"]
