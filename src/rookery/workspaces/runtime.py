"""Everything about workspaces that lives as long as a replica, and the loops it needs."""

from __future__ import annotations

import asyncio
from typing import Any

from rookery.log import get_logger
from rookery.workspaces import shipped
from rookery.workspaces.drivers import announcing
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.operations import Executor
from rookery.workspaces.parts import WorkspaceParts
from rookery.workspaces.places import StorePlaces
from rookery.workspaces.reconciler import Reconciler
from rookery.workspaces.service import Workspaces

log = get_logger("workspaces")


class WorkspaceRuntime:
    def __init__(self, parts: WorkspaceParts) -> None:
        self.parts = parts
        self.service = Workspaces(parts)
        self.places = StorePlaces(parts)
        self.executor = Executor(parts)
        self.reconciler = Reconciler(parts, self.executor.readiness)

    def start(self, group: asyncio.TaskGroup, *, is_server: bool) -> list[asyncio.Task[Any]]:
        """The loops of this replica. A command carries out operations while it lives, and looks after nothing else."""
        loops: list[asyncio.Task[Any]] = [group.create_task(self.executor.run(), name="workspace-operations")]
        if is_server:
            loops += [
                group.create_task(self._push_templates(), name="templates"),
                group.create_task(announcing.announce(self.parts.drivers.values()), name="workspace-machine"),
                group.create_task(self.reconciler.run(), name="workspace-reconciler"),
                group.create_task(self.reconciler.run_idle(), name="workspace-idle"),
            ]
        return loops

    async def close(self) -> None:
        await self.places.close()
        for driver in self.parts.drivers.values():
            if isinstance(driver, SshDriver):
                await driver.close()

    async def _push_templates(self) -> None:
        """Templates that come with Rookery. A failure leaves those of the version before."""
        try:
            async with self.parts.pool.acquire() as conn:
                await shipped.push(conn, self.parts.publisher)
        except Exception as error:
            log.exception("templates_not_pushed", error)
