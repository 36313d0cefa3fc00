"""The log of a running operation: collects lines, stores them in batches, and publishes hints about them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import MiscHint
from rookery.store.workspaces import operation_claims, workspaces
from rookery.telemetry.log import get_logger
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.operation_executor")
FLUSH_SECONDS = 0.25
MAX_LINE_CHARS = 4096


class OperationWriter:
    """The `Log` of a driver. `run` stores lines as they arrive. `close` stores the remaining lines."""

    def __init__(self, parts: WorkspaceServices, workspace_id: UUID, operation_id: UUID) -> None:
        self._parts = parts
        self._workspace_id = workspace_id
        self._operation_id = operation_id
        self._lines: list[str] = []
        self._has_some = asyncio.Event()

    def __call__(self, line: str, /) -> None:
        at = self._parts.clock.now().strftime("%H:%M:%S")
        self._lines.append(f"{at} {line.rstrip()[:MAX_LINE_CHARS]}\n")
        self._has_some.set()

    async def run(self) -> None:
        """Store lines as they arrive, until the task is canceled."""
        while True:
            await self._has_some.wait()
            await self._parts.clock.sleep(FLUSH_SECONDS, "operation-log")
            try:
                await self.flush()
            except DATABASE_ERRORS as error:
                log.warning("operation_log_not_stored", operation_id=self._operation_id, error=str(error))

    async def flush(self) -> None:
        self._has_some.clear()
        lines, self._lines = self._lines, []
        if not lines:
            return
        is_stored = False
        try:
            async with self._parts.pool.acquire() as conn:
                await operation_claims.append_log(conn, self._operation_id, "".join(lines))
                is_stored = True
        finally:
            if not is_stored:
                # The lines are stored by a later flush.
                self._lines[:0] = lines
                self._has_some.set()
        topic = workspaces.topic(self._workspace_id)
        self._parts.publish([MiscHint(topic=topic, data={"operation": str(self._operation_id), "log": True})])

    async def close(self, task: asyncio.Task[None]) -> None:
        """Cancel the task of `run`, and store the remaining lines."""
        task.cancel()
        await asyncio.wait({task})
        await self.flush()
