"""A workspace with the default network reaches nothing of the machine, past the proxy or through it."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.workspaces import agent_bundle
from rookery.workspaces.drivers.driver_interface import WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from tests.eventually import until
from tests.workspaces.drivers import driver_rig

# Exempt, as an operator would configure it for a registry on the machine.
REGISTRY = "127.0.0.2"

TRY = """
import json, socket, sys
def direct(host, port):
    made = socket.create_connection((host, port), 5)
def http(host, port):
    made = socket.create_connection(("127.0.0.1", 3128), 20)
    place = f"[{host}]" if ":" in host else host
    made.sendall(f"CONNECT {place}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    answer = made.makefile("rb").readline()
    if b" 200 " not in answer:
        raise OSError(answer.decode())
def socks(host, port):
    made = socket.create_connection(("127.0.0.1", 3128), 20)
    made.sendall(b"\\x05\\x01\\x00\\x05\\x01\\x00\\x03" + bytes([len(host)]) + host.encode() + port.to_bytes(2, "big"))
    answer = made.makefile("rb").read(4)
    if answer[3] != 0:
        raise OSError(answer.hex())
reached = []
for host, port in json.loads(sys.argv[1]):
    for way in (direct, http, socks):
        try:
            way(host, port)
            reached.append([way.__name__, host, port])
        except OSError:
            pass
print(json.dumps(reached))
"""


class Machine:
    """A server's machine: listeners of all kinds, and workspaces on it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        # On every address of the machine, like a server that listens on `:7117`.
        self.everywhere = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.everywhere.setblocking(False)
        self.port: int = self.everywhere.getsockname()[1]
        self.registry = socket.create_server((REGISTRY, 0))
        self.started: list[WorkspaceSpec] = []

    async def driver(self, **settings: object) -> LocalDriver:
        config = LocalConfig(data_dir=self.data_dir, **settings)  # type: ignore[arg-type]
        return LocalDriver(config, agent_bundle.build, machine=await asyncio.to_thread(driver_rig.known_machine))

    async def start(self, driver: LocalDriver) -> WorkspaceSpec:
        ws = driver_rig.spec()
        self.started.append(ws)
        await driver.start(ws, print)
        return ws

    async def run(self, driver: LocalDriver, ws: WorkspaceSpec, command: str) -> tuple[int, str]:
        begun = await asyncio.to_thread(driver_rig.begin, driver, ws, command)
        return await asyncio.to_thread(driver_rig.end, driver, ws, begun)

    async def reached(self, driver: LocalDriver, ws: WorkspaceSpec, *places: tuple[str, int]) -> list[list[object]]:
        code, output = await self.run(
            driver, ws, f"python3 -c {shlex.quote(TRY)} {shlex.quote(json.dumps([list(each) for each in places]))}"
        )
        assert code == 0, output
        found: list[list[object]] = json.loads(output)
        return found

    def has_visitors(self) -> bool:
        try:
            self.everywhere.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="reach-") as directory:
        made = Machine(Path(directory))
        driver = await made.driver()
        try:
            yield made
        finally:
            for ws in made.started:
                await driver.delete(ws)
            made.everywhere.close()
            made.registry.close()


def own_addresses() -> list[str]:
    """Return the addresses of this machine, besides loopback."""
    found = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    for target in ("192.0.2.1", "2001:db8::1"):
        try:
            with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found.add(probe.getsockname()[0])
        except OSError:
            continue
    return sorted(each for each in found if "%" not in each)


async def test_nothing_that_listens_on_the_machine_is_reached(machine: Machine) -> None:
    driver = await machine.driver()
    ws = await machine.start(driver)
    names = ["127.0.0.1", "127.0.0.2", "127.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1", "localhost"]

    reached = await machine.reached(driver, ws, *((host, machine.port) for host in (*names, *own_addresses())))
    await driver.egress_sockets.close()

    assert reached == []
    assert not machine.has_visitors()


async def test_wide_exemption_and_one_for_a_registry_open_nothing_else(machine: Machine) -> None:
    exempt = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8", f"{REGISTRY}/32")
    driver = await machine.driver(net_allow_private=exempt, own_ports=(machine.port,))
    ws = await machine.start(driver)
    registry = machine.registry.getsockname()[1]
    names = ["127.0.0.1", REGISTRY, "127.0.0.3", "::1", "localhost", *own_addresses()]

    reached = await machine.reached(driver, ws, (REGISTRY, registry), *((host, machine.port) for host in names))
    await driver.egress_sockets.close()

    assert reached == [["http", REGISTRY, registry], ["socks", REGISTRY, registry]]
    assert not machine.has_visitors()


LISTEN = """
import socket
made = socket.create_server(("", 8099))
open("listens", "w").close()
while True:
    made.accept()
"""


async def test_listener_of_another_workspace_is_not_reached(machine: Machine) -> None:
    driver = await machine.driver()
    victim, ws = await machine.start(driver), await machine.start(driver)
    await asyncio.to_thread(driver_rig.begin, driver, victim, f"cd ~ && python3 -c {shlex.quote(LISTEN)}")
    home = machine.data_dir / "workspaces" / victim.id / "home"
    await until((home / "listens").exists)

    theirs = await machine.reached(driver, ws, ("127.0.0.1", 8099), ("localhost", 8099), ("::1", 8099))
    own = await machine.reached(driver, victim, ("127.0.0.1", 8099))
    await driver.egress_sockets.close()

    assert theirs == []
    assert own == [["direct", "127.0.0.1", 8099]]


async def test_proxy_of_another_workspace_is_not_there(machine: Machine) -> None:
    driver = await machine.driver()
    victim, ws = await machine.start(driver), await machine.start(driver)
    theirs = machine.data_dir / "workspaces" / victim.id / "egress" / "egress.sock"

    code = f"import socket; socket.socket(socket.AF_UNIX).connect('{theirs}')"
    _, output = await machine.run(driver, ws, f'python3 -c "{code}" 2>&1 | tail -n 1')
    await driver.egress_sockets.close()

    assert "No such file or directory" in output or "AF_UNIX path too long" in output
