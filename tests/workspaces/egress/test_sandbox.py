"""Workspaces that reach only listed hosts, in real sandboxes: what gets out, and what does not."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.workspaces import agent_bundle
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.driver_interface import DriverError, Sandbox, Script, WorkspaceSpec
from rookery.workspaces.drivers.launcher.workspace_users import DEFAULT_RANGE
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.workspace_paths import Layout
from rookery.workspaces.egress.sockets import EgressSockets
from tests.eventually import until
from tests.required_programs import requires
from tests.workspaces.drivers import driver_rig
from tests.workspaces.egress.outside_servers import HERE, Names, Outside, outside


class EgressRig:
    """A machine with replicas, workspaces, and an outside that some of them may reach."""

    def __init__(self, data_dir: Path, out: Outside) -> None:
        self.data_dir = data_dir
        self.out = out
        self.names = Names()
        self.drivers: list[LocalDriver] = []
        self._started: list[WorkspaceSpec] = []

    async def replica(self, **settings: Any) -> LocalDriver:
        config = LocalConfig(data_dir=self.data_dir, **settings)
        machine = await asyncio.to_thread(driver_rig.known_machine)
        egress_sockets = EgressSockets(self.data_dir, self.names.guard(), is_open=config.network_max != "none")
        driver = LocalDriver(config, agent_bundle.build, machine=machine, egress_sockets=egress_sockets)
        self.drivers.append(driver)
        return driver

    async def start(self, driver: LocalDriver, *hosts: str, **parts: Any) -> WorkspaceSpec:
        parts.setdefault("sandbox", Sandbox(network="hosts", hosts=hosts))
        ws = driver_rig.spec(**parts)
        self._started.append(ws)
        await driver.start(ws, print)
        return ws

    async def run(self, ws: WorkspaceSpec, command: str) -> tuple[int, str]:
        driver = self.drivers[0]
        started = await asyncio.to_thread(driver_rig.begin, driver, ws, command)
        return await asyncio.to_thread(driver_rig.end, driver, ws, started)

    async def close(self) -> None:
        for ws in self._started:
            await self.drivers[0].delete(ws)
        for driver in self.drivers:
            await driver.egress_sockets.close()


@pytest.fixture
async def world() -> AsyncIterator[EgressRig]:
    with tempfile.TemporaryDirectory(prefix="egress-") as directory:
        data = Path(directory) / "data"
        data.mkdir(mode=0o700)
        async with outside(Path(directory)) as out:
            made = EgressRig(data, out)
            try:
                yield made
            finally:
                await made.close()


URLLIB = """
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
opener = urllib.request.build_opener(urllib.request.ProxyHandler(), urllib.request.HTTPSHandler(context=context))
try:
    print(opener.open(sys.argv[1], b"posted" if "post" in sys.argv[1] else None, 20).read().decode())
except OSError as error:
    print(error, error.read().decode() if hasattr(error, "read") else "")
