"""Reads of whole runs for an export. Steps are read one by one, so that a long run needs little memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug import reads
from rookery.store.debug.rows import AttemptRow, RunRow, StepRow

MAX_EXPORTED_RUNS = 100


class ExportedStep(msgspec.Struct, frozen=True):
    step: StepRow
    attempts: Sequence[AttemptRow]


class ExportedRun:
    """A run whose steps are read on demand, while the connection is open."""

    __slots__ = ("_conn", "run")

    def __init__(self, conn: Connection, run: RunRow) -> None:
        self._conn = conn
        self.run = run

    async def steps(self) -> AsyncIterator[ExportedStep]:
        numbers: dict[UUID, list[int]] = {}
        for attempt in await reads.list_attempts(self._conn, self.run.id):
            numbers.setdefault(attempt.step_id, []).append(attempt.number)
        for summary in await reads.list_steps(self._conn, self.run.id):
            step = await reads.find_step(self._conn, self.run.id, summary.id)
            if step is None:
                continue  # deleted meanwhile
            found = [await reads.find_attempt(self._conn, step.id, number) for number in numbers.get(step.id, ())]
            yield ExportedStep(step, [attempt for attempt in found if attempt is not None])


async def list_exported(conn: Connection, chat_id: ChatId, run_id: UUID | None) -> list[ExportedRun]:
    """Return one run, or the newest `MAX_EXPORTED_RUNS` of a chat. The list is empty if there is no such run."""
    if run_id is None:
        runs: Sequence[RunRow] = (await reads.list_runs(conn, chat_id, limit=MAX_EXPORTED_RUNS)).runs
    else:
        found = await reads.find_run(conn, chat_id, run_id)
        runs = () if found is None else (found,)
    return [ExportedRun(conn, run) for run in runs]
