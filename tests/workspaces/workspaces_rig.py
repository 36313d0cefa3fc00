"""A rig of replicas that carry out operations on workspaces over a fake driver, and users who request them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.access.rights import UserActor
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import Clock, SystemClock
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.db.pubsub import Bus
from rookery.store.machine import Machine
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces import templates as stored
from rookery.store.workspaces.lifecycle_requests import Requested
from rookery.store.workspaces.operation_rows import Operation
from rookery.store.workspaces.workspaces import Workspace
from rookery.workspaces import templates
from rookery.workspaces.driver_specs import Specs
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.runtime import WorkspaceRuntime
from rookery.workspaces.shared_services import WorkspaceServices
from rookery.workspaces.templates import TemplateFile
from tests.eventually import until
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import open_pool
from tests.workspaces.fake_driver import FakeDriver

NODE = "this-node"
MANIFEST = b"""
name = "plain"
idle_stop_after = "1h"
[[parameters]]
name = "size"
options = ["small", "large"]
default = "small"
[[parameters]]
name = "verbose"
type = "bool"
mutable = true
"""


class Wire:
    """Publishes immediately to every replica of the rig."""

    def __init__(self) -> None:
        self.buses: list[Bus] = []
        self.hints: list[Any] = []

    def publish(self, hints: Any) -> None:
        self.hints.extend(hints)
        for hint in hints:
            for bus in self.buses:
                bus.dispatch(hint)


@dataclass
class WorkspacesRig:
    world: StoreRig
    pool: asyncpg.Pool
    wire: Wire
    store: Store
    ring: KeyRing
    folder: Path
    clock: Clock
    owner: UUID
    drivers: list[FakeDriver] = field(default_factory=list)
    _tasks: dict[UUID, asyncio.Task[Any]] = field(default_factory=dict)

    def replica(self, *, node: str = NODE, gated: bool = False) -> tuple[WorkspaceRuntime, FakeDriver]:
        """Return a replica that does nothing yet. With `gated` its starts wait."""
        driver = FakeDriver(self.folder)
        if gated:
            driver.gate.clear()
        self.drivers.append(driver)
        bus = Bus()
        self.wire.buses.append(bus)
        parts = WorkspaceServices(
            replica_id=uuid4(),
            node=node,
            pool=self.pool,
            publisher=self.wire,
            bus=bus,
            clock=self.clock,
            specs=Specs(self.ring),
            drivers={"local": driver},
            inventories=[driver],
            ring=self.ring,
        )
        return WorkspaceRuntime(parts), driver

    async def run(self, runtime: WorkspaceRuntime) -> asyncio.Task[Any]:
        """Let it carry out operations. It has a row among the replicas, as peers expect."""
        await self.pool.execute(
            "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
            " VALUES ($1, $2, 'h', 1, '1', 7)",
            runtime.parts.replica_id,
            runtime.parts.node,
        )
        task = self._tasks[runtime.parts.replica_id] = asyncio.create_task(runtime.executor.run())
        return task

    async def kill(self, runtime: WorkspaceRuntime) -> None:
        """Simulate SIGKILL of a replica: its claims stay, its row is gone, and nothing is released."""
        task = self._tasks.pop(runtime.parts.replica_id)
        async with self.pool.acquire() as conn:
            held = await conn.fetch(
                "SELECT id, lease_until FROM workspace_operations WHERE claimed_by = $1", runtime.parts.replica_id
            )
            await conn.execute("DELETE FROM replicas WHERE id = $1", runtime.parts.replica_id)
        await _ended(task)
        for row in held:
            await self.pool.execute(
                "UPDATE workspace_operations SET state = 'running', claimed_by = $2, lease_until = $3"
                " WHERE id = $1 AND state = 'queued'",
                row["id"],
                runtime.parts.replica_id,
                row["lease_until"],
            )

    def as_user(self, user_id: UUID | None = None) -> ActorStore:
        return self.store.as_actor(UserActor(user_id or self.owner))

    async def create(self, runtime: WorkspaceRuntime, owner: UUID | None = None, **options: Any) -> Requested:
        owner = owner or self.owner
        made = await runtime.service.request_create(self.as_user(owner), owner, template="plain", **options)
        assert not isinstance(made, Replayed)
        return made

    async def running(self, runtime: WorkspaceRuntime, owner: UUID | None = None) -> Workspace:
        made = await self.create(runtime, owner)
        return await self.settled(made, "running")

    async def settled(self, made: Requested, status: str) -> Workspace:
        """Return the workspace once its operation is over, with this status."""
        assert made.operation is not None
        operation_id = made.operation.id

        async def is_over() -> bool:
            return not (await self.operation(operation_id)).is_open

        await until(is_over, timeout=30)
        found = await self.load(made.workspace.id)
        assert found.status == status, (found.status, found.error)
        return found

    async def load(self, workspace_id: UUID) -> Workspace:
        return await workspaces.get_workspace(self.world.conn, workspace_id)

    async def operation(self, operation_id: UUID) -> Operation:
        return await operation_rows.get_operation(self.world.conn, operation_id)

    async def log(self, operation_id: UUID) -> str:
        return (await operation_rows.read_log(self.world.conn, operation_id)).text

    async def push(self, manifest: bytes = MANIFEST, **files: bytes) -> str:
        packed = templates.pack(
            {"template.toml": TemplateFile(manifest), **{name: TemplateFile(data) for name, data in files.items()}}
        )
        await stored.push_template(self.world.conn, as_push(packed))
        return packed.revision


@asynccontextmanager
async def open_yard(database_url: str, *, clock: Clock | None = None) -> AsyncIterator[WorkspacesRig]:
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rky")))
        world = await stack.enter_async_context(open_store_rig(database_url))
        pool = await stack.enter_async_context(open_pool(database_url))
        wire = Wire()
        store = Store(pool, machine=Machine(pool, wire, clock=clock), publisher=wire, clock=clock)
        ring = KeyRing.parse(new_key("k1"))
        rig = WorkspacesRig(world, pool, wire, store, ring, folder, clock, await world.user())
        await rig.push()
        try:
            yield rig
        finally:
            for task in list(rig._tasks.values()):
                await _ended(task)
            for driver in rig.drivers:
                await driver.close()


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
