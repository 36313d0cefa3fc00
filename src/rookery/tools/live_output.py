"""Live output of a running command. It is a preview: nothing depends on it."""

from __future__ import annotations

import asyncio

from rookery.loop.tool import ToolContext
from rookery.telemetry.log import get_logger
from rookery.workspaces.connection import ChatWorkspace

log = get_logger("tools.live_output")

# A command that ends sooner is shown only by its result: most do, and polling costs something.
FIRST_SECONDS = 0.15
# Minimum interval between two polls of the output.
PACE_SECONDS = 0.1
WAIT_SECONDS = 30.0
# Limit of the live output of one command; the rest is only in the result.
MAX_BYTES = 256 * 1024


class LiveTail:
    """Polls and shows the output from its creation until it is stopped, or the process has ended."""

    def __init__(self, ctx: ToolContext, workspace: ChatWorkspace, process_id: str) -> None:
        self._ctx = ctx
        self._workspace = workspace
        self._process_id = process_id
        self._task = asyncio.create_task(self._run(), name="live-output")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._ctx.clock.sleep(FIRST_SECONDS, "live-output")
            await self._show()
        except Exception as error:
            # Viewers see the result when it is there.
            log.info("live_output_ended", chat_id=self._ctx.chat_id, error=str(error) or type(error).__name__)

    async def _show(self) -> None:
        cursor = shown = 0
        while shown < MAX_BYTES:
            conn = await self._workspace.conn()
            output = await conn.process_output(self._process_id, wait=WAIT_SECONDS, since=cursor)
            if output.output:
                self._ctx.publish(output.output)
                shown += len(output.output)
            cursor = output.cursor
            if not output.running:
                return
            await self._ctx.clock.sleep(PACE_SECONDS, "live-output")
