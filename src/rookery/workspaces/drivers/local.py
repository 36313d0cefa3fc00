"""The local driver: workspaces on this machine, each in a bubblewrap sandbox that outlives the replica that started
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from rookery.runtime.address_guard import Guard
from rookery.workspaces import network_levels
from rookery.workspaces.drivers import agent_health, launch, sandbox_check, sandboxes, workspace_directory
from rookery.workspaces.drivers.agent_socket import HeldSocket
from rookery.workspaces.drivers.launcher import archives, bwrap_arguments, cgroups, directory_setup, process_identity
from rookery.workspaces.drivers.launcher.plan import Plan
from rookery.workspaces.drivers.launcher.sandbox_processes import Running
from rookery.workspaces.drivers.protocol import (
    DriverError,
    DriverUnavailable,
    Endpoint,
    Found,
    Log,
    Probe,
    WorkspaceSpec,
)
from rookery.workspaces.drivers.sandbox_check import LocalConfig, Machine
from rookery.workspaces.drivers.workspace_directory import Inside, Layout
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.sockets import EgressSockets
from rookery.workspaces.network_levels import BY_PROXY, Network

ANSWER_SECONDS = 120.0
ATTEMPT_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 2.0
# After the grace period an agent still ends its processes: TERM, 5 s, KILL.
ENDING_SECONDS = 8.0
LOOK_AGAIN_SECONDS = 30.0

PROXY_PORT = 3128
EGRESS_SOCKET = f"{bwrap_arguments.EGRESS}/egress.sock"
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# In both cases, because programs read different ones. The template's own variables take precedence. All of them name
# HTTP: Python libraries fail with SOCKS when they lack the module for it.
PROXY_VARIABLES = {
    **{name: _PROXY for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")},
    **{name: "localhost,127.0.0.1,::1" for name in ("NO_PROXY", "no_proxy")},
    **{name: _PROXY for name in ("npm_config_proxy", "npm_config_https_proxy", "PIP_PROXY")},
    "NODE_USE_ENV_PROXY": "1",
}

UNCONFINED = (
    "This workspace is not confined: its commands can do all that the server's user can, "
    "because drivers.local.unsafe is set and this machine cannot start a sandbox."
)


class LocalDriver:
    """A Driver and an Inventory.

    `build_agent` writes the agent's zipapp into a directory and returns its path; `machine` is the result of an earlier
    check. `egress_sockets` serve the workspaces that reach the network by a proxy; a long-running process calls
    `egress_sockets.keep` repeatedly.
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
        self._looked_at = 0.0
        self._looking = asyncio.Lock()

    @property
    def network_max(self) -> Network:
        return self._config.network_max

    async def machine(self) -> Machine:
        """Return what this machine supports. It is checked once; a failed check is repeated after half a minute."""
        async with self._looking:
            if self._machine is not None:
                return self._machine
            recent = time.monotonic() - self._looked_at < LOOK_AGAIN_SECONDS
            if self._unavailable is not None and recent:
                raise self._unavailable
            try:
                agent = await asyncio.to_thread(self._agent)
                self._machine = await sandbox_check.look(self._config, agent)
            except DriverUnavailable as error:
                self._unavailable, self._looked_at = error, time.monotonic()
                raise
            return self._machine

    async def start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        with sandboxes.told_as("sandbox_failed"):
            return await self._start(ws, log)

    async def _start(self, ws: WorkspaceSpec, log: Log) -> Endpoint:
        found = await self.machine()
        place = Layout.of(self._config.data_dir, ws.id)
        inside = _inside(place, found)
        network = self._network(ws, found, log)
        if network in BY_PROXY:
            ws = msgspec.structs.replace(ws, env={**PROXY_VARIABLES, **ws.env})
        plan = await asyncio.to_thread(self._plan, ws, place, found, network=network)
        place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with _locked(place):
            running = await self._alone(ws, place, log)
            if running is None:
                _say_limits(plan, log)
                owner = await self._user(place, plan) if found.bwrap else None
                plan = dataclasses.replace(plan, uid=owner)
                egress = {"port": PROXY_PORT, "socket": EGRESS_SOCKET} if network in BY_PROXY else None
                nested = bwrap_arguments.bwrap_inside(found.bwrap, found.bwrap_libraries)
                files = workspace_directory.files_of(_marked(ws, found), inside, bwrap=nested, egress=egress)
                await self.egress_sockets.shut(ws.id)
                if network in BY_PROXY:
                    await sandboxes.in_thread(self.egress_sockets.allow, ws.id, _policy(ws, network))
                await sandboxes.in_thread(directory_setup.fill, place.directory, files, ws.files, owner=owner)
                log("Starting the sandbox." if found.bwrap else UNCONFINED)
                running = Running(**await launch.launch(plan))
            if network in BY_PROXY:
                await self.egress_sockets.serve(ws.id)
        await self._until_it_answers(ws, place, running)
        log("The agent answers.")
        return Endpoint(
            url=f"unix://{place.socket}",
            home=inside.home,
            directory=inside.expand(ws.directory),
            network=network,
            warnings=() if found.bwrap else (UNCONFINED,),
        )

    async def stop(self, ws: WorkspaceSpec, grace: float) -> None:
        place = Layout.of(self._config.data_dir, ws.id)
        if not place.directory.is_dir():
            return
        with sandboxes.told_as("stop_failed"):
            await self._stop(ws, place, grace)

    async def _stop(self, ws: WorkspaceSpec, place: Layout, grace: float) -> None:
        async with _locked(place):
            for running in await sandboxes.find(place.directory):
                if running.generation == ws.generation and grace > 0:
                    await self._ask_to_end(ws, place, running, grace)
                await sandboxes.kill(running)
            await self.egress_sockets.shut(ws.id)
            if left := await sandboxes.find(place.directory):
                raise DriverError("stop_failed", f"{len(left)} sandboxes of the workspace still run.")
            await asyncio.to_thread(self._tidy, place)

    async def delete(self, ws: WorkspaceSpec) -> None:
        await self.stop(ws, 0)
        place = Layout.of(self._config.data_dir, ws.id)
        # Renamed first: a partially deleted workspace must not be found as an existing one.
        gone = place.directory.with_name(f".gone-{ws.id}")
        try:
            await asyncio.to_thread(_discard, place.directory, gone)
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            raise DriverError("delete_failed", f"Its files could not be removed: {what}{error.strerror}.") from error

    async def probe(self, ws: WorkspaceSpec) -> Probe:
        place = Layout.of(self._config.data_dir, ws.id)
        running = await sandboxes.find(place.directory)
        if not running:
            tail = await asyncio.to_thread(workspace_directory.tail, place.log)
            return Probe(alive=False, detail=tail.rpartition("\n")[2])
        same = next((one for one in running if one.generation == ws.generation), None)
        if same is None:
            return Probe(alive=False, generation=running[0].generation, detail="Another generation runs.")
        answers = await agent_health.health(self.connector(ws), token=ws.token, generation=ws.generation)
        return Probe(alive=True, answers=answers, pid=same.pid, generation=same.generation)

    def connector(self, ws: WorkspaceSpec) -> HeldSocket:
        place = Layout.of(self._config.data_dir, ws.id)
        return HeldSocket(place.socket, frozenset({os.geteuid()} if self._config.unsafe else ()))

    async def list_running(self) -> list[Found]:
        running = await sandboxes.find_all(self._config.workspaces)
        return [Found(one.workspace_id, one.generation, one.pid) for one in running]

    async def stop_stray(self, found: Found) -> None:
        place = Layout.of(self._config.data_dir, found.workspace_id)
        for running in await sandboxes.find(place.directory):
            if running.pid == found.pid:
                await sandboxes.kill(running)
        if not await sandboxes.find(place.directory):
            await self.egress_sockets.shut(found.workspace_id)

    async def _alone(self, ws: WorkspaceSpec, place: Layout, log: Log) -> Running | None:
        """End every other boot; return this one if it is running already."""
        same = None
        for running in await sandboxes.find(place.directory):
            if running.generation == ws.generation and same is None:
                same = running
                log("It runs already.")
            else:
                log(f"Ending generation {running.generation}.")
                await sandboxes.kill(running)
        return same

    async def _until_it_answers(self, ws: WorkspaceSpec, place: Layout, running: Running) -> None:
        connector = self.connector(ws)
        deadline = time.monotonic() + self._answer_seconds
        pause = 0.02
        try:
            while not await agent_health.health(
                connector, token=ws.token, generation=ws.generation, timeout=ATTEMPT_SECONDS
            ):
                if await sandboxes.wait_until_gone(running, pause):
                    said = await asyncio.to_thread(workspace_directory.tail, place.log)
                    raise DriverError("agent_exited", f"The agent ended before it answered. {said}".strip())
                if time.monotonic() > deadline:
                    await sandboxes.kill(running)
                    seconds = f"{self._answer_seconds:g}"
                    raise DriverError("agent_timeout", f"The agent did not answer within {seconds} s.")
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        finally:
            await connector.close()

    async def _ask_to_end(self, ws: WorkspaceSpec, place: Layout, running: Running, grace: float) -> None:
        connector = self.connector(ws)
        try:
            if await agent_health.shutdown(connector, token=ws.token, generation=ws.generation, grace=grace):
                await sandboxes.wait_until_gone(running, grace + ENDING_SECONDS)
        finally:
            await connector.close()

    def _network(self, ws: WorkspaceSpec, found: Machine, log: Log) -> Network:
        """Return the network that the template requests, capped by the settings."""
        asked, most = ws.sandbox.network, self._config.network_max
        network = network_levels.lowered(asked, most)
        if found.bwrap is None:
            return "host"  # nothing is confined, and the proxy's port would be on the machine itself
        if network != asked:
            log(f"The template asks for the network {asked}; drivers.local.network_max allows {most}.")
        log(f"The workspace reaches {network_levels.WORDS[network]}.")
        return network

    async def _user(self, place: Layout, plan: Plan) -> int | None:
        return await sandboxes.in_thread(self._config.users.choose, place, writes_shared=bool(plan.rw_binds))

    def _plan(self, ws: WorkspaceSpec, place: Layout, found: Machine, *, network: Network) -> Plan:
        config, sandbox, limits = self._config, ws.sandbox, sandbox_check.bounded(ws.limits)
        for path in (*sandbox.ro_binds, *sandbox.rw_binds):
            if problem := bwrap_arguments.problem_of_bind(path, config.all_hidden):
                raise DriverError("invalid_workspace", f"The template's bind {path!r:.200} {problem}.")
        return Plan(
            workspace_id=ws.id,
            generation=ws.generation,
            directory=str(place.directory),
            agent=str(self._agent()),
            python=found.python,
            python_prefix=found.python_prefix,
            bwrap=found.bwrap,
            bwrap_libraries=found.bwrap_libraries,
            network=network,
            egress=str(place.egress) if network in BY_PROXY else None,
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

    def _tidy(self, place: Layout) -> None:
        place.record.unlink(missing_ok=True)
        if self._config.cgroup is not None:
            cgroups.remove(str(self._config.cgroup), place.directory.name)


def _policy(ws: WorkspaceSpec, network: Network) -> Policy:
    # Without a list of hosts, `hosts` has no meaning.
    is_capped = network == "hosts" and ws.sandbox.network != "hosts"
    listed = ws.sandbox.hosts if network == "hosts" else ()
    made = Policy(ws.generation, listed, is_capped=is_capped, is_public=network == "public")
    try:
        made.rules()
    except ValueError as error:
        raise DriverError("invalid_workspace", f"The template's list of hosts cannot be used: {error}") from None
    return made


def _inside(place: Layout, found: Machine) -> Inside:
    if found.bwrap:
        return Inside(bwrap_arguments.HOME, bwrap_arguments.RUN)
    return Inside(str(place.home), str(place.run))


def _marked(ws: WorkspaceSpec, found: Machine) -> WorkspaceSpec:
    """Add a mark to the environment: without a namespace that ends with its first process, processes are found by
    it.
    """
    if found.bwrap:
        return ws
    return msgspec.structs.replace(
        ws, env={**ws.env, process_identity.VARIABLE: process_identity.mark(ws.id, ws.generation)}
    )


def _say_limits(plan: Plan, log: Log) -> None:
    if plan.cgroup is None and (plan.memory_mb or plan.cpus):
        log("Without drivers.local.cgroup, memory is limited for each process only, and processor time not at all.")
    if plan.disk_mb:
        log("The disk limit is watched; the kernel enforces it for single files only.")


def _discard(directory: Path, gone: Path) -> None:
    archives.discard(gone)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(gone)
    archives.discard(gone)


@contextlib.asynccontextmanager
async def _locked(place: Layout) -> AsyncIterator[None]:
    """Lock a workspace, so that one replica at a time acts on it. The kernel releases the lock of a dead process
    immediately.
    """
    descriptor = os.open(place.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
