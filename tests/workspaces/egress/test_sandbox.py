"""Workspaces that reach listed hosts only, in real sandboxes: what gets out, and what does not."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rookery.workspaces import bundle
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.machine import LocalConfig
from rookery.workspaces.drivers.protocol import Sandbox, WorkspaceSpec
from rookery.workspaces.egress.doors import Doors
from tests.workspaces.drivers import yard
from tests.workspaces.egress.outside import HERE, Names, Outside, outside


class World:
    """A machine with replicas, workspaces, and an outside that some of them may reach."""

    def __init__(self, data_dir: Path, out: Outside) -> None:
        self.data_dir = data_dir
        self.out = out
        self.names = Names()
        self.drivers: list[LocalDriver] = []
        self._started: list[WorkspaceSpec] = []

    async def replica(self, **settings: Any) -> LocalDriver:
        config = LocalConfig(data_dir=self.data_dir, **settings)
        machine = await asyncio.to_thread(yard.known_machine)
        doors = Doors(self.data_dir, self.names.guard(), owner=config.drops_to, is_open=config.network_max != "none")
        driver = LocalDriver(config, bundle.build, machine=machine, doors=doors)
        self.drivers.append(driver)
        return driver

    async def start(self, driver: LocalDriver, *hosts: str, **parts: Any) -> WorkspaceSpec:
        parts.setdefault("sandbox", Sandbox(network="proxy", hosts=hosts))
        ws = yard.spec(**parts)
        self._started.append(ws)
        await driver.start(ws, print)
        return ws

    async def run(self, ws: WorkspaceSpec, command: str) -> tuple[int, str]:
        driver = self.drivers[0]
        started = await asyncio.to_thread(yard.begin, driver, ws, command)
        return await asyncio.to_thread(yard.end, driver, ws, started)

    async def close(self) -> None:
        for ws in self._started:
            await self.drivers[0].delete(ws)
        for driver in self.drivers:
            await driver.doors.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="egress-") as directory:
        data = Path(directory) / "data"
        data.mkdir(mode=0o700)
        async with outside(Path(directory)) as out:
            made = World(data, out)
            try:
                yield made
            finally:
                await made.close()


async def test_listed_host_is_reached_by_http_and_by_tls(world: World) -> None:
    driver = await world.replica()
    plain, secure = await world.out.web(), await world.out.web("over tls", tls=True)
    world.names.set("listed.test", [HERE])
    ws = await world.start(driver, f"listed.test:{plain}", f"*.test:{secure}")

    curl = await world.run(ws, f"curl -sS http://listed.test:{plain}/a?b=c && curl -sSk https://listed.test:{secure}/")
    print(curl)
    assert curl == (0, "hello from outsideover tls")
