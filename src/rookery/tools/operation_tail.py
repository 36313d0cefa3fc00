"""The live log of an operation that a tool waits for. It is a preview: nothing depends on it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from uuid import UUID

from rookery.loop.tool import ToolContext
from rookery.store.authorized.store import ActorStore
from rookery.telemetry.log import get_logger

log = get_logger("tools.operation_tail")

PACE_SECONDS = 0.5


class OperationTail:
    """A context manager that publishes new lines of the log."""

    def __init__(self, ctx: ToolContext, store: ActorStore, operation_id: UUID) -> None:
        self._ctx = ctx
        self._store = store
        self._operation_id = operation_id
        self._shown = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="operation-tail")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while not await self._show():
                await self._ctx.clock.sleep(PACE_SECONDS, "operation-tail")
        except Exception as error:
            log.info("operation_tail_ended", chat_id=self._ctx.chat_id, error=str(error) or type(error).__name__)

    async def _show(self) -> bool:
        """Publish new lines. Return whether the log is complete."""
        found = await self._store.workspaces.read_log(self._operation_id)
        whole = found.dropped + len(found.text)
        if whole > self._shown:
            self._ctx.publish(found.text[max(self._shown - found.dropped, 0) :])
            self._shown = whole
        return found.is_over
