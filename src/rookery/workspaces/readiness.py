"""The readiness of started workspaces: follows the startup script until it ends, and stores its log.

The operation has already succeeded: the agent responds, and tools may use it. If this replica dies, the reconciler
stores the result of the script.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.workspaces import operation_claims, workspaces
from rookery.store.workspaces.workspaces import SCRIPT_ENDED, AgentState, Status, Workspace
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_messages import Health
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.operation_log import OperationWriter
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.readiness")

ASK_SECONDS = 1.0
# Longer than every time limit of a startup script, in case the agent does not stop the script.
FOLLOW_SECONDS = 3660.0
# The share of the disk above which there is a warning.
NEARLY_FULL = 0.9
MEBIBYTE = 1024 * 1024

_ERRORS = (*DATABASE_ERRORS, DriverError)


class Readiness:
    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, workspace: Workspace, operation_id: UUID, *, is_logged: bool = False) -> None:
        """Follow the workspace until the script is over. With `is_logged` its log is already stored."""
        following = self._follow(workspace, operation_id, is_logged=is_logged)
        task = asyncio.create_task(following, name=f"readiness:{workspace.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def log_result(self, workspace: Workspace, writer: OperationWriter, health: Health) -> None:
        """Write the output of a finished script and its result to the log."""
        await self._copy_log(workspace, writer, 0)
        _log_script_result(writer, health)

    async def _follow(self, workspace: Workspace, operation_id: UUID, *, is_logged: bool) -> None:
        writer = OperationWriter(self._parts, workspace.id, operation_id)
        until = self._parts.clock.monotonic() + FOLLOW_SECONDS
        try:
            cursor = 0
            while self._parts.clock.monotonic() < until:
                health = await self._parts.find_health(workspace)
                if not is_logged:
                    cursor = await self._copy_log(workspace, writer, cursor)
                if health is not None:
                    if health.agent_state in SCRIPT_ENDED and not is_logged:
                        # Stored before the state, because readers of the log stop then.
                        _log_script_result(writer, health)
                        await writer.flush()
                    if await self.store_report(workspace, health):
                        await self._parts.on_ready(workspace)
                        return
                if not await self._is_current(workspace):
                    return
                await self._parts.clock.sleep(ASK_SECONDS, "workspace-readiness")
        except _ERRORS as error:
            log.warning("workspace_not_followed", workspace_id=workspace.id, error=str(error))
        except Exception as error:
            log.exception("workspace_not_followed", error, workspace_id=workspace.id)

    async def _copy_log(self, workspace: Workspace, writer: OperationWriter, cursor: int) -> int:
        """Copy new output of the script to the log, and return the new cursor. Errors of the agent are ignored."""
        try:
            async with self._parts.connected(workspace) as agent:
                log_part = await agent.script_log(since=cursor)
        except (WorkspaceError, DriverError):
            return cursor
        for line in log_part.output.splitlines():
            writer(f"startup: {line}")
        await writer.flush()
        return log_part.cursor

    async def store_report(self, workspace: Workspace, health: Health) -> bool:
        """Store the health report of an agent. Return whether its startup script is over."""
        state = health.agent_state if health.agent_state in set(AgentState) else AgentState.STARTING
        async with self._parts.pool.acquire() as conn:
            has_changed = await operation_claims.record_agent_state(
                conn,
                workspace.id,
                workspace.generation,
                agent_state=state,
                exit_code=health.startup_exit_code,
                seen_at=self._parts.clock.now(),
                disk_warning=disk_warning(health),
            )
            if has_changed:
                await self._parts.publish_change(conn, await workspaces.get_workspace(conn, workspace.id))
        return state in SCRIPT_ENDED

    async def _is_current(self, workspace: Workspace) -> bool:
        async with self._parts.pool.acquire() as conn:
            found = await workspaces.find_workspace(conn, workspace.id)
        return found is not None and (found.status, found.generation) == (Status.RUNNING, workspace.generation)


def disk_warning(health: Health) -> str | None:
    """Return the disk warning; None if there is enough space.

    Percentages are whole numbers, so that the text changes rarely.
    """
    if health.disk_limit <= 0 or health.disk_used < NEARLY_FULL * health.disk_limit:
        return None
    percent = min(health.disk_used * 100 // health.disk_limit, 999)
    return f"The disk of the workspace is nearly full: {percent}% of {health.disk_limit // MEBIBYTE} MiB are used."


def _log_script_result(writer: OperationWriter, health: Health) -> None:
    match health.agent_state:
        case AgentState.SCRIPT_FAILED:
            writer(f"The startup script failed with exit code {health.startup_exit_code}. The workspace is usable.")
        case AgentState.SCRIPT_TIMEOUT:
            writer("The startup script took too long and was ended. The workspace is usable.")
        case _:
            writer("The workspace is ready.")
