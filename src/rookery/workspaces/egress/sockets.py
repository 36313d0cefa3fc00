"""The egress sockets of workspaces, and the decision which replica serves them.

Sandboxes outlive replicas, and several replicas may run on one machine. Exactly one of them serves the socket of a
workspace: the one that holds the lock of its directory, which the kernel releases immediately when that process dies.
Every replica checks each second for a workspace that is not served. All it needs is on disk: which sandboxes run, and
what each may reach. The directory of the socket is bound into the sandbox, not the socket, so that a new socket can
replace the old one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from pathlib import Path

from rookery.runtime.address_guard import Guard, Lookups
from rookery.telemetry.log import get_logger
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.drivers.workspace_directory import Layout
from rookery.workspaces.egress.byte_relay import Wire
from rookery.workspaces.egress.policy import Policies, Policy
from rookery.workspaces.egress.proxy import Proxy, Times
from rookery.workspaces.egress.requests import Refusal
from rookery.workspaces.egress.stats import EgressStats

log = get_logger("workspaces.egress")

KEEP_SECONDS = 1.0
MAX_PER_WORKSPACE = 64
# Chosen: at 400 KiB for each at most, one replica has enough memory.
MAX_IN_ALL = 256
# The workspaces of one user may fill a replica; each workspace of the others still has these.
ALWAYS = 8
BACKLOG = 64
# Concurrent name lookups of a workspace: lookups without a response block only these threads.
LOOKUPS = 3
FULL_PAUSE_SECONDS = 0.1


class EgressSockets:
    """The egress sockets of one local driver.

    `is_open` is false where the settings allow no network at all: sockets of existing sandboxes are not served.
    """

    def __init__(
        self,
        data_dir: Path,
        guard: Guard,
        *,
        is_open: bool = True,
        times: Times | None = None,
        max_per_workspace: int = MAX_PER_WORKSPACE,
        max_in_all: int = MAX_IN_ALL,
    ) -> None:
        self.stats = EgressStats()
        self.max_per_workspace = max_per_workspace
        self.max_in_all = max_in_all
        self._data_dir = data_dir
        self._is_open = is_open
        self._guard = guard
        self._policies = Policies(data_dir / "egress")
        self._proxy = Proxy(guard, self.stats, times or Times())
        self._served: dict[str, _ServedSocket] = {}
        self._turn = asyncio.Lock()

    def add_own_port(self, port: int) -> None:
        """Register a port of the server, which no workspace may reach."""
        self._guard.add_own_port(port)

    def allow(self, workspace_id: str, policy: Policy) -> None:
        """Write the policy of a workspace before it starts; blocks for a moment."""
        place = Layout.of(self._data_dir, workspace_id)
        place.egress.mkdir(mode=0o755, exist_ok=True)
        # Independent of the umask: in the sandbox another user reads it. Only the server may enter the directories
        # above it.
        place.egress.chmod(0o755)
        self._policies.write(workspace_id, policy)

    async def serve(self, workspace_id: str) -> bool:
        """Serve the socket of a workspace unless another replica does; return whether it is served here."""
        async with self._turn:
            if workspace_id in self._served:
                return True
            if not self._is_open or self._policies.find(workspace_id) is None:
                return False
            # Not in a thread: a canceled caller would leave a lock that is never released.
            opened = _open(Layout.of(self._data_dir, workspace_id))
            if opened is None:
                return False
            self._served[workspace_id] = _ServedSocket(self, workspace_id, *opened)
            log.debug("egress_served", workspace_id=workspace_id)
            return True

    async def shut(self, workspace_id: str) -> None:
        """Stop egress of a stopped workspace and close its connections. Other replicas notice it within a second."""
        await asyncio.to_thread(self._policies.remove, workspace_id)
        await self._leave(workspace_id)

    async def keep(self) -> None:
        """Run one check: serve sockets that no replica serves, and close those of ended workspaces."""
        if not self._is_open:
            return
        served = set(self._served)
        wanted = await asyncio.to_thread(self._wanted)
        for workspace_id in served - wanted:
            # Checked again: it may have been started again meanwhile.
            if not self._is_wanted(workspace_id):
                await self._leave(workspace_id)
        for workspace_id, entry in list(self._served.items()):
            if not entry.is_accepting:
                log.warning("egress_broke", workspace_id=workspace_id)
                await self._leave(workspace_id)
        for workspace_id in wanted - self._served.keys():
            try:
                if await self.serve(workspace_id):
                    log.info("egress_adopted", workspace_id=workspace_id)
            except OSError as error:
                log.warning("egress_not_served", workspace_id=workspace_id, error=str(error))

    async def close(self) -> None:
        for workspace_id in list(self._served):
            await self._leave(workspace_id)

    async def _leave(self, workspace_id: str) -> None:
        async with self._turn:
            served = self._served.get(workspace_id)
            if served is not None:
                await served.close()
                # Removed afterwards: after an interrupted close it is still known, and closed the next time.
                self._served.pop(workspace_id)

    def _wanted(self) -> set[str]:
        return {workspace_id for workspace_id in self._policies.list_ids() if self._is_wanted(workspace_id)}

    def _is_wanted(self, workspace_id: str) -> bool:
        """Return whether it has a policy and is running."""
        try:
            place = Layout.of(self._data_dir, workspace_id)
        except DriverError:
            return False  # a file of another kind
        if not place.directory.is_dir():
            with contextlib.suppress(OSError):
                self._policies.remove(workspace_id)  # left by an interrupted deletion
        return self._policies.find(workspace_id) is not None and sandbox_processes.recorded(place.directory) is not None

    async def handle(self, served: _ServedSocket, client: Wire) -> None:
        """Serve one connection of a workspace."""
        self.stats.connections += 1
        try:
            if len(served.connections) > self.max_per_workspace:
                await self._turn_away(client, f"A workspace may have {self.max_per_workspace} connections at once.")
            elif self.stats.connections > self.max_in_all and len(served.connections) > ALWAYS:
                await self._turn_away(client, "The server has too many connections of workspaces at the moment.")
            else:
                policy = self._policies.find(served.workspace_id)
                await self._proxy.serve(client, served.workspace_id, policy, lookups=served.lookups)
        finally:
            self.stats.connections -= 1

    async def _turn_away(self, client: Wire, why: str) -> None:
        self.stats.requests["too_many"] += 1
        text = f"{why} Try again with fewer at a time."
        await self._proxy.turn_away(client, Refusal(503, "Too many connections", text, decision="too_many"))


class _ServedSocket:
    """A served socket, with its lock."""

    def __init__(
        self, egress_sockets: EgressSockets, workspace_id: str, lock: int, listener: socket.socket, place: Layout
    ) -> None:
        self.workspace_id = workspace_id
        self.connections: set[asyncio.Task[None]] = set()
        self.lookups = Lookups(LOOKUPS)
        self._egress_sockets = egress_sockets
        self._lock = lock
        self._listener = listener
        self._place = place
        self._accepting = asyncio.create_task(self._accept(), name=f"egress:{workspace_id}")

    @property
    def is_accepting(self) -> bool:
        return not self._accepting.done()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Connections beyond the limit are refused with a response, but only up to this number: then they wait.
            while len(self.connections) > 2 * self._egress_sockets.max_per_workspace:
                await asyncio.wait(self.connections, return_when=asyncio.FIRST_COMPLETED)
            try:
                made, _ = await loop.sock_accept(self._listener)
                self._begin(await Wire.over(made))
            except OSError as error:
                # Usually too many open files: new connections wait meanwhile.
                log.warning("egress_not_accepted", workspace_id=self.workspace_id, error=str(error))
                await asyncio.sleep(FULL_PAUSE_SECONDS)

    def _begin(self, client: Wire) -> None:
        task = asyncio.create_task(self._handle(client), name=f"egress-connection:{self.workspace_id}")
        self.connections.add(task)

        def forget(_: object) -> None:
            # Here, because a task that is canceled before it has begun never runs its cleanup.
            self.connections.discard(task)
            client.drop()

        task.add_done_callback(forget)

    async def _handle(self, client: Wire) -> None:
        try:
            await self._egress_sockets.handle(self, client)
        except Exception as error:
            log.exception("egress_failed", error, workspace_id=self.workspace_id)

    async def close(self) -> None:
        tasks = [task for task in (self._accepting, *self.connections) if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        # While the lock is held: afterwards the socket may be another replica's.
        with contextlib.suppress(OSError):
            self._place.egress_socket.unlink()
        os.close(self._lock)


def _open(place: Layout) -> tuple[int, socket.socket, Layout] | None:
    """Return the lock and a listening socket; None when another replica has them."""
    lock = os.open(place.egress_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock, _listen(place), place
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise


def _listen(place: Layout) -> socket.socket:
    fresh = f"{place.egress_socket.name}.new"
    directory = os.open(place.egress, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=directory)
        # By a handle: the path of a data directory may exceed the length limit of socket paths.
        listener.bind(f"/proc/self/fd/{directory}/{fresh}")
        os.chmod(fresh, 0o600, dir_fd=directory)
        # The workspace's user owns its directories; if the server is root, each workspace has another user.
        owner = place.run.lstat().st_uid if place.run.exists() else os.geteuid()
        if owner != os.geteuid():
            os.chown(fresh, owner, owner, dir_fd=directory)
        listener.listen(BACKLOG)
        os.rename(fresh, place.egress_socket.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
