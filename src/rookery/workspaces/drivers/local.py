"""The local driver: runs workspaces on this machine, each in a bubblewrap sandbox that outlives the replica."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import stat
import time
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from rookery.runtime.address_guard import Guard
from rookery.workspaces import network_levels
from rookery.workspaces.drivers import agent_health, sandbox_check, sandboxes, workspace_paths
from rookery.workspaces.drivers.driver_interface import (
    DriverError,
    DriverUnavailable,
    Endpoint,
    Found,
    Log,
    Probe,
    WorkspaceSpec,
)
from rookery.workspaces.drivers.launcher import bwrap_arguments, cgroups, directory_setup, tree_removal
from rookery.workspaces.drivers.launcher.launch_plan import Plan
from rookery.workspaces.drivers.launcher.sandbox_processes import Running
from rookery.workspaces.drivers.sandbox_check import LocalConfig, Machine
from rookery.workspaces.drivers.workspace_paths import Inside, Layout
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.sockets import EgressSockets
from rookery.workspaces.network_levels import BY_PROXY, Network

ANSWER_SECONDS = 120.0
ATTEMPT_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 2.0
# After the grace period, the agent needs this long to end its processes: TERM, 5 s, KILL.
ENDING_SECONDS = 8.0
RECHECK_SECONDS = 30.0

PROXY_PORT = 3128
EGRESS_SOCKET = f"{bwrap_arguments.EGRESS}/egress.sock"
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# In upper and lower case, because programs differ in the names that they read. Variables of the template take
# precedence. No variable names SOCKS, because Python libraries without SOCKS support would fail.
PROXY_VARIABLES = {
    **{name: _PROXY for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")},
    **{name: "localhost,127.0.0.1,::1" for name in ("NO_PROXY", "no_proxy")},
    **{name: _PROXY for name in ("npm_config_proxy", "npm_config_https_proxy", "PIP_PROXY")},
    "NODE_USE_ENV_PROXY": "1",
}

UNCONFINED = (
    "This workspace is not confined: its commands have all rights of the server's user, "
    "because drivers.local.unsafe is set and this machine cannot start a sandbox."
)


class LocalDriver:
    """The `Driver` and `Inventory` of this machine.

    `build_agent` writes the agent's zipapp into a directory and returns its path. `machine` is the result of an earlier
    check. `egress_sockets` serve workspaces that use the proxy; a server calls `egress_sockets.reconcile` every second.
    """

    def __init__(
        self,
        config: LocalConfig,
        build_agent: Callable[[Path], Path],
        *,
        answer_seconds: float = ANSWER_SECONDS,
        machine: Machine | None = None,
        egress_sockets: EgressSockets | None = None,
    ) -> None:
        self._config = config
        self._build_agent = build_agent
        self._answer_seconds = answer_seconds
        self._machine = machine
        self.egress_sockets = egress_sockets or EgressSockets(
            config.data_dir,
            Guard(config.net_allow_private, own_ports=config.own_ports),
            is_open=config.network_max != "none",
        )
        self._unavailable: DriverUnavailable | None = None
        self._checked_at = 0.0
        self._checking = asyncio.Lock()

    @property
    def network_max(self) -> Network:
        return self._config.network_max

    async def machine(self) -> Machine:
        """Return the result of the sandbox check. It runs once; a failed check is repeated after half a minute."""
        async with self._checking:
            if self._machine is not None:
                return self._machine
            recent = time.monotonic() - self._checked_at < RECHECK_SECONDS
            if self._unavailable is not None and recent:
                raise self._unavailable
            try:
                agent = await asyncio.to_thread(self._agent)
                self._machine = await sandbox_check.check(self._config, agent)
            except DriverUnavailable as error:
                self._unavailable, self._checked_at = error, time.monotonic()
                raise
            return self._machine

    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        with sandboxes.os_errors_as("sandbox_failed"):
            return await self._start(ws, log)

    async def _start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        found = await self.machine()
        layout = Layout.of(self._config.data_dir, ws.id)
        inside = _inside(layout, found)
        network = self._network(ws, found, log)
        if network in BY_PROXY:
            ws = msgspec.structs.replace(ws, env={**PROXY_VARIABLES, **ws.env})
        plan = await asyncio.to_thread(self._plan, ws, layout, found, network=network)
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with _locked(layout):
            running = await self._end_other_boots(ws, layout, log)
            if running is None:
                owner = await self._user(layout, plan) if found.bwrap else None
                plan = dataclasses.replace(plan, uid=owner)
                egress = {"port": PROXY_PORT, "socket": EGRESS_SOCKET} if network in BY_PROXY else None
                nested = bwrap_arguments.bwrap_inside(found.bwrap, found.bwrap_libraries)
                files = workspace_paths.files_of(
                    ws, inside, is_confined=found.bwrap is not None, bwrap=nested, egress=egress
                )
                await self.egress_sockets.stop(ws.id)
                if network in BY_PROXY:
                    await sandboxes.in_thread(self.egress_sockets.allow, ws.id, _policy(ws, network))
                await sandboxes.in_thread(directory_setup.fill, layout.directory, files, ws.files, owner=owner)
                log("Starting the sandbox." if found.bwrap else UNCONFINED)
                running = Running(**await sandboxes.launch(plan))
            if network in BY_PROXY:
                await self.egress_sockets.serve(ws.id)
        await self._wait_for_agent(ws, layout, running)
        log("The agent answers.")
        return Endpoint(
            url=f"unix://{layout.socket}",
            home=inside.home,
            directory=inside.expand(ws.directory),
            network=network,
            warnings=() if found.bwrap else (UNCONFINED,),
        )

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        layout = Layout.of(self._config.data_dir, ws.id)
        if not layout.directory.is_dir():
            return
        with sandboxes.os_errors_as("stop_failed"):
            await self._stop(ws, layout, grace)

    async def _stop(self, ws: WorkspaceSpec, layout: Layout, grace: float) -> None:
        async with _locked(layout):
            for running in await sandboxes.find(layout.directory):
                if running.generation == ws.generation and grace > 0:
                    await self._request_shutdown(ws, layout, running, grace)
                await sandboxes.kill(running)
            await self.egress_sockets.stop(ws.id)
            if left := await sandboxes.find(layout.directory):
                raise DriverError("stop_failed", f"{len(left)} sandboxes of the workspace still run.")
            await asyncio.to_thread(self._remove_record, layout)

    async def delete(self, ws: WorkspaceSpec) -> None:
        await self.stop(ws, 0)
        layout = Layout.of(self._config.data_dir, ws.id)
        # Renamed first, so that a partly deleted workspace is not taken for an existing one.
        gone = layout.directory.with_name(f".gone-{ws.id}")
        try:
            await asyncio.to_thread(_discard, layout.directory, gone)
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            raise DriverError("delete_failed", f"Its files could not be removed: {what}{error.strerror}.") from error

    async def probe(self, ws: WorkspaceSpec) -> Probe:
        layout = Layout.of(self._config.data_dir, ws.id)
        running = await sandboxes.find(layout.directory)
        if not running:
            tail = await asyncio.to_thread(directory_setup.tail, layout.log)
            return Probe(alive=False, detail=tail.rpartition("\n")[2])
        same = next((one for one in running if one.generation == ws.generation), None)
        if same is None:
            return Probe(alive=False, generation=running[0].generation, detail="Another generation runs.")
        answers = await agent_health.health(self.connector(ws), token=ws.token, generation=ws.generation)
        return Probe(alive=True, answers=answers, pid=same.pid, generation=same.generation)

    def connector(self, ws: WorkspaceSpec) -> AgentSocket:
        layout = Layout.of(self._config.data_dir, ws.id)
        return AgentSocket(layout.socket, frozenset({os.geteuid()} if self._config.unsafe else ()))

    async def list_running(self) -> list[Found]:
        running = await sandboxes.find_all(self._config.workspaces)
        return [Found(one.workspace_id, one.generation, one.pid) for one in running]

    async def stop_stray(self, found: Found) -> None:
        layout = Layout.of(self._config.data_dir, found.workspace_id)
        for running in await sandboxes.find(layout.directory):
            if running.pid == found.pid:
                await sandboxes.kill(running)
        if not await sandboxes.find(layout.directory):
            await self.egress_sockets.stop(found.workspace_id)

    async def _end_other_boots(self, ws: WorkspaceSpec, layout: Layout, log: Log) -> Running | None:
        """Kill the sandboxes of other boots. Return the sandbox of this boot if it is running."""
        same = None
        for running in await sandboxes.find(layout.directory):
            if running.generation == ws.generation and same is None:
                same = running
                log("It is already running.")
            else:
                log(f"Ending generation {running.generation}.")
                await sandboxes.kill(running)
        return same

    async def _wait_for_agent(self, ws: WorkspaceSpec, layout: Layout, running: Running) -> None:
        connector = self.connector(ws)
        deadline = time.monotonic() + self._answer_seconds
        pause = 0.02
        try:
            while not await agent_health.health(
                connector, token=ws.token, generation=ws.generation, timeout=ATTEMPT_SECONDS
            ):
                if await sandboxes.wait_until_gone(running, pause):
                    said = await asyncio.to_thread(directory_setup.tail, layout.log)
                    raise DriverError("agent_exited", f"The agent ended before it answered. {said}".strip())
                if time.monotonic() > deadline:
                    await sandboxes.kill(running)
                    seconds = f"{self._answer_seconds:g}"
                    raise DriverError("agent_timeout", f"The agent did not answer within {seconds} s.")
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        finally:
            await connector.close()

    async def _request_shutdown(self, ws: WorkspaceSpec, layout: Layout, running: Running, grace: float) -> None:
        connector = self.connector(ws)
        try:
            if await agent_health.shutdown(connector, token=ws.token, generation=ws.generation, grace=grace):
                await sandboxes.wait_until_gone(running, grace + ENDING_SECONDS)
        finally:
            await connector.close()

    def _network(self, ws: WorkspaceSpec, found: Machine, log: Log) -> Network:
        """Return the network level that the template requests, limited by the settings."""
        asked, most = ws.sandbox.network, self._config.network_max
        network = network_levels.lowered(asked, most)
        if found.bwrap is None:
            return "host"  # an unconfined workspace has no network namespace
        if network != asked:
            log(f"The template requests the network {asked}; drivers.local.network_max allows {most}.")
        log(f"The workspace reaches {network_levels.WORDS[network]}.")
        return network

    async def _user(self, layout: Layout, plan: Plan) -> int | None:
        return await sandboxes.in_thread(self._config.users.choose, layout.directory, writes_shared=bool(plan.rw_binds))

    def _plan(self, ws: WorkspaceSpec, layout: Layout, found: Machine, *, network: Network) -> Plan:
        config, sandbox, limits = self._config, ws.sandbox, sandbox_check.bounded(ws.limits)
        for path in (*sandbox.ro_binds, *sandbox.rw_binds):
            if problem := bwrap_arguments.problem_of_bind(path, config.all_hidden):
                raise DriverError("invalid_workspace", f"The template's bind {path!r:.200} {problem}.")
        return Plan(
            workspace_id=ws.id,
            generation=ws.generation,
            directory=str(layout.directory),
            agent=str(self._agent()),
            python=found.python,
            python_prefix=found.python_prefix,
            bwrap=found.bwrap,
            bwrap_libraries=found.bwrap_libraries,
            network=network,
            egress=str(layout.egress) if network in BY_PROXY else None,
            nested=sandbox.nested,
            ro_binds=list(sandbox.ro_binds),
            rw_binds=list(sandbox.rw_binds),
            hidden=config.all_hidden,
            env=ws.env,
            tmp_mb=config.tmp_mb,
            memory_mb=limits.memory_mb,
            cpus=limits.cpus,
            pids=limits.pids,
            disk_mb=limits.disk_mb,
            cgroup=str(config.cgroup) if config.cgroup else None,
        )

    def _agent(self) -> Path:
        directory = self._config.data_dir / "agents"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._build_agent(directory)
        path.chmod(0o644)
        return path

    def _remove_record(self, layout: Layout) -> None:
        layout.record.unlink(missing_ok=True)
        if self._config.cgroup is not None:
            cgroups.remove(str(self._config.cgroup), layout.directory.name)


class AgentSocket:
    """The `Connector` to an agent on this machine. It keeps its Unix socket open by a handle.

    A workspace may replace its socket with a link to any socket of the machine. The handle always refers to the socket
    that was checked: it must belong to the owner of its directory, which is the workspace's user, or to `others`. The
    path of a handle is also short, as socket paths must be.
    """

    def __init__(self, path: Path, others: frozenset[int] = frozenset()) -> None:
        self._path = path
        self._others = others
        self._handle: int | None = None
        self._finalizer: weakref.finalize[..., AgentSocket] | None = None

    @property
    def unix_path(self) -> str | None:
        return None if self._handle is None else f"/proc/self/fd/{self._handle}"

    async def prepare(self) -> None:
        """Open the current socket. A started agent may have created or replaced it."""
        try:
            owner = self._path.parent.lstat().st_uid
            handle = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConnectionRefusedError(f"the agent has no socket: {error.strerror}") from error
        found = os.fstat(handle)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (owner, *self._others):
            os.close(handle)
            raise DriverError("agent_exited", "The file at the path of the agent's socket is not the agent's socket.")
        if self._handle is not None and os.path.samestat(os.fstat(self._handle), found):
            os.close(handle)
            return
        self._release()
        self._handle = handle
        self._finalizer = weakref.finalize(self, os.close, handle)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._handle is None:
            await self.prepare()
        assert self.unix_path is not None
        return await asyncio.open_unix_connection(self.unix_path)

    async def close(self) -> None:
        self._release()

    def _release(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._handle = self._finalizer = None


def _policy(ws: WorkspaceSpec, network: Network) -> Policy:
    # If the settings lower the level to `hosts`, the template has no list, and nothing is allowed.
    is_capped = network == "hosts" and ws.sandbox.network != "hosts"
    listed = ws.sandbox.hosts if network == "hosts" else ()
    made = Policy(ws.generation, listed, is_capped=is_capped, is_public=network == "public")
    try:
        made.rules()
    except ValueError as error:
        raise DriverError("invalid_workspace", f"The template's list of hosts cannot be used: {error}") from None
    return made


def _inside(layout: Layout, found: Machine) -> Inside:
    if found.bwrap:
        return Inside(bwrap_arguments.HOME, bwrap_arguments.RUN)
    return Inside(str(layout.home), str(layout.run))


def _discard(directory: Path, gone: Path) -> None:
    tree_removal.remove(gone)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(gone)
    tree_removal.remove(gone)


@contextlib.asynccontextmanager
async def _locked(layout: Layout) -> AsyncIterator[None]:
    """Hold the lock of a workspace, which serializes the replicas. The kernel releases it if the process dies."""
    descriptor = os.open(layout.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
