"""Billing of model calls: one row of the usage ledger per call, and the figures of interrupted steps."""

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
from rookery.store.models.usage_ledger import CallStatus, Entry, is_recorded, record_call
from rookery.telemetry.log import get_logger
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.step_preparation import ConnectedModel

log = get_logger("worker.billing")

# The limit of one try to write a row.
TRY_SECONDS = 30.0
# The limit of all tries. After that, rows wait until the next call is recorded.
RECORD_SECONDS = 24 * 3600.0
# Waiting rows take some megabytes at most.
MAX_WAITING = 10_000
# The interrupt task reads an entry within a moment. Older entries were stopped for another reason.
MAX_STOPPED = 1000
# For the cost of answers that were stopped. Chosen: common for English text and code.
CHARS_PER_TOKEN = 4


def stopped_usage(reported: Usage, *, prompt_tokens: int, cached_tokens: int, written: int) -> Usage:
    """Return the usage of a stopped call. Numbers that the provider has not reported yet are estimated.

    Providers bill such a call, and most of them report its tokens only at the end. `cached_tokens` of the prompt are
    expected in the provider's cache. `written` is the number of characters of the answer.
    """
    output = max(reported.output or 0, written // CHARS_PER_TOKEN)
    cached = min(cached_tokens, prompt_tokens)
    if reported.input or reported.cache_read or reported.cache_write:
        told = reported
    else:
        told = msgspec.structs.replace(reported, input=prompt_tokens - cached, cache_read=cached or None)
    return told if output == (told.output or 0) else msgspec.structs.replace(told, output=output, total=None)


def entry(
    chat: Chat,
    connected: ConnectedModel,
    usage: Usage,
    *,
    purpose: Purpose,
    status: CallStatus,
    runtime_ms: int | None = None,
    request_id: str | None = None,
    message_id: MessageId | None = None,
    at: datetime | None = None,
) -> Entry:
    """Return the row of the usage ledger for a call of a chat."""
    return msgspec.structs.replace(
        connected.ready.usage_entry(usage, owner_id=chat.owner_id, chat_id=chat.id, purpose=purpose, status=status),
        message_id=message_id,
        cost_micros=cost.cost_micros(usage, connected.prices),
        runtime_ms=runtime_ms or 0,
        request_id=request_id,
        at=at,
    )


class Ledger:
    """Writes the ledger rows of calls that failed or were stopped. No commit contains these calls.

    While the database is unavailable, at most `MAX_WAITING` rows wait in memory; they are lost if the process ends. If
    the outcome of a COMMIT is unknown, the row is searched by its timestamp before it is written again.
    """

    def __init__(self, pool: asyncpg.Pool, inflight: FollowUpWork, *, config: WorkerConfig | None = None) -> None:
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
                # The chat was deleted. The cost is recorded for its owner.
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
    """The usage of running steps by episode, for the interrupt task.

    A stopped step stays registered, because its own task may end before the interrupt task has read the usage.
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
