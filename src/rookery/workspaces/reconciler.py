"""The reconciler of a node: compares the rows of workspaces with running sandboxes, and corrects differences.

At the start and every 30 s, it probes running workspaces and stops sandboxes without a row. Every minute it stops idle
workspaces and deletes abandoned ones.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import NoReturn

from rookery.runtime.clock import DeadlineExceeded
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.settings.limit_settings import read_workspace_settings
from rookery.store.workspaces import idle_deadlines, lifecycle_requests, operation_claims, workspaces
from rookery.store.workspaces.operation_claims import DownResult
from rookery.store.workspaces.workspaces import AgentState, Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.drivers.driver_interface import DriverError, Found, Inventory, Probe
from rookery.workspaces.readiness import Readiness
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.reconciler")

RECONCILE_SECONDS = 30.0
IDLE_SECONDS = 60.0
SILENT = timedelta(seconds=30)
PROBE_SECONDS = 15.0
# Checks run concurrently, because a workspace that does not respond takes seconds.
MAX_CHECKS = 4

_ERRORS = (*DATABASE_ERRORS, DriverError)
NODE_RESTARTED = DownResult(Status.STOPPED, "The machine of this workspace was restarted.", "node_restarted")
AGENT_EXITED = DownResult(Status.FAILED, "The workspace agent has ended unexpectedly.", "agent_exited")


class Reconciler:
    def __init__(self, parts: WorkspaceServices, readiness: Readiness) -> None:
        self._parts = parts
        self._readiness = readiness

    async def run(self) -> NoReturn:
        await self._attempt()
        async for _ in self._parts.clock.ticker(RECONCILE_SECONDS, "reconcile"):
            await self._attempt()
        raise AssertionError("unreachable")

    async def run_idle(self) -> NoReturn:
        async for _ in self._parts.clock.ticker(IDLE_SECONDS, "workspace-idle"):
            try:
                await self.stop_idle()
            except _ERRORS as error:
                log.warning("idle_not_stopped", error=str(error))
        raise AssertionError("unreachable")

    async def _attempt(self) -> None:
        try:
            await self.reconcile()
        except _ERRORS as error:
            log.warning("workspaces_not_reconciled", error=str(error))
        except Exception as error:
            log.exception("workspaces_not_reconciled", error)

    async def reconcile(self) -> bool:
        """Run one round. Return False if another replica of this node runs it."""
        parts = self._parts
        async with parts.pool.acquire() as conn, operation_claims.node_lock(conn, parts.node) as is_mine:
            if not is_mine:
                return False
            node_since = await operation_claims.find_node_start(conn, parts.node)
            # Listed before the rows, because a sandbox is started only after its row exists.
            found = await self._inventory()
            up = await workspaces.list_up(conn, node=parts.node)
            parts.stats.workspaces = await workspaces.count_by_status(conn)
        await self._stop_strays(found, {str(each.id): each for each in up})
        slots = asyncio.Semaphore(MAX_CHECKS)
        async with asyncio.TaskGroup() as group:
            for workspace in up:
                if workspace.status == Status.RUNNING:
                    group.create_task(self._check_limited(workspace, node_since, slots))
        return True

    async def _inventory(self) -> list[tuple[Inventory, Found]]:
        found: list[tuple[Inventory, Found]] = []
        for inventory in self._parts.inventories:
            found += [(inventory, each) for each in await inventory.list_running()]
        return found

    async def _stop_strays(self, found: list[tuple[Inventory, Found]], up: dict[str, Workspace]) -> None:
        for inventory, sandbox in found:
            row = up.get(sandbox.workspace_id)
            if row is not None and (row.generation == sandbox.generation or row.status != Status.RUNNING):
                continue  # it matches its row, or an operation is changing it
            log.warning(
                "stray_sandbox_stopped",
                workspace_id=sandbox.workspace_id,
                generation=sandbox.generation,
                pid=sandbox.pid,
            )
            try:
                await inventory.stop_stray(sandbox)
            except DriverError as error:
                # The next round tries again. Other sandboxes are not affected.
                log.warning("stray_sandbox_not_stopped", workspace_id=sandbox.workspace_id, error=str(error))

    async def _check_limited(self, workspace: Workspace, node_since: datetime | None, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._check(workspace, node_since)
            except _ERRORS as error:
                log.warning("workspace_not_looked_at", workspace_id=workspace.id, error=str(error))

    async def _check(self, workspace: Workspace, node_since: datetime | None) -> None:
        parts = self._parts
        try:
            probe = await self._probe(workspace)
        except (DriverError, DeadlineExceeded) as error:
            # The state is unknown. A machine that is not reachable by ssh may be back soon.
            log.warning("workspace_not_probed", workspace_id=workspace.id, error=str(error))
            probe = Probe(alive=True, answers=False)
        if not probe.alive:
            await self._mark_lost(workspace, NODE_RESTARTED if _is_from_before(workspace, node_since) else AGENT_EXITED)
            return
        health = await parts.find_health(workspace)
        if health is not None:
            await self._readiness.store_report(workspace, health)
        elif _is_silent(workspace, now=parts.clock.now()):
            async with parts.pool.acquire() as conn:
                if await operation_claims.record_agent_state(
                    conn, workspace.id, workspace.generation, agent_state=AgentState.UNREACHABLE
                ):
                    await parts.publish_change(conn, await workspaces.get_workspace(conn, workspace.id))

    async def _probe(self, workspace: Workspace) -> Probe:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            spec = await parts.specs.for_access(conn, workspace)
        async with parts.clock.deadline(PROBE_SECONDS, "workspace-probe"):
            return await parts.driver(workspace.driver).probe(spec)

    async def _mark_lost(self, workspace: Workspace, down: DownResult) -> None:
        parts = self._parts
        async with parts.pool.acquire() as conn:
            lost = await operation_claims.mark_down(conn, workspace, down, now=parts.clock.now())
            if lost is not None:
                log.warning("workspace_lost", workspace_id=workspace.id, status=lost.status, code=lost.error_code)
                await parts.publish_change(conn, lost)

    async def stop_idle(self) -> int:
        """Stop idle workspaces and delete abandoned ones. Return how many. Each is checked again under its row lock."""
        parts = self._parts
        now = parts.clock.now()
        async with parts.pool.acquire() as conn:
            settings = await read_workspace_settings(conn)
            await idle_deadlines.touch_busy(conn, now=now)
            idle_ids = await idle_deadlines.list_idle(conn, settings, now=now)
            done = [await idle_deadlines.stop_idle(conn, each, settings, now=now) for each in idle_ids]
            if settings.delete_after_stopped_days:
                before = now - timedelta(days=settings.delete_after_stopped_days)
                abandoned = await idle_deadlines.list_abandoned(conn, stopped_before=before)
                done += [await idle_deadlines.delete_abandoned(conn, each, stopped_before=before) for each in abandoned]
            made = [each for each in done if each is not None and each.is_new]
            for each in made:
                parts.publish(await lifecycle_requests.hints_of(conn, each))
        return len(made)


def _is_silent(workspace: Workspace, *, now: datetime) -> bool:
    seen = workspace.last_seen_at or workspace.started_at
    return seen is None or now - seen >= SILENT


def _is_from_before(workspace: Workspace, node_since: datetime | None) -> bool:
    """Return whether the workspace was last seen before any current replica of its node started.

    This means that the node has restarted.
    """
    seen = workspace.last_seen_at or workspace.started_at
    return node_since is not None and seen is not None and seen < node_since
