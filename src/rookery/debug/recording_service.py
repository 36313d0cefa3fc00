"""The recording service of a process: the writer, the recorder, heartbeats of open runs, and deletion of removed
records.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg

from rookery.debug.recorder import Limits, Recorder
from rookery.debug.recording_policy import Policy
from rookery.debug.redaction import Redactor
from rookery.debug.stats import DebugStats, Result
from rookery.debug.turn_recording import Recordings
from rookery.debug.writer import MAX_BYTES, Connect, Publish, Writer
from rookery.runtime.clock import Clock
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import MiscHint
from rookery.store.db.pubsub import Bus
from rookery.store.debug import recording_state, run_cleanup
from rookery.telemetry.log import get_logger

log = get_logger("debug.recording_service")

BEAT_SECONDS = 30.0
# Limit of a beat, and of the deletion of the records of one chat.
STATEMENT_SECONDS = 20.0


class RecordingService:
    """The recording service of one process. `run` runs until it is cancelled. Call `close` first, which writes the
    queue.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        connect: Connect,
        *,
        replica_id: UUID,
        policy: Policy,
        bus: Bus,
        publish: Publish,
        clock: Clock,
        redactor: Redactor | None = None,
        limits: Limits | None = None,
        queue_bytes: int = MAX_BYTES,
    ) -> None:
        self.stats = DebugStats()
        self.writer = Writer(connect, clock=clock, publish=publish, stats=self.stats, max_bytes=queue_bytes)
        self.recorder = Recorder(self.writer, replica_id=replica_id, clock=clock, redactor=redactor, limits=limits)
        self.recordings = Recordings(self.recorder, policy, stats=self.stats)
        self._pool = pool
        self._bus = bus
        self._clock = clock
        self._removed: set[UUID] = set()
        self._has_removed = asyncio.Event()

    async def run(self) -> None:
        with self._bus.subscribe(MiscHint, self._on_removed, key=recording_state.REMOVED_TOPIC):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.writer.run(), name="debug-writer")
                group.create_task(self._beat(), name="debug-beat")
                group.create_task(self._delete_removed(), name="debug-removal")

    async def close(self) -> None:
        await self.writer.close()

    async def _beat(self) -> None:
        async for _ in self._clock.ticker(BEAT_SECONDS, "debug-beat"):
            if not (runs := self.recorder.open_runs):
                continue
            try:
                async with self._clock.deadline(STATEMENT_SECONDS, "debug-statement"), self._pool.acquire() as conn:
                    await run_cleanup.beat(conn, runs)
                self.stats.operations["beat", Result.OK] += 1
            except DATABASE_ERRORS as error:
                self.stats.operations["beat", Result.FAILED] += 1
                log.warning("debug_beat_failed", runs=len(runs), error=str(error) or type(error).__name__)

    def _on_removed(self, hint: MiscHint) -> None:
        try:
            self._removed.add(UUID(str(hint.data.get("chat_id"))))
        except ValueError:
            return
        self._has_removed.set()

    async def _delete_removed(self) -> None:
        """Delete records that an edit or archive has removed. If this fails, the job `debug_sweep` deletes them."""
        while True:
            await self._has_removed.wait()
            self._has_removed.clear()
            while self._removed:
                chat_id = self._removed.pop()
                try:
                    async with self._clock.deadline(STATEMENT_SECONDS, "debug-statement"), self._pool.acquire() as conn:
                        await recording_state.delete_removed(conn, chat_id)
                    self.stats.operations["delete", Result.OK] += 1
                except DATABASE_ERRORS as error:
                    self.stats.operations["delete", Result.FAILED] += 1
                    log.info("debug_records_not_deleted", chat_id=chat_id, error=str(error) or type(error).__name__)