"""


def urllib(url: str) -> str:
    return f"python3 -c {shlex.quote(URLLIB)} {shlex.quote(url)}"


@requires("curl")
async def test_listed_host_is_reached_by_http_and_by_tls(world: EgressRig) -> None:
    driver = await world.replica()
    plain, secure = await world.out.web(), await world.out.web("over tls", tls=True)
    world.names.set("listed.test", [HERE])
    world.names.set("a.wide.test", [HERE])
    ws = await world.start(driver, f"listed.test:{plain}", f"*.wide.test:{secure}")

    curl = await world.run(ws, f"curl -sS http://listed.test:{plain}/a?b=c; curl -sSk https://a.wide.test:{secure}/")
    python = await world.run(
        ws, f"{urllib(f'http://listed.test:{plain}/post')}; {urllib(f'https://a.wide.test:{secure}/')}"
    )

    assert curl == (0, "hello from outsideover tls")
    assert python == (0, "hello from outside\nover tls\n")
    assert world.out.heard[0].startswith(f"GET /a?b=c HTTP/1.1\r\nHost: listed.test:{plain}\r\n".encode())
    assert world.out.heard[2].endswith(b"posted")
    assert driver.egress_sockets.stats.requests == {"allowed": 4}


async def test_programs_find_the_proxy_in_their_environment(world: EgressRig) -> None:
    driver = await world.replica()
    ws = await world.start(driver, "listed.test", env={"no_proxy": "own.test", "COLOUR": "green"})

    _, output = await world.run(ws, "env")

    found = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    programs = ("npm_config_proxy", "npm_config_https_proxy", "PIP_PROXY")
    assert {found[name] for name in (*names, *programs)} == {"http://127.0.0.1:3128"}
    assert found["NODE_USE_ENV_PROXY"] == "1"
    assert (found["NO_PROXY"], found["no_proxy"], found["COLOUR"]) == ("localhost,127.0.0.1,::1", "own.test", "green")


@requires("curl")
async def test_startup_script_has_the_network_already(world: EgressRig) -> None:
    driver = await world.replica()
    port = await world.out.web()
    world.names.set("listed.test", [HERE])
    script = Script(text=f"#!/bin/sh\ncurl -sS http://listed.test:{port}/ > ~/fetched\n", timeout_s=60)
    ws = await world.start(driver, f"listed.test:{port}", startup=script)

    await until(lambda: asyncio.to_thread(lambda: driver_rig.ask(driver, ws, "GET", "/v1/health")["ready"]))

    assert await world.run(ws, "cat ~/fetched") == (0, "hello from outside")


@requires("curl")
async def test_everything_else_is_refused_in_words(world: EgressRig) -> None:
    driver = await world.replica()
    port, inside = await world.out.web(), await world.out.web("inside", host="127.0.0.2")
    world.names.set("listed.test", [HERE])
    world.names.set("inside.test", ["127.0.0.2"])
    ws = await world.start(driver, f"listed.test:{port}", f"inside.test:{inside}")

    async def get(url: str) -> str:
        return (await world.run(ws, f"curl -sS -m 20 {url}"))[1]

    assert "other.test is not one of the hosts that this workspace may reach" in await get("http://other.test/")
    assert f"Allowed: listed.test:{port}, inside.test:{inside}" in await get("http://other.test/")
    assert "is allowed on other ports than 80" in await get("http://listed.test/")
    assert "is an address" in await get(f"http://127.0.0.2:{inside}/")
    assert "is an address" in await get("'http://[::ffff:7f00:1]/'")
    assert "is an address" in await get("http://169.254.169.254/latest/meta-data/")
    assert "leads to an address of the server's machine" in await get(f"http://inside.test:{inside}/")
    assert "only http and https are allowed" in await get("ftp://listed.test/")
    assert "is a proxy" in await get("--noproxy '*' http://127.0.0.1:3128/")
    assert "response 403" in await get("https://other.test/")
    assert "other.test is not one of the hosts" in (await world.run(ws, urllib("https://other.test/")))[1]
    assert world.out.heard == []


DIRECT = """
import socket
def attempt(family, address):
    made = socket.socket(family)
    made.settimeout(5)
    try:
        made.connect(address)
        print("connected", address)
    except OSError as error:
        print(error.strerror or error)
attempt(socket.AF_INET, ("127.0.0.1", {port}))
attempt(socket.AF_INET, ("192.0.2.1", 80))
attempt(socket.AF_INET6, ("2001:db8::1", 80))
try:
    print(socket.getaddrinfo("listed.test", 80))
except OSError:
    print("no names")
