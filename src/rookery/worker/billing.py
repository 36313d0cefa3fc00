"""Billing of model calls: rows of the usage ledger, one per call, and figures of interrupted steps."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import MessageId, StepFigures
from rookery.live.part_buffer import EpisodeKey
from rookery.llm.types import Purpose, Usage
from rookery.models import cost
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.models.usage import CallStatus, Entry, is_recorded, record_call
from rookery.telemetry.log import get_logger
from rookery.worker.background_tasks import BackgroundTasks
from rookery.worker.config import WorkerConfig
from rookery.worker.prepare import Asked

log = get_logger("worker.billing")

# Chosen: the limit of one try, and how long the database may be unavailable before rows wait for the next failed call.
TRY_SECONDS = 30.0
RECORD_SECONDS = 24 * 3600.0
# Chosen: some megabytes.
MAX_WAITING = 10_000
# Chosen: the interrupt task asks within a moment; older entries were stopped for another reason.
MAX_STOPPED = 1000


def entry(
    chat: Chat,
    asked: Asked,
    usage: Usage,
    *,
    purpose: Purpose,
    status: CallStatus,
    runtime_ms: int | None = None,
    request_id: str | None = None,
    message_id: MessageId | None = None,
    at: datetime | None = None,
) -> Entry:
    ready = asked.ready
    return Entry(
        owner_id=chat.owner_id,
        chat_id=chat.id,
        message_id=message_id,
        purpose=purpose,
        provider_id=ready.provider.id,
        model_config_id=ready.config.id,
        model=ready.config.model,
        key_source=ready.key_source,
        status=status,
        input_tokens=usage.input,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        cache_write_1h_tokens=usage.cache_write_1h,
        output_tokens=usage.output,
        reasoning_tokens=usage.reasoning,
        total_tokens=usage.total,
        web_searches=usage.web_searches,
        context_tokens=usage.context_tokens,
        cost_micros=cost.cost_micros(usage, asked.prices),
        runtime_ms=runtime_ms or 0,
        request_id=request_id,
        at=at,
    )


class Ledger:
    """Writes ledger rows that no commit carries: those of calls that failed or were stopped.

    While the database is unavailable they wait in memory, at most `MAX_WAITING` of them; they are lost if the process
    ends before it is back. A row whose COMMIT was not answered is looked up before it is written again: a row has its
    timestamp from the start.
    """

    def __init__(self, pool: asyncpg.Pool, inflight: BackgroundTasks, *, config: WorkerConfig | None = None) -> None:
        self._pool = pool
        self._inflight = inflight
        self._clock = inflight.clock
        self._config = config or WorkerConfig()
        self._waiting: deque[Entry] = deque(maxlen=MAX_WAITING)
        self._is_writing = False

    def record(self, row: Entry) -> None:
        """Write the row in the background."""
        if len(self._waiting) == MAX_WAITING:
            log.warning("usage_not_recorded", rows=1, reason="Too many rows wait for the database.")
        self._waiting.append(row)
        if not self._is_writing:
            self._is_writing = True
            self._inflight.start(self._write_all, name="usage", seconds=RECORD_SECONDS)

    async def _write_all(self) -> None:
        row: Entry | None = None
        try:
            while self._waiting:
                row = self._waiting.popleft()
                await self._write(row)
                row = None
        finally:
            self._is_writing = False
            if lost := len(self._waiting) + (row is not None):
                log.warning("usage_not_recorded", rows=lost, reason="The process is stopping, or has no database.")

    async def _write(self, row: Entry) -> None:
        delay = self._config.task_backoff_seconds
        is_timed = row.at is not None
        row = msgspec.structs.replace(row, at=row.at or self._clock.now())
        while True:
            try:
                async with self._clock.deadline(TRY_SECONDS, "usage-write"), self._pool.acquire() as conn:
                    if not is_timed or not await is_recorded(conn, row):
                        await record_call(conn, row)
                return
            except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
                if row.chat_id is None:
                    log.warning("usage_not_recorded", rows=1, reason=str(error))
                    return
                # The chat is deleted; its owner's cost is still recorded.
                row = msgspec.structs.replace(row, chat_id=None, message_id=None)
                continue
            except DATABASE_ERRORS as error:
                log.info("usage_waits", rows=1 + len(self._waiting), error=str(error) or type(error).__name__)
            is_timed = True
            await self._clock.sleep(delay, "usage-retry")
            delay = min(2 * delay, self._config.task_backoff_max_seconds)


class Metered(NamedTuple):
    """The model that was called in a step, and its usage so far."""

    model_config_id: UUID
    figures: StepFigures


class Meters:
    """Usage so far of the running steps, for the interrupt task, which knows only their episode.

    A stopped step stays registered, because its task may end before the interrupt task asks.
    """

    def __init__(self) -> None:
        self._running: dict[EpisodeKey, Callable[[], Metered]] = {}
        self._stopped: OrderedDict[EpisodeKey, Metered] = OrderedDict()

    def begin(self, key: EpisodeKey, read: Callable[[], Metered]) -> None:
        self._running[key] = read

    def end(self, key: EpisodeKey, *, is_stopped: bool) -> None:
        read = self._running.pop(key)
        if not is_stopped:
            return
        self._stopped[key] = read()
        if len(self._stopped) > MAX_STOPPED:
            self._stopped.popitem(last=False)

    def find(self, key: EpisodeKey) -> Metered | None:
        running = self._running.get(key)
        return self._stopped.get(key) if running is None else running()
