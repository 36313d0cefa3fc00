"""Reads of debug records for tests of whole turns."""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.domain.chat.messages import ChatId
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig

_JSON = ("summary", "normalized_request", "normalized_response", "usage", "error", "metadata", "cache", "body_meta")


async def fetch(rig: WorkerRig, statement: str, *args: object) -> list[dict[str, Any]]:
    """Return rows with decoded JSON."""
    async with rig.database.api.acquire() as conn:
        records = await conn.fetch(statement, *args)
    return [
        {
            name: msgspec.json.decode(value) if name in _JSON and isinstance(value, str) else value
            for name, value in record.items()
        }
        for record in records
    ]


async def runs(rig: WorkerRig, chat_id: ChatId, *, kind: str | None = "chat_turn") -> list[dict[str, Any]]:
    """Return the runs of a chat in order, of one kind or of all."""
    return await fetch(
        rig,
        "SELECT * FROM chat_debug_runs WHERE chat_id = $1 AND ($2::text IS NULL OR kind = $2) ORDER BY started_at, id",
        chat_id,
        kind,
    )


async def steps(rig: WorkerRig, run: dict[str, Any]) -> list[dict[str, Any]]:
    return await fetch(rig, "SELECT * FROM chat_debug_steps WHERE run_id = $1 ORDER BY step_number", run["id"])


async def attempts(rig: WorkerRig, step: dict[str, Any]) -> list[dict[str, Any]]:
    return await fetch(rig, "SELECT * FROM chat_debug_attempts WHERE step_id = $1 ORDER BY number", step["id"])


async def written(rig: WorkerRig) -> None:
    """Wait until everything that was recorded so far is written."""
    for replica in rig.replicas:
        assert replica.debug is not None
        await replica.debug.writer.flush()


async def settled(rig: WorkerRig) -> None:
    """Wait until all runners and effects have ended and everything is written."""
    for replica in rig.replicas:
        await replica.worker.wait_idle()
        assert replica.debug is not None
        await replica.debug.writer.flush()


async def ended(rig: WorkerRig, chat_id: ChatId, *, count: int = 1) -> list[dict[str, Any]]:
    """Wait until this many turns of the chat are recorded to their end. Return their runs."""

    async def has_ended() -> bool:
        found = await runs(rig, chat_id)
        return len(found) >= count and all(run["finished_at"] is not None for run in found)

    await until(has_ended)
    return await runs(rig, chat_id)
