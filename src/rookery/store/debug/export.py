"""Reads of whole runs for an export. Steps are read one by one, so that a long run needs little memory.

Each step is read on a connection that is taken only for it, because a client may be slow to receive what was read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection
from rookery.store.debug import record_reads
from rookery.store.debug.record_rows import AttemptRow, RunRow, StepRow

MAX_EXPORTED_RUNS = 100

Acquire = Callable[[], AbstractAsyncContextManager[Connection]]


class ExportedStep(msgspec.Struct, frozen=True):
    step: StepRow
    attempts: Sequence[AttemptRow]


class ExportedRun:
    """A run whose steps are read on demand."""

    __slots__ = ("_acquire", "run")

    def __init__(self, acquire: Acquire, run: RunRow) -> None:
        self._acquire = acquire
        self.run = run

    async def steps(self) -> AsyncIterator[ExportedStep]:
        async with self._acquire() as conn:
            summaries = await record_reads.list_steps(conn, self.run.id)
        for summary in summaries:
            async with self._acquire() as conn:
                step = await record_reads.find_step(conn, self.run.id, summary.id)
                attempts = await record_reads.list_exchanges(conn, summary.id)
            if step is not None:  # otherwise it was deleted meanwhile
                yield ExportedStep(step, attempts)


async def list_exported(
    conn: Connection, chat_id: ChatId, run_id: UUID | None, *, acquire: Acquire
) -> list[ExportedRun]:
    """Return one run, or the newest `MAX_EXPORTED_RUNS` of a chat. The list is empty if there is no such run."""
    if run_id is None:
        runs: Sequence[RunRow] = (await record_reads.list_runs(conn, chat_id, limit=MAX_EXPORTED_RUNS)).runs
    else:
        found = await record_reads.find_run(conn, chat_id, run_id)
        runs = () if found is None else (found,)
    return [ExportedRun(acquire, run) for run in runs]
