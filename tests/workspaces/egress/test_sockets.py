"""The egress sockets of workspaces: which replica serves them, connection limits, and cleanup."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.workspace_paths import Layout
from rookery.workspaces.egress.byte_relay import ByteStream
from rookery.workspaces.egress.policy import Policies, Policy
from rookery.workspaces.egress.sockets import ALWAYS_ALLOWED, EgressSockets
from tests.eventually import until
from tests.workspaces.egress.outside_servers import HERE, Names, Outside, outside
from tests.workspaces.egress.test_proxy import everything

WORKSPACE = "0a1b"


class Machine:
    """A data directory with a workspace whose recorded sandbox process is this test process."""

    def __init__(self, data_dir: Path, out: Outside) -> None:
        self.data_dir = data_dir
        self.out = out
        self.names = Names()
        self.names.set("listed.test", [HERE])
        self.place = Layout.of(data_dir, WORKSPACE)
        self.place.directory.mkdir(parents=True, mode=0o700)
        self.replicas: list[EgressSockets] = []

    def replica(self, **settings: Any) -> EgressSockets:
        made = EgressSockets(self.data_dir, self.names.guard(), **settings)
        self.replicas.append(made)
        return made

    def start(self, *hosts: str) -> None:
        self.replicas[0].allow(WORKSPACE, Policy(1, hosts))
        record = {
            "workspace_id": WORKSPACE,
            "generation": 1,
            "pid": os.getpid(),
            "boot_id": sandbox_processes.boot_id(),
        }
        self.place.record.write_text(json.dumps({**record, "pid_start": sandbox_processes.start_time(os.getpid())}))

    async def connect(self) -> ByteStream:
        handle = os.open(self.place.egress_socket, os.O_PATH)
        try:
            return ByteStream(*await asyncio.open_unix_connection(f"/proc/self/fd/{handle}"))
        finally:
            os.close(handle)

    async def ask(self, request: str) -> str:
        client = await self.connect()
        try:
            await client.write(request.encode())
            return (await everything(client)).decode()
        finally:
            client.abort()

    async def close(self) -> None:
        for egress_sockets in self.replicas:
            await egress_sockets.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with outside(tmp_path) as out:
        made = Machine(tmp_path / "data", out)
        try:
            yield made
        finally:
            await made.close()


async def test_one_replica_serves_and_another_follows(machine: Machine) -> None:
    first, second = machine.replica(), machine.replica()
    machine.start("listed.test")

    served = [await first.serve(WORKSPACE), await second.serve(WORKSPACE), await first.serve(WORKSPACE)]
    await first.close()
    left = machine.place.egress_socket.exists()
    await second.reconcile()

    assert served == [True, False, True]
    assert not left
    assert not await first.serve(WORKSPACE)
    assert "403" in await machine.ask("GET http://other.test/ HTTP/1.1\r\n\r\n")
    assert second.stats.requests == {"not_listed": 1}


async def test_workspace_without_a_policy_is_not_served(machine: Machine) -> None:
    egress_sockets = machine.replica()

    assert not await egress_sockets.serve(WORKSPACE)
    await egress_sockets.reconcile()

    assert not machine.place.egress.exists()


async def test_list_that_is_gone_lets_nothing_through(machine: Machine) -> None:
    egress_sockets = machine.replica()
    port = await machine.out.web()
    machine.start(f"listed.test:{port}")
    await egress_sockets.serve(WORKSPACE)

    Policies(machine.data_dir / "egress").remove(WORKSPACE)

    assert "503 The workspace has to be started again" in await machine.ask(
        f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n"
    )
    assert machine.out.heard == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"generation": 1}', '{"generation": 1, "hosts": "x"}'])
async def test_list_that_cannot_be_read_lets_nothing_through(machine: Machine, content: str) -> None:
    egress_sockets = machine.replica()
    machine.start("listed.test")
    await egress_sockets.serve(WORKSPACE)

    (machine.data_dir / "egress" / f"{WORKSPACE}.json").write_text(content)

    assert "503 " in await machine.ask("GET http://listed.test/ HTTP/1.1\r\n\r\n")


async def test_list_of_a_workspace_whose_directory_is_gone_goes_too(machine: Machine) -> None:
    egress_sockets = machine.replica()
    Policies(machine.data_dir / "egress").write("gone", Policy(1, ("listed.test",)))

    await egress_sockets.reconcile()

    assert list((machine.data_dir / "egress").iterdir()) == []


async def test_other_files_beside_the_policies_are_ignored(machine: Machine) -> None:
    egress_sockets = machine.replica()
    machine.start("listed.test")
    for name in ("not an id.json", "...json", "-.json", "x.txt"):
        (machine.data_dir / "egress" / name).write_text("{}")
    (machine.data_dir / "egress" / "folder.json").mkdir()
    (machine.data_dir / "workspaces" / "folder").mkdir()

    await egress_sockets.reconcile()

    assert machine.place.egress_socket.exists()


async def test_lock_of_a_replica_that_is_cut_short_is_freed_in_the_end(machine: Machine) -> None:
    first, second = machine.replica(), machine.replica()
    machine.start("listed.test")
    await first.serve(WORKSPACE)
    client = await machine.connect()
    await until(lambda: first.stats.connections == 1)

    leaving = asyncio.create_task(first.stop(WORKSPACE))
    await until(lambda: Policies(machine.data_dir / "egress").find(WORKSPACE) is None)
    leaving.cancel()
    await asyncio.wait({leaving})
    await first.close()
    machine.start("listed.test")

    assert await second.serve(WORKSPACE)
    client.abort()


async def test_connections_beyond_the_bound_are_answered(machine: Machine) -> None:
    egress_sockets = machine.replica(max_per_workspace=2, max_total=10)
    machine.start("listed.test")
    await egress_sockets.serve(WORKSPACE)
    held = [await machine.connect() for _ in range(2)]
    await until(lambda: egress_sockets.stats.connections == 2)

    refused = await machine.ask("GET http://listed.test/ HTTP/1.1\r\n\r\n")
    held[0].abort()
    await until(lambda: egress_sockets.stats.connections == 1)
    allowed = await machine.ask("GET http://other.test/ HTTP/1.1\r\n\r\n")
    held[1].abort()

    assert "503 Too many connections" in refused
    assert "may have 2 connections at the same time" in refused
    assert "403 " in allowed
    assert egress_sockets.stats.requests == {"too_many": 1, "not_listed": 1}


async def test_full_replica_has_room_for_a_few_of_every_workspace(machine: Machine) -> None:
    egress_sockets = machine.replica(max_per_workspace=20, max_total=1)
    machine.start("listed.test")
    await egress_sockets.serve(WORKSPACE)
    held = [await machine.connect() for _ in range(ALWAYS_ALLOWED - 1)]
    await until(lambda: egress_sockets.stats.connections == ALWAYS_ALLOWED - 1)

    few = await machine.ask("GET http://other.test/ HTTP/1.1\r\n\r\n")
    await until(lambda: egress_sockets.stats.connections == ALWAYS_ALLOWED - 1)
    held.append(await machine.connect())
    await until(lambda: egress_sockets.stats.connections == ALWAYS_ALLOWED)
    many = await machine.ask("GET http://other.test/ HTTP/1.1\r\n\r\n")
    for each in held:
        each.abort()

    assert "403 " in few
    assert "The server has too many connections of workspaces" in many


async def test_storm_of_connections_waits_at_the_door(machine: Machine) -> None:
    egress_sockets = machine.replica(max_per_workspace=2)
    machine.start("listed.test")
    await egress_sockets.serve(WORKSPACE)

    answers = await asyncio.gather(*(machine.ask("GET http://other.test/ HTTP/1.1\r\n\r\n") for _ in range(60)))

    assert {answer.split(" ")[1] for answer in answers} <= {"403", "503"}
    await until(lambda: egress_sockets.stats.connections == 0)


async def test_nothing_is_left_after_many_connections(machine: Machine) -> None:
    egress_sockets = machine.replica()
    port = await machine.out.web()
    machine.start(f"listed.test:{port}")
    await egress_sockets.serve(WORKSPACE)
    request = f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n"
    await machine.ask(request)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())

    for _ in range(100):
        await machine.ask(request)
        await (await machine.connect()).close(1)
    await until(lambda: egress_sockets.stats.connections == 0 and machine.out.open == 0)
    gc.collect()

    await until(lambda: len(asyncio.all_tasks()) <= before[1])
    assert len(os.listdir("/proc/self/fd")) <= before[0]


def test_servers_event_loop_serves_as_well(tmp_path: Path) -> None:
    """Servers run on uvloop, tests usually do not."""

    async def look() -> tuple[str, str]:
        async with outside(tmp_path) as out:
            machine = Machine(tmp_path / "data", out)
            egress_sockets = machine.replica()
            port = await out.web("#" * 3_000_000)
            machine.start(f"listed.test:{port}")
            await egress_sockets.serve(WORKSPACE)
            plain = await machine.ask(f"GET http://listed.test:{port}/ HTTP/1.1\r\n\r\n")
            tunnel = await machine.ask(f"CONNECT listed.test:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n")
            await machine.close()
            return plain, tunnel

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        plain, tunnel = runner.run(look())

    assert plain.count("#") == 3_000_000
    assert tunnel.startswith("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert tunnel.count("#") == 3_000_000
