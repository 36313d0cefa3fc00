"""A recorder with a real writer and database, for tests of the recorded model and of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec

from rookery.debug.recorder import Limits, ModelFacts, Recorder, Run, RunFacts
from rookery.debug.redaction import Redactor
from rookery.debug.writer import Writer
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.domain.chat.states import State
from rookery.llm.types import Call
from rookery.runtime.clock import Clock, SystemClock
from rookery.store.db.hints import Hint
from rookery.store.debug.record_rows import RunKind
from tests.store.machine.machine_rig import Rig, make_rig

MODEL = ModelFacts(model_config_id=uuid4(), provider="words", model="words-1")


def call_of(*texts: str, **fields: Any) -> Call:
    """Return a call whose messages have these texts."""
    return Call(
        prompt=Prompt(tuple(PromptMessage(role=Role.USER, parts=(PromptText(text),)) for text in texts)), **fields
    )


@dataclass(kw_only=True)
class RecordingRig:
    rig: Rig
    writer: Writer
    recorder: Recorder
    chat_id: ChatId
    clock: Clock
    hints: list[Hint]

    async def facts(self, **fields: Any) -> RunFacts:
        chat = await self.rig.load(self.chat_id)
        last = await self.rig.last_id(self.chat_id)
        defaults: dict[str, Any] = {
            "chat_id": self.chat_id,
            "root_chat_id": self.chat_id,
            "parent_chat_id": None,
            "snapshot_version": chat.snapshot_version,
            "kind": RunKind.CHAT_TURN,
            "model": MODEL,
            "label": "hello",
            "trigger_message_id": last,
            "history_tip_message_id": last,
        }
        return RunFacts(**{**defaults, **fields})

    async def run(self, **fields: Any) -> Run:
        run = self.recorder.open(await self.facts(**fields))
        assert run is not None
        return run

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table after the queue is written, with decoded JSON."""
        await self.writer.flush()
        order = {"runs": "started_at, id", "steps": "step_number", "attempts": "number"}[table]
        records = await self.rig.pool.fetch(f"SELECT * FROM chat_debug_{table} ORDER BY {order}")
        return [{name: _decoded(name, value, table) for name, value in record.items()} for record in records]

    async def step(self) -> dict[str, Any]:
        (step,) = await self.rows("steps")
        return step


_JSON = ("summary", "normalized_request", "normalized_response", "usage", "metadata", "cache", "body_meta")


def _decoded(name: str, value: object, table: str) -> object:
    is_json = name in _JSON or (name == "error" and table == "steps")
    return msgspec.json.decode(value) if is_json and isinstance(value, str) else value


@asynccontextmanager
async def open_recording(
    database_url: str,
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
    max_bytes: int = 64 * 1024 * 1024,
    max_operations: int = 4096,
    connect: Callable[[], Awaitable[asyncpg.Connection]] | None = None,
    redactor: Redactor | None = None,
    is_running: bool = True,
) -> AsyncIterator[RecordingRig]:
    """Open a recorder. Without `is_running`, operations stay in the queue."""
    clock = clock or SystemClock()
    async with make_rig(database_url) as rig:
        hints: list[Hint] = []
        writer = Writer(
            connect or (lambda: asyncpg.connect(database_url)),
            clock=clock,
            publish=hints.extend,
            max_bytes=max_bytes,
            max_operations=max_operations,
        )
        recorder = Recorder(writer, replica_id=rig.worker, clock=clock, limits=limits, redactor=redactor)
        writing = asyncio.create_task(writer.run()) if is_running else None
        try:
            yield RecordingRig(
                rig=rig,
                writer=writer,
                recorder=recorder,
                chat_id=await rig.chat(State.R0),
                clock=clock,
                hints=hints,
            )
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
