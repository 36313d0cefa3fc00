"""Debug records for tests of the store, written with its own functions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.debug import attempts, runs, steps
from rookery.store.debug.attempts import NewAttempt
from rookery.store.debug.record_rows import AttemptStatus, RunKind, StepStatus
from rookery.store.debug.runs import NewRun
from rookery.store.debug.steps import NewStep, StepEnd, StepRequest
from tests.store.machine.machine_rig import Rig

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class DebugRows:
    """Writes records of the chats of a rig, as the replica of its worker unless a test names another."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.pool = rig.pool

    async def new_run(self, chat_id: ChatId, **fields: Any) -> NewRun:
        """Return a run of the chat in its current state."""
        chat = await self.rig.load(chat_id)
        last = await self.rig.last_id(chat_id)
        defaults: dict[str, Any] = {
            "id": uuid4(),
            "chat_id": chat_id,
            "root_chat_id": chat.root_chat_id or chat.id,
            "parent_chat_id": chat.parent_chat_id,
            "replica_id": self.rig.worker,
            "snapshot_version": chat.snapshot_version,
            "kind": RunKind.CHAT_TURN,
            "started_at": NOON,
            "trigger_message_id": last,
            "history_tip_message_id": last,
        }
        return NewRun(**{**defaults, **fields})

    async def insert(self, run: NewRun) -> bool:
        async with self.pool.acquire() as conn:
            return await runs.insert_run(conn, run)

    async def run(self, chat_id: ChatId, **fields: Any) -> NewRun:
        run = await self.new_run(chat_id, **fields)
        assert await self.insert(run)
        return run

    async def step(self, run: NewRun, number: int = 1, **fields: Any) -> UUID:
        step = NewStep(
            **{
                "id": uuid4(),
                "run_id": run.id,
                "chat_id": run.chat_id,
                "step_number": number,
                "step_key": None,
                "epoch": 1,
                "operation": "stream",
                "history_tip_message_id": run.history_tip_message_id,
                "started_at": NOON,
                "request": StepRequest(),
                **fields,
            }
        )
        async with self.pool.acquire() as conn:
            assert await steps.insert_step(conn, step) is not None
        return step.id

    async def finish(
        self, step_id: UUID, status: StepStatus = StepStatus.COMPLETED, epoch: int = 1, **fields: Any
    ) -> bool:
        async with self.pool.acquire() as conn:
            end = StepEnd(status=status, finished_at=NOON, **fields)
            return await steps.finish_step(conn, step_id, epoch=epoch, end=end)

    async def attempt(self, step_id: UUID, run: NewRun, number: int = 1, **fields: Any) -> bool:
        attempt = NewAttempt(
            **{
                "number": number,
                "status": AttemptStatus.COMPLETED,
                "generation_attempt": 1,
                "method": "POST",
                "url": "https://api.example/v1/messages",
                "path": "/v1/messages",
                "request_headers": "{}",
                "request_body": None,
                "response_status": 200,
                "response_headers": "{}",
                "response_body": None,
                "body_meta": "{}",
                "error": None,
                "ttfb_ms": 5,
                "duration_ms": 9,
                "started_at": NOON,
                "finished_at": NOON,
                **fields,
            }
        )
        async with self.pool.acquire() as conn:
            return await attempts.write_attempt(conn, step_id, run.chat_id, attempt)

    async def value(self, statement: str, *args: object) -> Any:
        return await self.pool.fetchval(statement, *args)

    async def runs(self, chat_id: ChatId) -> set[UUID]:
        return {
            record[0] for record in await self.pool.fetch("SELECT id FROM chat_debug_runs WHERE chat_id = $1", chat_id)
        }

    async def row(self, table: str, row_id: UUID) -> dict[str, Any]:
        record = await self.pool.fetchrow(f"SELECT * FROM chat_debug_{table} WHERE id = $1", row_id)
        assert record is not None
        return dict(record)

    async def summary(self, run: NewRun) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode((await self.row("runs", run.id))["summary"])
        return found

    async def is_waiting(self) -> bool:
        """Return whether a statement waits for a lock."""
        return bool(await self.value(WAITS))


@asynccontextmanager
async def connection(rows: DebugRows) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
    async with rows.pool.acquire() as conn:
        yield conn