"""


async def test_there_is_no_way_past_the_proxy(world: EgressRig) -> None:
    driver = await world.replica()
    port = await world.out.web()
    world.names.set("listed.test", [HERE])
    victim = await world.start(driver, f"listed.test:{port}")
    ws = await world.start(driver, "listed.test")

    direct = await world.run(ws, f"python3 -c {shlex.quote(DIRECT.format(port=port))}")
    devices = await world.run(ws, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    others = await world.run(ws, f"ls -A /run/rookery-egress {world.data_dir}/workspaces/{victim.id} 2>&1")

    assert [line.lower() for line in direct[1].splitlines()] == [
        *("connection refused", "network is unreachable", "network is unreachable", "no names")
    ]
    assert devices == (0, "lo\n")
    assert "No such file" in others[1]
    assert others[1].splitlines()[-1] == "egress.sock"
    assert world.out.heard == []


@requires("curl")
@pytest.mark.parametrize(
    "attempt",
    [
        "rm -f /run/rookery-egress/egress.sock",
        "touch /run/rookery-egress/x",
        "mv /run/rookery-egress /run/elsewhere",
        "chmod 777 /run/rookery-egress",
        "ln -sf /etc/passwd /run/rookery-egress/egress.sock",
        "unshare -Urm sh -c 'mount -o remount,rw,bind /run/rookery-egress && touch /run/rookery-egress/x'",
    ],
)
async def test_socket_is_not_the_workspaces_to_change(world: EgressRig, attempt: str) -> None:
    driver = await world.replica()
    port = await world.out.web()
    world.names.set("listed.test", [HERE])
    ws = await world.start(driver, f"listed.test:{port}")

    code, output = await world.run(ws, attempt)

    assert code != 0, output
    assert await world.run(ws, f"curl -sS http://listed.test:{port}/") == (0, "hello from outside")


async def test_socket_belongs_to_the_workspace_and_its_directory_to_the_server(world: EgressRig) -> None:
    driver = await world.replica()
    ws = await world.start(driver, "listed.test")
    place = Layout.of(world.data_dir, ws.id)

    assert stat.S_IMODE(place.egress_socket.stat().st_mode) == 0o600
    assert place.egress_socket.stat().st_uid == (os.geteuid() or DEFAULT_RANGE[0])
    assert place.egress.stat().st_uid == os.geteuid()
    assert stat.S_IMODE((world.data_dir / "egress" / f"{ws.id}.json").stat().st_mode) == 0o600


async def is_connected(world: EgressRig, ws: WorkspaceSpec) -> bool:
    """Return whether a process inside has an established connection (01) to the port of the proxy (3128 is 0C38)."""
    return (await world.run(ws, "grep -q ':0C38 [0-9A-F:]* 01 ' /proc/net/tcp"))[0] == 0


@requires("curl")
async def test_another_replica_takes_over_and_connections_only_wait(world: EgressRig) -> None:
    first, second = await world.replica(), await world.replica()
    port = await world.out.web()
    world.names.set("listed.test", [HERE])
    ws = await world.start(first, f"listed.test:{port}")
    await second.egress_sockets.reconcile()
    assert not await second.egress_sockets.serve(ws.id)  # one at a time

    await first.egress_sockets.close()
    asking = asyncio.create_task(world.run(ws, f"curl -sS http://listed.test:{port}/"))
    await until(lambda: is_connected(world, ws))
    await second.egress_sockets.reconcile()

    assert await asking == (0, "hello from outside")
    assert (first.egress_sockets.stats.requests, second.egress_sockets.stats.requests) == ({}, {"allowed": 1})


REPLICA = """
import asyncio, sys
from pathlib import Path
from rookery.runtime.address_guard import Guard
from rookery.workspaces.egress.sockets import EgressSockets
async def main():
    egress_sockets = EgressSockets(Path(sys.argv[1]), Guard())
    await egress_sockets.reconcile()
    print("served" if egress_sockets._served else "not served", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@requires("curl")
async def test_replica_that_was_killed_leaves_its_sockets_to_the_next(world: EgressRig) -> None:
    driver = await world.replica()
    port = await world.out.web()
    world.names.set("listed.test", [HERE])
    ws = await world.start(driver, f"listed.test:{port}")
    await driver.egress_sockets.close()
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPLICA, str(world.data_dir), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"served\n"

    refused = await world.run(ws, f"curl -sS http://listed.test:{port}/")
    await driver.egress_sockets.reconcile()
    has_taken_too_early = bool(driver.egress_sockets._served)
    other.kill()
    await other.wait()
    await driver.egress_sockets.reconcile()

    assert "cannot be reached" in refused[1]  # the other replica responded: it does not know this name
    assert not has_taken_too_early
    assert await world.run(ws, f"curl -sS http://listed.test:{port}/") == (0, "hello from outside")


@requires("curl")
@pytest.mark.parametrize("who", ["the replica that serves it", "another replica"])
async def test_stop_ends_what_is_under_way(world: EgressRig, who: str) -> None:
    first, second = await world.replica(), await world.replica()
    connected = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read(-1)

    port = await world.out.serve(wait)
    world.names.set("listed.test", [HERE])
    ws = await world.start(first, f"listed.test:{port}")
    await asyncio.to_thread(driver_rig.begin, first, ws, f"curl -sS http://listed.test:{port}/")
    await connected.wait()
    assert (world.out.open, first.egress_sockets.stats.connections) == (1, 1)

    await (first if who.startswith("the") else second).stop(ws, 0)
    await first.egress_sockets.reconcile()

    await until(lambda: world.out.open == 0)
    assert first.egress_sockets.stats.connections == 0
    assert not Layout.of(world.data_dir, ws.id).egress_socket.exists()
    assert list((world.data_dir / "egress").iterdir()) == []


async def test_sandbox_that_died_is_not_served_any_more(world: EgressRig) -> None:
    driver = await world.replica()
    ws = await world.start(driver, "listed.test")
    await driver.egress_sockets.reconcile()
    assert Layout.of(world.data_dir, ws.id).egress_socket.exists()

    (running,) = await sandboxes.find(Layout.of(world.data_dir, ws.id).directory)
    await sandboxes.kill(running)
    await driver.egress_sockets.reconcile()

    assert not Layout.of(world.data_dir, ws.id).egress_socket.exists()


@requires("curl")
async def test_changed_list_holds_from_the_next_start(world: EgressRig) -> None:
    driver, other = await world.replica(), await world.replica()
    port = await world.out.web()
    for name in ("old.test", "new.test"):
        world.names.set(name, [HERE])
    ws = await world.start(driver, f"old.test:{port}")

    async def reached() -> list[bool]:
        outputs = [await world.run(ws, f"curl -sS http://{name}.test:{port}/") for name in ("old", "new")]
        return [output[1] == "hello from outside" for output in outputs]

    before = await reached()
    changed = Sandbox(network="hosts", hosts=(f"new.test:{port}",))
    ws = msgspec.structs.replace(ws, generation=2, token=f"{driver_rig.TOKEN}2", sandbox=changed)
    # Started by another replica: the one that served it until now is not notified.
    await other.start(ws, print)
    after = await reached()
    ws = msgspec.structs.replace(ws, generation=3, token=f"{driver_rig.TOKEN}3", sandbox=Sandbox(network="none"))
    await other.start(ws, print)

    assert before == [True, False]
    assert after == [False, True]
    assert await world.run(ws, "ls /run/rookery-egress; env | grep -ci proxy") == (1, MISSING)


MISSING = "ls: cannot access '/run/rookery-egress': No such file or directory\n0\n"


@requires("curl")
async def test_settings_cap_what_a_template_asks_for(world: EgressRig) -> None:
    driver = await world.replica(network_max="hosts")
    ws = await world.start(driver, sandbox=Sandbox(network="host"))
    closed = await world.replica(network_max="none")

    _, told = await world.run(ws, "curl -sS http://listed.test/")
    await driver.egress_sockets.close()
    await closed.egress_sockets.reconcile()
    none = await world.start(closed, "listed.test")

    assert 'drivers.local.network_max = "hosts"' in told
    assert not Layout.of(world.data_dir, ws.id).egress_socket.exists()
    assert not Layout.of(world.data_dir, none.id).egress.exists()


async def test_client_inside_that_never_reads_holds_little_memory(world: EgressRig) -> None:
    driver = await world.replica()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"z" * 65536)
            await writer.drain()

    port = await world.out.serve(flood)
    world.names.set("listed.test", [HERE])
    ws = await world.start(driver, f"listed.test:{port}")
    code = f"""
import socket, time
def memory():
    return int(next(line.split()[1] for line in open("/proc/1/status") if line.startswith("VmRSS")))
before, all = memory(), []
for _ in range(40):
    made = socket.create_connection(("127.0.0.1", 3128))
    made.sendall(b"GET http://listed.test:{port}/ HTTP/1.1\\r\\n\\r\\n")
    made.recv(10)
    all.append(made)
looks, until = [], time.monotonic() + 10
while time.monotonic() < until and (len(looks) < 200 or looks[-1] != looks[-200]):
    looks.append(memory())
print((looks[-1] - before) // 1024)
"""

    exit_code, output = await world.run(ws, f"python3 -c {shlex.quote(code)}")

    assert exit_code == 0, output
    assert int(output) < 40  # MiB, for forty unfinished connections


async def test_unusable_list_is_refused_at_the_start(world: EgressRig) -> None:
    driver = await world.replica()

    with pytest.raises(DriverError, match="at least two parts") as caught:
        await world.start(driver, "*.com")

    assert caught.value.code == "invalid_workspace"
