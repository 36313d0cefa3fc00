"""The ledger of tool runs in the database, fenced by the task that runs the batch."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from rookery.domain.chat.chat import Fence
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.loop.tool import LedgerRun, LedgerState
from rookery.store.chats import tool_runs
from rookery.store.chats.tool_runs import RunStatus

_STATES = {
    RunStatus.STARTED: LedgerState.NEW,
    RunStatus.FINISHED: LedgerState.FINISHED,
    RunStatus.UNFINISHED: LedgerState.UNFINISHED,
}


class ToolLedger:
    def __init__(self, pool: asyncpg.Pool, fence: Fence) -> None:
        self._pool = pool
        self._fence = fence

    async def begin(self, token: UUID, *, chat_id: ChatId, message_id: int, call_id: str, tool_name: str) -> LedgerRun:
        """Record the start of a run. Raises `StaleFence`: a runner that lost its chat starts nothing."""
        call = tool_runs.Call(chat_id, MessageId(message_id), call_id, tool_name)
        async with self._pool.acquire() as conn:
            run = await tool_runs.begin(conn, call, fence=self._fence)
        return LedgerRun(_STATES[run.status], run.result.decode() if run.result else None)

    async def finish(self, token: UUID, content: str) -> None:
        async with self._pool.acquire() as conn:
            await tool_runs.finish(conn, token, result=content.encode())
