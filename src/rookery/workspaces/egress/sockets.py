"""The egress sockets of workspaces. Exactly one replica of the machine serves each socket.

Sandboxes outlive replicas, and several replicas may run on one machine. The replica that holds the lock file of a
workspace serves its socket. The kernel releases the lock when the process dies. Every second each replica looks for
running workspaces that no replica serves. The directory of the socket is bound into the sandbox, so that a replica that
takes over can replace the socket.
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
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.workspace_paths import Layout
from rookery.workspaces.egress.byte_relay import ByteStream
from rookery.workspaces.egress.policy import Policies, Policy
from rookery.workspaces.egress.proxy import EgressStats, Proxy, Timeouts
from rookery.workspaces.egress.requests import Refusal

log = get_logger("workspaces.egress")

RECONCILE_SECONDS = 1.0
MAX_PER_WORKSPACE = 64
# Chosen: each connection uses at most 400 KiB of memory.
MAX_TOTAL = 256
# Each workspace may have this many connections, even if the replica has reached its total.
ALWAYS_ALLOWED = 8
BACKLOG = 64
# Concurrent name lookups per workspace, so that slow lookups do not block those of other workspaces.
LOOKUPS = 3
FULL_PAUSE_SECONDS = 0.1


class EgressSockets:
    """The egress sockets of one local driver.

    With `is_open` false, the settings forbid networks, and no socket is served.
    """

    def __init__(
        self,
        data_dir: Path,
        guard: Guard,
        *,
        is_open: bool = True,
        timeouts: Timeouts | None = None,
        max_per_workspace: int = MAX_PER_WORKSPACE,
        max_total: int = MAX_TOTAL,
    ) -> None:
        self.stats = EgressStats()
        self.max_per_workspace = max_per_workspace
        self.max_total = max_total
        self._data_dir = data_dir
        self._is_open = is_open
        self._guard = guard
        self._policies = Policies(data_dir / "egress")
        self._proxy = Proxy(guard, self.stats, timeouts or Timeouts())
        self._served: dict[str, _ServedSocket] = {}
        self._lock = asyncio.Lock()

    def add_own_port(self, port: int) -> None:
        """Add a port of the server, which no workspace may reach."""
        self._guard.add_own_port(port)

    def allow(self, workspace_id: str, policy: Policy) -> None:
        """Write the policy of a workspace before its start. Blocks."""
        layout = Layout.of(self._data_dir, workspace_id)
        layout.egress.mkdir(mode=0o755, exist_ok=True)
        # The user of the sandbox must be able to read it with any umask. Other users cannot enter the directories above
        # it.
        layout.egress.chmod(0o755)
        self._policies.write(workspace_id, policy)

    async def serve(self, workspace_id: str) -> bool:
        """Serve the socket of a workspace unless another replica does. Return whether this replica serves it."""
        async with self._lock:
            if workspace_id in self._served:
                return True
            if not self._is_open or self._policies.find(workspace_id) is None:
                return False
            # This does not run in a thread, because a canceled caller would leave the lock open.
            opened = _open(Layout.of(self._data_dir, workspace_id))
            if opened is None:
                return False
            self._served[workspace_id] = _ServedSocket(self, workspace_id, *opened)
            log.debug("egress_served", workspace_id=workspace_id)
            return True

    async def stop(self, workspace_id: str) -> None:
        """Remove the policy of a stopped workspace and close its connections. Other replicas follow within a second."""
        await asyncio.to_thread(self._policies.remove, workspace_id)
        await self._stop_serving(workspace_id)

    async def reconcile(self) -> None:
        """Serve the sockets that no replica serves, and close the sockets of workspaces that have ended."""
        if not self._is_open:
            return
        served = set(self._served)
        wanted = await asyncio.to_thread(self._ids_to_serve)
        for workspace_id in served - wanted:
            # The workspace may have been started again meanwhile.
            if not self._should_serve(workspace_id):
                await self._stop_serving(workspace_id)
        for workspace_id, entry in list(self._served.items()):
            if not entry.is_accepting:
                log.warning("egress_broke", workspace_id=workspace_id)
                await self._stop_serving(workspace_id)
        for workspace_id in wanted - self._served.keys():
            try:
                if await self.serve(workspace_id):
                    log.info("egress_adopted", workspace_id=workspace_id)
            except OSError as error:
                log.warning("egress_not_served", workspace_id=workspace_id, error=str(error))

    async def close(self) -> None:
        for workspace_id in list(self._served):
            await self._stop_serving(workspace_id)

    async def _stop_serving(self, workspace_id: str) -> None:
        async with self._lock:
            served = self._served.get(workspace_id)
            if served is not None:
                await served.close()
                # The policy is removed afterwards, so that an interrupted close is repeated.
                self._served.pop(workspace_id)

    def _ids_to_serve(self) -> set[str]:
        return {workspace_id for workspace_id in self._policies.list_ids() if self._should_serve(workspace_id)}

    def _should_serve(self, workspace_id: str) -> bool:
        """Return whether the workspace has a policy and is running."""
        try:
            layout = Layout.of(self._data_dir, workspace_id)
        except DriverError:
            return False  # not the file of a workspace
        if not layout.directory.is_dir():
            with contextlib.suppress(OSError):
                self._policies.remove(workspace_id)  # left by an interrupted deletion
        return (
            self._policies.find(workspace_id) is not None and sandbox_processes.recorded(layout.directory) is not None
        )

    async def handle(self, served: _ServedSocket, client: ByteStream) -> None:
        """Serve one connection of a workspace."""
        self.stats.connections += 1
        try:
            if len(served.connections) > self.max_per_workspace:
                await self._refuse(
                    client, f"A workspace may have {self.max_per_workspace} connections at the same time."
                )
            elif self.stats.connections > self.max_total and len(served.connections) > ALWAYS_ALLOWED:
                await self._refuse(client, "The server has too many connections of workspaces at the moment.")
            else:
                policy = self._policies.find(served.workspace_id)
                await self._proxy.serve(client, served.workspace_id, policy, lookups=served.lookups)
        finally:
            self.stats.connections -= 1

    async def _refuse(self, client: ByteStream, why: str) -> None:
        self.stats.requests["too_many"] += 1
        text = f"{why} Try again with fewer at a time."
        await self._proxy.refuse(client, Refusal(503, "Too many connections", text, decision="too_many"))


class _ServedSocket:
    """A socket that this replica serves, with its lock."""

    def __init__(
        self, egress_sockets: EgressSockets, workspace_id: str, lock: int, listener: socket.socket, layout: Layout
    ) -> None:
        self.workspace_id = workspace_id
        self.connections: set[asyncio.Task[None]] = set()
        self.lookups = Lookups(LOOKUPS)
        self._egress_sockets = egress_sockets
        self._lock = lock
        self._listener = listener
        self._place = layout
        self._accepting = asyncio.create_task(self._accept(), name=f"egress:{workspace_id}")

    @property
    def is_accepting(self) -> bool:
        return not self._accepting.done()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Connections beyond the limit are refused with a response. Beyond twice the limit they wait.
            while len(self.connections) > 2 * self._egress_sockets.max_per_workspace:
                await asyncio.wait(self.connections, return_when=asyncio.FIRST_COMPLETED)
            try:
                made, _ = await loop.sock_accept(self._listener)
                self._begin(await ByteStream.from_socket(made))
            except OSError as error:
                # Usually too many files are open. New connections wait meanwhile.
                log.warning("egress_not_accepted", workspace_id=self.workspace_id, error=str(error))
                await asyncio.sleep(FULL_PAUSE_SECONDS)

    def _begin(self, client: ByteStream) -> None:
        task = asyncio.create_task(self._handle(client), name=f"egress-connection:{self.workspace_id}")
        self.connections.add(task)

        def forget(_: object) -> None:
            # A task that is canceled before it begins never closes its connection.
            self.connections.discard(task)
            client.abort()

        task.add_done_callback(forget)

    async def _handle(self, client: ByteStream) -> None:
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
        # The socket is removed while the lock is held. Afterwards another replica may have created a new socket.
        with contextlib.suppress(OSError):
            self._place.egress_socket.unlink()
        os.close(self._lock)


def _open(layout: Layout) -> tuple[int, socket.socket, Layout] | None:
    """Return the lock and a listening socket; None if another replica holds the lock."""
    lock = os.open(layout.egress_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock, _listen(layout), layout
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise


def _listen(layout: Layout) -> socket.socket:
    fresh = f"{layout.egress_socket.name}.new"
    directory = os.open(layout.egress, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=directory)
        # The path of the data directory may be too long for a socket, so a handle is used.
        listener.bind(f"/proc/self/fd/{directory}/{fresh}")
        os.chmod(fresh, 0o600, dir_fd=directory)
        # The socket belongs to the workspace's user, who owns its directories.
        owner = layout.run.lstat().st_uid if layout.run.exists() else os.geteuid()
        if owner != os.geteuid():
            os.chown(fresh, owner, owner, dir_fd=directory)
        listener.listen(BACKLOG)
        os.rename(fresh, layout.egress_socket.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
