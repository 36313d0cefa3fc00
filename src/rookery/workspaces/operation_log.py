"""The log of an operation while it is written: lines are collected, stored a few at a time, and told to followers."""

from __future__ import annotations

import asyncio
from uuid import UUID

from rookery.store import workspace_claims, workspaces
from rookery.store.hints import MiscHint
from rookery.workspaces.parts import WorkspaceParts

FLUSH_SECONDS = 0.25
MAX_LINE_CHARS = 4096


class OperationWriter:
    """A driver's `Log`. `running` stores what comes; nothing is lost that was said before it ended."""

    def __init__(self, parts: WorkspaceParts, workspace_id: UUID, operation_id: UUID) -> None:
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
        """Store lines as they come, until cancelled."""
        while True:
            await self._has_some.wait()
            await self._parts.clock.sleep(FLUSH_SECONDS, "operation-log")
            await self.flush()

    async def flush(self) -> None:
        self._has_some.clear()
        lines, self._lines = self._lines, []
        if not lines:
            return
        async with self._parts.pool.acquire() as conn:
            await workspace_claims.append_log(conn, self._operation_id, "".join(lines))
        topic = workspaces.topic(self._workspace_id)
        self._parts.publish([MiscHint(topic=topic, data={"operation": str(self._operation_id), "log": True})])

    async def close(self, task: asyncio.Task[None]) -> None:
        """End the task of `run` and store the rest."""
        task.cancel()
        await asyncio.wait({task})
        await self.flush()
