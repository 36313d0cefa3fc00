"""The isolation check: starts two workspaces on this machine and tries to break out of one of them.

Operators run it to verify the isolation of workspaces. A program in the first workspace tries to reach the ports of the
server, its files and the other workspace. The result of each boundary is a finding. Both workspaces are deleted at the
end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence

import msgspec

from rookery.runtime.clock import SystemClock
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import StartProcess
from rookery.workspaces.drivers.driver_interface import Sandbox, WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.workspace_paths import Layout
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.shared_folders import problem_of

CHECK_SECONDS = 60.0
_GENERATION = 1
_MCP = {"mcpServers": {"doctor": {"command": "touch", "args": ["/home/agent/started-by-mcp"]}}}

# The program in the workspace. It prints the attempts that succeeded. Its output is untrusted.
_ATTEMPTS = """
import base64, json, os, socket, sys
wanted = json.loads(base64.b64decode(sys.argv[1]))
reached, seen, opened = [], [], []
for host, port in wanted["addresses"]:
    try:
        socket.create_connection((host, port), 1).close()
        reached.append(f"{host}:{port}")
    except OSError:
        pass
    try:
        proxy = socket.create_connection(("127.0.0.1", wanted["proxy_port"]), 1)
        proxy.settimeout(5)
        name = f"[{host}]" if ":" in host else host
        proxy.sendall(f"CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n".encode())
        if b" 200" in proxy.recv(4096).split(b"\\r\\n")[0]:
            reached.append(f"{host}:{port} by the proxy")
    except OSError:
        pass
for path in wanted["paths"]:
    try:
        if os.path.isdir(path):
            if os.listdir(path):
                seen.append(path)
        elif open(path, "rb").read(1):
            seen.append(path)
    except OSError:
        pass
for name, family in wanted["families"].items():
    try:
        socket.socket(family, socket.SOCK_RAW if name == "packet" else socket.SOCK_STREAM).close()
        opened.append(name)
    except OSError:
        pass
