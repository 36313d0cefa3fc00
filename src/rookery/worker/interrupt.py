"""The interrupt task: saves the output of the interrupted step, and ends the turn or starts the next queued message.

The interruption must succeed even if the output cannot be saved: rows that cannot be stored are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from rookery.domain.chat import agent_reports, compaction, history, interrupted_step
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import NewMessage, StepFigures
from rookery.domain.chat.parts import ToolCall, ToolResult
from rookery.domain.chat.transitions import Transition
from rookery.live.part_buffer import EpisodeKey, PartBuffer
from rookery.loop.step_rows import stopped_row
from rookery.runtime.clock import Clock
from rookery.store.chats import subagents
from rookery.store.chats.step_reads import HistoryCache, Step, load_step
from rookery.store.debug.record_rows import RunStatus
from rookery.store.machine import Machine, Tx, finish_interruption
from rookery.telemetry.log import get_logger
from rookery.worker import commit_shield
from rookery.worker.billing import Meters
from rookery.worker.stats import INTERRUPTED, WorkerStats
from rookery.worker.tasks import TaskError, TaskHandle
from rookery.worker.turn_end_effects import Effects
from rookery.worker.turn_traces import TurnTraces

log = get_logger("worker.interrupt")

# How long to wait for the result of a stopped tool: longer than a command may take to end (`tools/process.py`).
STOPPED_SECONDS = 4.0


class InterruptWork:
    """The interrupt task. Any replica can run it, but only the replica that ran the step can save its output."""

    def __init__(
        self,
        machine: Machine,
        buffer: PartBuffer,
        *,
        meters: Meters,
        cache: HistoryCache,
        clock: Clock,
        effects: Effects,
        stats: WorkerStats,
        traces: TurnTraces,
    ) -> None:
        self._machine = machine
        self._buffer = buffer
        self._meters = meters
        self._cache = cache
        self._clock = clock
        self._effects = effects
        self._stats = stats
        self._traces = traces

    async def __call__(self, handle: TaskHandle) -> None:
        chat_id, fence = handle.input.chat_id, handle.input.fence()
        step = await handle.read(lambda: load_step(self._machine, chat_id, fence=fence, cache=self._cache))
        await handle.wait_for_stopped(STOPPED_SECONDS)
        partial = await self._partial(step) or _mark(step)
        try:
            await self._finish(handle, step, partial=partial)
        except Exception as error:
            if not partial or not _is_about_content(error):
                raise
            log.exception("partial_not_kept", error, chat_id=chat_id)
            await self._finish(handle, step, partial=())

    async def _finish(self, handle: TaskHandle, step: Step, *, partial: Sequence[NewMessage]) -> None:
        ends = agent_reports.told_ends(partial)

        async def finish(tx: Tx) -> tuple[Chat, bool]:
            done = await finish_interruption(tx, partial)
            await subagents.tell_by_wait(tx.conn, tx.chat.id, ends)
            return tx.chat, done.promoted is not None

        async def finish_and_tell() -> None:
            chat, is_promoted = await handle.update(finish, transition=Transition.FINISH_INTERRUPTION)
            handle.debug.finish(RunStatus.INTERRUPTED)
            self._effects.interrupted(chat, is_promoted=is_promoted)
            self._stats.turn_ended(INTERRUPTED, step, now=self._clock.now())
            self._traces.end(chat.id, INTERRUPTED)

        await commit_shield.run_to_end(finish_and_tell())

    async def _partial(self, step: Step) -> tuple[NewMessage, ...]:
        """Close the episode of the interrupted step and return its rows."""
        chat = step.chat
        key = EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)
        metered = self._meters.find(key)
        invoked_at = self._buffer.model_invoked_at(key)
        draft = self._buffer.close_episode(key)
        at = self._clock.now()
        kept = [live for live in draft or () if not _is_of_compaction(live)]
        if not kept:
            return ()
        figures = StepFigures() if metered is None else metered.figures

        def fold() -> tuple[NewMessage, ...]:
            return interrupted_step.rows(
                kept,
                at=at,
                model_config_id=chat.last_model_config_id if metered is None else metered.model_config_id,
                figures=msgspec.structs.replace(figures, runtime_ms=_milliseconds(invoked_at, at)),
                committed=history.read(step.history.rows).open_calls,
            )

        try:
            # This runs in a thread, because a draft may hold megabytes and a turn a thousand steps.
            return await asyncio.to_thread(fold)
        except Exception as error:
            log.exception("draft_unreadable", error, chat_id=chat.id)
            return ()


def _mark(step: Step) -> tuple[NewMessage, ...]:
    """Return the mark for a turn that was stopped before an answer, if no other row shows that it was stopped."""
    read = history.read(step.history.rows)
    # The closures of open calls say it. After a complete answer, only a summary was stopped.
    return () if read.open_calls or read.ends_in_answer else (stopped_row(),)


def _is_about_content(error: Exception) -> bool:
    """Return whether another attempt with the same rows would fail again.

    This is false for a lost fence and an unavailable database, and true for a statement that timed out.
    """
    if not isinstance(error, TaskError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, asyncpg.QueryCanceledError):
            return True
        cause = cause.__cause__
    return False


def _is_of_compaction(live: LivePart) -> bool:
    """Return whether the part belongs to a compaction. Such parts are dropped: an unfinished summary is not stored."""
    return isinstance(live.part, ToolCall | ToolResult) and live.part.tool_name == compaction.TOOL_NAME


def _milliseconds(start: datetime | None, end: datetime) -> int | None:
    return None if start is None else round((end - start).total_seconds() * 1000)
