"""No code in a workspace can escape from it. The table is in `escape_attempts`."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rookery.workspaces import agent_bundle
from rookery.workspaces.drivers.driver_interface import DriverError, Limits, Probe, Sandbox, WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig, Machine
from tests.eventually import until
from tests.workspaces.drivers import driver_rig
from tests.workspaces.escape.escape_attempts import ATTEMPTS, OPEN, PROXIED, TIGHT, Attempt

ODD = os.fsdecode(b"odd \n\xff --bind $(x).key")
SECRET = "a-secret-of-the-server"
PRIVATE = "a-secret-of-another-workspace"


class EscapeRig:
    """A server's data, a process and sockets outside, another workspace, and two to break out of."""

    def __init__(self, root: Path, machine: Machine | None = None) -> None:
        self.data = root / "data"
        self.data.mkdir(mode=0o700)
        (self.data / "secret.key").write_text(SECRET)
        machine = machine or driver_rig.known_machine()
        if machine.python_prefix is None:
            machine = msgspec.structs.replace(machine, python_prefix=str(self._install(root / "python")))
        self.keys = {name: path for name, path in self._keys(root / "python").items() if path is not None}
        config = LocalConfig(data_dir=self.data, tmp_mb=8, hidden=tuple(self.keys.values()))
        self.driver = LocalDriver(config, agent_bundle.build, machine=machine)
        limits = Limits(pids=100, memory_mb=512, disk_mb=8)
        self.workspaces = {
            OPEN: driver_rig.spec(sandbox=Sandbox(network="none"), limits=limits),
            TIGHT: driver_rig.spec(sandbox=Sandbox(network="none", nested=False)),
            PROXIED: driver_rig.spec(sandbox=Sandbox(network="hosts", hosts=("listed.test",))),
            "victim": driver_rig.spec(sandbox=Sandbox(network="none")),
        }
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.database, self.internal = (self._listening(name) for name in ("db.sock", "internal.sock"))
        self.abstract = socket.socket(socket.AF_UNIX)

    def _install(self, prefix: Path) -> Path:
        """Make a tree that workspaces see because their Python is there, with files of the server in it."""
        (prefix / "lib" / "keys").mkdir(parents=True)
        (prefix / "data").mkdir()
        for path in (prefix / "lib" / "keys" / "tls.key", prefix / "lib" / ODD, prefix / "data" / "beside"):
            path.write_text(SECRET)
        (prefix / "lib" / "program").write_text("a program")
        os.link(prefix / "lib" / "keys" / "tls.key", prefix / "lib" / "hard.key")
        (prefix / "lib" / "link.key").symlink_to("keys/tls.key")
        (prefix / "lib" / "renewed.key").write_text(SECRET)
        return prefix

    def _keys(self, prefix: Path) -> dict[str, Path | None]:
        """Return files that settings name, in each tree that workspaces see. Those of the system are existing files: an
        unprivileged user cannot put files beside them.
        """
        return {
            "below /usr": _some_file("/usr/share"),
            "among certificates": _some_file("/etc/ssl/certs"),
            "by a link": prefix / "lib" / "link.key",
            "with an odd name": prefix / "lib" / ODD,
            "that is renewed": prefix / "lib" / "renewed.key",
            "that appears later": prefix / "lib" / "later.key",
        }

    def _listening(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        # Relative, because paths of pytest are longer than socket paths may be.
        handle = os.open(self.data, os.O_PATH)
        made.bind(f"/proc/self/fd/{handle}/{name}")
        os.close(handle)
        made.listen()
        return made

    def open(self) -> None:
        os.environ["ROOKERY_ESCAPE_KEY"] = SECRET

        async def start() -> None:
            await asyncio.gather(*(self.driver.start(ws, print) for ws in self.workspaces.values()))

        asyncio.run(start())
        # As the user of the workspace: only the sandbox separates them.
        home = self.data / "workspaces" / self.workspaces[OPEN].id / "home"
        self.outside = subprocess.Popen(
            ["sleep", "1000"], user=home.stat().st_uid, env={"PATH": os.defpath, "KEY": SECRET}
        )
        self.abstract.bind(f"\0rookery-{self.outside.pid}")
        self.abstract.listen()
        self.run("victim", f"echo {PRIVATE} > ~/private")

    def run(self, where: str, command: str) -> tuple[int, str]:
        ws = self.workspaces[where]
        return driver_rig.end(self.driver, ws, driver_rig.begin(self.driver, ws, command))

    def attempt(self, attempt: Attempt) -> str:
        known = {
            "{data}": str(self.data),
            "{victim}": str(self.data / "workspaces" / self.workspaces["victim"].id),
            "{outside}": str(self.outside.pid),
            "{port}": str(self.tcp.getsockname()[1]),
            "{socket}": str(self.data / "db.sock"),
            "{internal}": str(self.data / "internal.sock"),
        }
        command = attempt.command
        for name, value in known.items():
            command = command.replace(name, value)
        return self.run(attempt.where, command)[1]

    def close(self) -> None:
        async def stop() -> None:
            for ws in self.workspaces.values():
                await self.driver.delete(ws)

        asyncio.run(stop())
        os.environ.pop("ROOKERY_ESCAPE_KEY", None)
        self.outside.kill()
        self.outside.wait()
        for one in (self.tcp, self.database, self.internal, self.abstract):
            one.close()


def _some_file(directory: str) -> Path | None:
    return next((path for path in sorted(Path(directory).glob("*/*")) if path.is_file()), None) or next(
        (path for path in sorted(Path(directory).glob("*")) if path.is_file()), None
    )


@pytest.fixture(scope="module")
def escape_rig() -> Iterator[EscapeRig]:
    with tempfile.TemporaryDirectory(prefix="escape-") as root:
        escape_rig = EscapeRig(Path(root))
        try:
            escape_rig.open()
            yield escape_rig
        finally:
            escape_rig.close()


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_workspace_is_not_left(escape_rig: EscapeRig, attempt: Attempt) -> None:
    output = escape_rig.attempt(attempt)

    assert re.search(attempt.refused, output, re.IGNORECASE), output
    assert SECRET not in output
    assert PRIVATE not in output
    assert escape_rig.workspaces[attempt.where].token not in output
    assert escape_rig.outside.poll() is None


def test_files_that_settings_name_are_seen_in_no_tree(escape_rig: EscapeRig) -> None:
    prefix = Path(escape_rig.keys["by a link"]).parents[1]
    lib = prefix / "lib"
    # As a certificate is renewed: by a new file that replaces the old one.
    (prefix / "new").write_text(SECRET)
    (prefix / "new").rename(escape_rig.keys["that is renewed"])
    escape_rig.keys["that appears later"].write_text(SECRET)
    hidden = [*escape_rig.keys.values(), lib / "keys" / "tls.key", lib / "hard.key", prefix / "data" / "beside"]
    # A command is text, and the odd name is not valid text.
    names = [f"{lib}/odd*" if path.name == ODD else shlex.quote(str(path)) for path in hidden]
    looks = [f"cat {name} && echo SEEN" for name in names]

    for where in (OPEN, PROXIED):
        for look in looks:
            code, output = escape_rig.run(where, look)
            assert (code, "SEEN" in output, SECRET in output) == (1, False, False), (look, output)
        assert SECRET not in escape_rig.run(where, f"grep -rs {SECRET} {prefix} /etc")[1]


def test_files_beside_hidden_files_are_visible(escape_rig: EscapeRig) -> None:
    prefix = Path(escape_rig.keys["by a link"]).parents[1]

    assert escape_rig.run(OPEN, f"cat {prefix}/lib/program") == (0, "a program")
    assert escape_rig.run(OPEN, f"touch {prefix}/lib/new; touch {prefix}/lib/keys/new")[0] == 1
    for tree in ("/usr/share", "/etc/ssl/certs"):
        inside = set(escape_rig.run(OPEN, f"ls -A {tree}")[1].split("\n"))
        missing = {name for name in os.listdir(tree) if "\n" not in name} - inside
        assert missing <= {path.name for path in escape_rig.keys.values()}, tree


@pytest.mark.parametrize("key", ["by a link", "with an odd name", "that appears later", "below /usr"])
@pytest.mark.parametrize("above", [0, 1])
def test_template_that_binds_over_a_key_file_does_not_start(escape_rig: EscapeRig, key: str, above: int) -> None:
    path = escape_rig.keys[key].parent if above else escape_rig.keys[key]

    with pytest.raises(DriverError, match=r"holds, or lies in|leads through a link"):
        asyncio.run(
            escape_rig.driver.start(driver_rig.spec(sandbox=Sandbox(network="none", ro_binds=(str(path),))), print)
        )


EXHAUST = """
import ctypes, os, time
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0: pass
open(os.path.expanduser('~/full'), 'w').close()
while not os.path.exists(os.path.expanduser('~/release')): time.sleep(0.05)
"""
TAKE_ONE = "import ctypes; print('got one' if ctypes.CDLL(None).inotify_init() >= 0 else 'none left')"


def test_workspace_that_uses_up_its_user_s_limits_leaves_others_theirs_where_the_server_is_root(
    escape_rig: EscapeRig,
) -> None:
    """An unprivileged server has one user for all of them: there the limit is shared, as the manual says."""
    with open("/proc/sys/fs/inotify/max_user_instances") as file:
        assert int(file.read()) < 4000, "one process cannot use up this machine's limit"
    ws = escape_rig.workspaces[TIGHT]
    home = escape_rig.data / "workspaces" / ws.id / "home"
    holding = driver_rig.begin(escape_rig.driver, ws, f'python3 -c "{EXHAUST}"')
    asyncio.run(until((home / "full").exists, timeout=60))

    _, own = escape_rig.run(TIGHT, f'python3 -c "{TAKE_ONE}"')
    _, other = escape_rig.run("victim", f'python3 -c "{TAKE_ONE}"')
    escape_rig.run(TIGHT, "touch ~/release")
    driver_rig.end(escape_rig.driver, ws, holding)

    assert own == "none left\n"
    assert other == ("got one\n" if os.geteuid() == 0 else "none left\n")


def test_allowed_actions_work(escape_rig: EscapeRig) -> None:
    """Otherwise the refusals above would prove nothing."""
    command = "echo mine > ~/file && cat ~/file && touch /tmp/x /run/x /dev/shm/x && python3 -c 'print(1)' && id -un"

    assert escape_rig.run(OPEN, command) == (0, "mine\n1\nagent\n")
    assert escape_rig.run(OPEN, "unshare -Ur id -u") == (0, "0\n")
    assert PRIVATE in escape_rig.run("victim", "cat ~/private")[1]


def test_agent_survives_a_command_that_kills_everything(escape_rig: EscapeRig) -> None:
    signals = "; ".join(f"kill -{name} 1" for name in ("HUP", "INT", "QUIT", "TERM", "SEGV", "STOP", "KILL"))

    for command in (signals, "pkill -9 python3", "kill -9 -1"):
        escape_rig.run("victim", f"{command}; true")

    assert escape_rig.run("victim", "echo alive") == (0, "alive\n")


LIES = {
    "another generation": "HTTP/1.1 200 OK\\r\\nContent-Length: 18\\r\\n\\r\\n{\\'generation\\': 77}",
    "an endless answer": "HTTP/1.1 200 OK\\r\\nContent-Length: 99999999999\\r\\n\\r\\n",
    "a negative length": "HTTP/1.1 200 OK\\r\\nContent-Length: -1\\r\\n\\r\\n",
    "an endless head": "HTTP/1.1 200 OK\\r\\nX: ' + 'y' * 500000 + '",
    "no HTTP at all": "\\x00\\x01\\x02\\r\\n\\r\\n",
    "a body that is no object": "HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n[]",
}
LIAR = """
import os, socket
os.chdir('/run/rookery')
server = socket.socket(socket.AF_UNIX)
server.bind('agent.liar')
server.listen()
os.rename('agent.sock', 'agent.real')
os.rename('agent.liar', 'agent.sock')
one, _ = server.accept()
one.recv(65536)
try:
    one.sendall('LIE'.encode('latin-1'))
    one.close()
finally:
    os.rename('agent.real', 'agent.sock')
"""


@pytest.mark.parametrize("lie", LIES)
def test_agent_that_was_replaced_gains_nothing_by_lying(escape_rig: EscapeRig, lie: str) -> None:
    code = LIAR.replace("LIE", LIES[lie])
    ws = escape_rig.workspaces["victim"]
    socket_path = escape_rig.data / "workspaces" / ws.id / "run" / "agent.sock"
    before = os.stat(socket_path).st_ino

    def is_(inode: int) -> bool:
        return socket_path.exists() and os.stat(socket_path).st_ino == inode

    async def probe() -> Probe:
        await asyncio.to_thread(driver_rig.begin, escape_rig.driver, ws, f'python3 -c "{code}"')
        await until(lambda: socket_path.exists() and not is_(before), timeout=60)
        found = await escape_rig.driver.probe(ws)
        await until(lambda: is_(before), timeout=60)
        return found

    found = asyncio.run(probe())

    assert (found.alive, found.answers) == (True, False)
    assert escape_rig.run("victim", "echo still here") == (0, "still here\n")


def test_stop_leaves_nothing(escape_rig: EscapeRig) -> None:
    ws = driver_rig.spec(sandbox=Sandbox(network="none"))

    async def look() -> tuple[bool, bool]:
        await escape_rig.driver.start(ws, print)
        daemon = "(setsid setsid sh -c 'while :; do sleep 1000; done' >/dev/null 2>&1 &) ; true"
        started = await asyncio.to_thread(driver_rig.begin, escape_rig.driver, ws, daemon)
        await asyncio.to_thread(driver_rig.end, escape_rig.driver, ws, started)
        before = _is_running(escape_rig, ws)
        await escape_rig.driver.stop(ws, 5)
        return before, _is_running(escape_rig, ws)

    assert asyncio.run(look()) == (True, False)
    asyncio.run(escape_rig.driver.delete(ws))


def _is_running(escape_rig: EscapeRig, ws: WorkspaceSpec) -> bool:
    """Return whether any process of the machine has this workspace's home mounted."""
    needle = f"/workspaces/{ws.id}/home /home/agent "
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and needle in (entry / "mountinfo").read_text():
                return True
        except OSError:
            continue
    return False