print(json.dumps({
    "reached": reached, "seen": seen, "opened": opened, "uid": os.getuid(),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "mcp_started": os.path.exists(os.path.expanduser("~/started-by-mcp")),
}))
"""
# The numbers of Linux. Python does not define all of them.
_FAMILIES = {"vsock": 40, "packet": 17, "alg": 38, "bluetooth": 31}
_PROXY_PORT = 3128
# The maximum in an isolated workspace: the agent, the shell, this program, and a margin.
_OWN_PROCESSES = 6


class Finding(msgspec.Struct, frozen=True):
    """The result for one boundary. `is_held` is None if it could not be tested."""

    subject: str
    is_held: bool | None
    detail: str


class _Attempts(msgspec.Struct, frozen=True):
    reached: list[str]
    seen: list[str]
    opened: list[str]
    processes: int
    mcp_started: bool


class IsolationCheck:
    """Runs the check with workspaces of `driver`. `config` has the hidden paths and the ports of the server."""

    def __init__(
        self,
        driver: LocalDriver,
        config: LocalConfig,
        *,
        shared_folders: Sequence[str] = (),
        sandbox: Sandbox = Sandbox(),  # noqa: B008 - frozen
    ) -> None:
        self._driver = driver
        self._config = config
        self._shared_folders = shared_folders
        self._sandbox = sandbox

    async def run(self) -> list[Finding]:
        """Run the check and return its findings. Raise `DriverError` if a workspace does not start."""
        async with (
            asyncio.timeout(CHECK_SECONDS),
            self._started() as first,
            self._started() as other,
            _listener() as listener,
        ):
            await self._prepare(first, other)
            attempts = await self._run_attempts(first, other, listener)
            return [
                _server_ports(attempts, listener),
                self._hidden_files(attempts),
                self._other_workspaces(attempts, first, other),
                _socket_families(attempts),
                _mcp_servers(attempts),
                self._shared_folder_rules(),
            ]

    @contextlib.asynccontextmanager
    async def _started(self) -> AsyncIterator[WorkspaceSpec]:
        spec = WorkspaceSpec(
            id=f"doctor-{secrets.token_hex(6)}",
            generation=_GENERATION,
            token=secrets.token_urlsafe(32),
            sandbox=self._sandbox,
        )
        try:
            await self._driver.start(spec, _quiet)
            yield spec
        finally:
            await self._driver.delete(spec)

    @contextlib.asynccontextmanager
    async def _connected(self, spec: WorkspaceSpec) -> AsyncIterator[AgentConn]:
        connector = self._driver.connector(spec)
        http = AgentHttp(connector, token=spec.token, generation=spec.generation, clock=SystemClock())
        try:
            yield AgentConn(http)
        finally:
            await http.close()

    async def _prepare(self, first: WorkspaceSpec, other: WorkspaceSpec) -> None:
        """Write a private file to the other workspace, and a `.mcp.json` that starts a program to the first one."""
        async with self._connected(other) as agent:
            health = await agent.health()
            await agent.write_file(f"{health.home}/private.txt", b"private\n")
        async with self._connected(first) as agent:
            health = await agent.health()
            await agent.write_file(f"{health.home}/.mcp.json", json.dumps(_MCP).encode())
            await agent.context(wait=2.0)

    async def _run_attempts(self, first: WorkspaceSpec, other: WorkspaceSpec, listener: _Listener) -> _Attempts:
        wanted = {
            "addresses": [
                [host, port] for host in _own_addresses() for port in (listener.port, *self._config.own_ports)
            ],
            "proxy_port": _PROXY_PORT,
            "paths": [*self._config.all_hidden, str(Layout.of(self._config.data_dir, other.id).home)],
            "families": _FAMILIES,
        }
        given = msgspec.json.encode(wanted)
        async with self._connected(first) as agent:
            health = await agent.health()
            script = f"{health.home}/attempts.py"
            await agent.write_file(script, _ATTEMPTS.encode())
            command = f"python3 -I {script} {base64.b64encode(given).decode()}"
            started = await agent.start_process(StartProcess(command=command))
            output = await agent.process_output(started.id, wait=CHECK_SECONDS)
        try:
            return msgspec.json.decode(output.output.strip().rpartition("\n")[2], type=_Attempts)
        except msgspec.MsgspecError:
            raise WorkspaceError(f"The program of the check failed: {output.output.strip()[-300:]}") from None

    def _hidden_files(self, attempts: _Attempts) -> Finding:
        hidden = self._config.all_hidden
        if attempts.seen:
            return Finding("hidden files", False, f"a workspace reads {', '.join(attempts.seen)}")
        return Finding("hidden files", True, f"a workspace reads none of {len(hidden)} files and folders of the server")

    def _other_workspaces(self, attempts: _Attempts, first: WorkspaceSpec, other: WorkspaceSpec) -> Finding:
        users = [os.stat(Layout.of(self._config.data_dir, each.id).home).st_uid for each in (first, other)]
        if attempts.processes > _OWN_PROCESSES:
            return Finding("other workspaces", False, f"a workspace sees {attempts.processes} processes")
        if users[0] == users[1]:
            # Only root can run workspaces as different users.
            is_held = None if os.geteuid() == 0 else True
            shared = f"they share the user {users[0]}, and with it the kernel's limits for one user"
            return Finding("other workspaces", is_held, f"a workspace sees no other; {shared}")
        return Finding("other workspaces", True, "a workspace sees no other, and each has its own user")

    def _shared_folder_rules(self) -> Finding:
        shared = self._shared_folders
        wrong = [path for path in ("/", "/etc", str(self._config.data_dir)) if problem_of(path, shared) is None]
        if wrong:
            return Finding("shared folders", False, f"workspaces.shared_folders lets templates bind {wrong[0]}")
        listed = f"only what is in {', '.join(shared)}" if shared else "none: workspaces.shared_folders is empty"
        return Finding("shared folders", True, f"templates may bind {listed}")


class _Listener:
    """A listener on this machine that no workspace may reach. `accepted` counts its connections."""

    def __init__(self, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self.accepted = 0


@contextlib.asynccontextmanager
async def _listener() -> AsyncIterator[_Listener]:
    listening = socket.create_server(("", 0), family=socket.AF_INET)
    made = _Listener(listening)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.accepted += 1
        writer.close()

    server = await asyncio.start_server(accept, sock=listening)
    try:
        yield made
    finally:
        server.close()


def _server_ports(attempts: _Attempts, listener: _Listener) -> Finding:
    if attempts.reached or listener.accepted:
        where = ", ".join(attempts.reached[:3]) or f"port {listener.port}"
        return Finding("server ports", False, f"a workspace reaches {where}")
    return Finding("server ports", True, "a workspace reaches no port of this machine, not even through the proxy")


def _socket_families(attempts: _Attempts) -> Finding:
    if attempts.opened:
        return Finding("socket families", False, f"a workspace opens sockets of {', '.join(attempts.opened)}")
    return Finding("socket families", True, f"refused: {', '.join(_FAMILIES)}")


def _mcp_servers(attempts: _Attempts) -> Finding:
    if attempts.mcp_started:
        return Finding("MCP servers", False, "one was started without the consent of its owner")
    return Finding("MCP servers", True, "none is started before its owner agrees")


def _own_addresses() -> list[str]:
    """Return the loopback addresses and the network addresses of this machine."""
    found = ["127.0.0.1", "::1"]
    with contextlib.suppress(OSError):
        found += sorted({str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)})
    return list(dict.fromkeys(found))


def _quiet(line: str) -> None:
    """Discard the log lines of a start."""
