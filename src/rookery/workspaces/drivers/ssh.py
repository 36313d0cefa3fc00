"""The ssh driver: runs workspaces on other machines. They are confined if bubblewrap is installed there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from rookery.workspaces.drivers import agent_health, workspace_paths
from rookery.workspaces.drivers.driver_interface import DriverError, Endpoint, Log, Probe, Ssh, WorkspaceSpec
from rookery.workspaces.drivers.launcher import bwrap_arguments
from rookery.workspaces.drivers.launcher.launch_plan import Plan
from rookery.workspaces.drivers.ssh_connection import Done, Facts, Host, name_of
from rookery.workspaces.drivers.workspace_paths import Inside
from rookery.workspaces.network_levels import BY_PROXY

ANSWER_SECONDS = 120.0
ATTEMPT_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 2.0
ENDING_SECONDS = 8.0

UNCONFINED = (
    "This workspace is not confined on {host}: its commands have all rights of the login's user. "
    "Install bubblewrap there to confine it."
)


SHARED_USER = (
    "On {host}, this workspace and others run as the same user and share the kernel's limits for one user: "
    "the login is root in a container with too few user ids."
)


class Started(msgspec.Struct, frozen=True):
    """The result of a start on the remote machine. `ended` are the other boots that were ended.

    With `shares_user` the login is root, but workspaces cannot each have their own user there.
    """

    ended: tuple[int, ...] = ()
    shares_user: bool = False
    already: bool = False
    lacks_agent: bool = False


class RemoteSandbox(msgspec.Struct, frozen=True):
    generation: int
    pid: int


class RemoteState(msgspec.Struct, frozen=True):
    """The running sandboxes of a workspace on the remote machine, and the last part of the sandbox log."""

    running: tuple[RemoteSandbox, ...] = ()
    log: str = ""


# The maximum length of a socket path, without the terminating zero.
MAX_SOCKET_PATH = 107
PATH_TOO_LONG = (
    "The path of this login's home is too long for the sockets of workspaces. Use a login with a shorter path."
)


class SshDriver:
    """The `Driver` for other machines. Workspaces of a machine share one connection, which is kept until `close`."""

    def __init__(
        self, build_agent: Callable[[Path], Path], *, ssh: str = "ssh", answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._build_agent = build_agent
        self._ssh = ssh
        self._answer_seconds = answer_seconds
        self._directory: Path | None = None  # made when first used
        self._hosts: dict[str, Host] = {}

    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        address, host = self._host(ws)
        log(f"Connecting to {address.host}.")
        agent = await asyncio.to_thread(self._agent)
        facts = await host.get_facts()
        plan = _plan(ws, facts, agent.name)
        if len(f"{plan.run}/agent.sock".encode()) > MAX_SOCKET_PATH:
            # Otherwise the agent could not listen, and the start would time out without a reason.
            raise DriverError("invalid_workspace", PATH_TOO_LONG)
        inside = Inside(bwrap_arguments.HOME, bwrap_arguments.RUN) if plan.bwrap else Inside(plan.home, plan.run)
        unconfined = UNCONFINED.format(host=address.host)
        log("Starting the sandbox." if plan.bwrap else unconfined)
        files = workspace_paths.files_of(
            ws, inside, is_confined=plan.bwrap is not None, bwrap=_bwrap_inside(plan.bwrap)
        )
        header = {
            "action": "start",
            "plan": asdict(plan),
            "files": [[file.name, len(file.content), file.mode] for file in files],
            "archive": len(ws.files or b""),
        }
        blobs = [*(file.content for file in files), ws.files or b""]
        answer = await host.run(header, *blobs, kind=Started)
        if answer.lacks_agent:
            log("Sending the agent.")
            await _send(agent, host)
            answer = await host.run(header, *blobs, kind=Started)
        for generation in answer.ended:
            log(f"Ended generation {generation}.")
        if answer.already:
            log("It is already running.")
        warnings = [] if plan.bwrap else [unconfined]
        if answer.shares_user:
            warnings.append(SHARED_USER.format(host=address.host))
        await self._wait_for_agent(ws, host, plan.directory)
        log("The agent answers.")
        return Endpoint(
            url=f"ssh-unix://{address.host}{plan.run}/agent.sock",
            home=inside.home,
            directory=inside.expand(ws.directory),
            network=ws.sandbox.network if plan.bwrap else "host",
            warnings=tuple(warnings),
        )

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        _, host = self._host(ws)
        directory = await self._directory_of(ws, host)
        if grace > 0:
            await self._request_shutdown(ws, host, directory, grace)
        await host.run({"action": "stop", "directory": directory, "on_error": "stop_failed"}, kind=Done)

    async def delete(self, ws: WorkspaceSpec) -> None:
        _, host = self._host(ws)
        directory = await self._directory_of(ws, host)
        await host.run({"action": "delete", "directory": directory, "on_error": "delete_failed"}, kind=Done)

    async def probe(self, ws: WorkspaceSpec) -> Probe:
        _, host = self._host(ws)
        found = await _probe(host, await self._directory_of(ws, host))
        if not found.running:
            return Probe(alive=False, detail=found.log.rpartition("\n")[2][:500])
        same = next((one for one in found.running if one.generation == ws.generation), None)
        if same is None:
            return Probe(alive=False, generation=found.running[0].generation, detail="Another generation runs.")
        connector = self.connector(ws)
        try:
            answers = await agent_health.health(connector, token=ws.token, generation=ws.generation)
        finally:
            await connector.close()
        return Probe(alive=True, answers=answers, pid=same.pid, generation=ws.generation)

    def connector(self, ws: WorkspaceSpec) -> ForwardedSocket:
        _, host = self._host(ws)

        async def remote() -> str:
            return f"{await self._directory_of(ws, host)}/run/agent.sock"

        return ForwardedSocket(host, self._socket_directory(), remote)

    async def close(self) -> None:
        """Close all connections. Agents keep running."""
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory = None

    def _host(self, ws: WorkspaceSpec) -> tuple[Ssh, Host]:
        if ws.ssh is None:
            raise DriverError("invalid_workspace", "The template has no table [ssh].")
        name = name_of(ws.ssh)
        if name not in self._hosts:
            self._hosts[name] = Host(ws.ssh, self._socket_directory(), ssh=self._ssh)
        return ws.ssh, self._hosts[name]

    def _socket_directory(self) -> Path:
        """Return a private directory for sockets. Its path is short, because socket paths are limited to 108 bytes."""
        if self._directory is None:
            usual = tempfile.gettempdir()
            self._directory = Path(tempfile.mkdtemp(prefix="rk-ssh-", dir=usual if len(usual) < 40 else "/tmp"))  # noqa: S108 - made with a fresh name
        return self._directory

    def _agent(self) -> Path:
        return self._build_agent(self._socket_directory())

    async def _directory_of(self, ws: WorkspaceSpec, host: Host) -> str:
        workspace_paths.check_id(ws.id)
        return f"{(await host.get_facts()).root}/workspaces/{ws.id}"

    async def _wait_for_agent(self, ws: WorkspaceSpec, host: Host, directory: str) -> None:
        connector = self.connector(ws)
        deadline = time.monotonic() + self._answer_seconds
        pause = 0.05
        try:
            while not await agent_health.health(
                connector, token=ws.token, generation=ws.generation, timeout=ATTEMPT_SECONDS
            ):
                found = await _probe(host, directory)
                if not found.running:
                    raise DriverError("agent_exited", f"The agent ended before it answered. {found.log}".strip())
                if time.monotonic() > deadline:
                    await host.run({"action": "stop", "directory": directory}, kind=Done)
                    seconds = f"{self._answer_seconds:g}"
                    raise DriverError("agent_timeout", f"The agent did not answer within {seconds} s.")
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        finally:
            await connector.close()

    async def _request_shutdown(self, ws: WorkspaceSpec, host: Host, directory: str, grace: float) -> None:
        connector = self.connector(ws)
        try:
            if not await agent_health.shutdown(connector, token=ws.token, generation=ws.generation, grace=grace):
                return
            deadline = time.monotonic() + grace + ENDING_SECONDS
            pause = 0.05
            while (await _probe(host, directory)).running:
                if time.monotonic() > deadline:
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        finally:
            await connector.close()


class ForwardedSocket:
    """The `Connector` to an agent on another machine: a local socket that ssh forwards to the agent's socket.

    Each new ssh connection needs a new forward.
    """

    def __init__(self, host: Host, directory: Path, remote: Callable[[], Any]) -> None:
        self._host = host
        self._remote = remote
        self._path = directory / f"{secrets.token_hex(6)}.sock"
        self._forwarded: str | None = None
        self._epoch = 0
        self._preparing = asyncio.Lock()

    @property
    def unix_path(self) -> str | None:
        return str(self._path) if self._forwarded is not None else None

    async def prepare(self) -> None:
        async with self._preparing:
            await self._host.connect()
            if self._forwarded is not None and self._epoch == self._host.epoch and self._path.exists():
                return
            remote = await self._remote()
            await self._host.forward(self._path, remote)
            self._forwarded, self._epoch = remote, self._host.epoch

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._forwarded is None:
            await self.prepare()
        return await asyncio.open_unix_connection(str(self._path))

    async def close(self) -> None:
        forwarded, self._forwarded = self._forwarded, None
        if forwarded is not None and self._epoch == self._host.epoch:
            await self._host.cancel(self._path, forwarded)
        else:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()


async def _send(agent: Path, host: Host) -> None:
    content = await asyncio.to_thread(agent.read_bytes)
    sha256 = hashlib.sha256(content).hexdigest()
    header = {"action": "put", "name": agent.name, "size": len(content), "sha256": sha256}
    await host.run(header, content, kind=Done)


async def _probe(host: Host, directory: str) -> RemoteState:
    return await host.run({"action": "probe", "directory": directory}, kind=RemoteState)


def _plan(ws: WorkspaceSpec, facts: Facts, agent: str) -> Plan:
    workspace_paths.check_id(ws.id)
    if ws.sandbox.network in BY_PROXY:
        # New templates of this kind are refused. Stored ones may still exist.
        message = f'Workspaces on other machines cannot have network = "{ws.sandbox.network}".'
        raise DriverError("invalid_workspace", message)
    confined = facts.bwrap if ws.sandbox.enabled else None
    own = facts.python_prefix == "/usr" or facts.python_prefix.startswith("/usr/")
    return Plan(
        workspace_id=ws.id,
        generation=ws.generation,
        directory=f"{facts.root}/workspaces/{ws.id}",
        agent=f"{facts.root}/agents/{agent}",
        python=facts.python,
        python_prefix=None if own else facts.python_prefix,
        bwrap=confined,
        network=ws.sandbox.network,
        nested=ws.sandbox.nested,
        ro_binds=list(ws.sandbox.ro_binds),
        rw_binds=list(ws.sandbox.rw_binds),
        hidden=[facts.root],
        env=ws.env,
        memory_mb=ws.limits.memory_mb,
        cpus=ws.limits.cpus,
        pids=ws.limits.pids,
        disk_mb=ws.limits.disk_mb,
    )


def _bwrap_inside(bwrap: str | None) -> str | None:
    return bwrap if bwrap is not None and bwrap.startswith("/usr/") else None
