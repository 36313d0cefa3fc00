"""What calls of steps cost: rows of the usage ledger, one for each call, and figures of steps that were stopped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import asyncpg

from rookery.chat.chats import Chat
from rookery.chat.messages import MessageId, StepFigures
from rookery.llm import cost
from rookery.llm.types import Purpose, Usage
from rookery.store.usage import CallStatus, Entry, record_call
from rookery.worker.inflight import InFlight
from rookery.worker.parts import EpisodeKey
from rookery.worker.prepare import Asked

RECORD_SECONDS = 30.0
# Chosen: a chat that is interrupted asks within a moment; what is older was stopped for another reason.
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
    )


class Ledger:
    """Writes rows that no commit carries: of calls that came to nothing."""

    def __init__(self, pool: asyncpg.Pool, inflight: InFlight) -> None:
        self._pool = pool
        self._inflight = inflight

    def record(self, row: Entry) -> None:
        """Without waiting; the process sees it out."""
        self._inflight.start(lambda: self._write(row), name="usage", seconds=RECORD_SECONDS)

    async def _write(self, row: Entry) -> None:
        async with self._pool.acquire() as conn:
            await record_call(conn, row)


class Metered(NamedTuple):
    """Who was asked in a step, and what is known of its usage by now."""

    model_config_id: UUID
    figures: StepFigures


class Meters:
    """What the steps at work have used so far, for the task that interrupts them: it knows only their episode.

    A step that was stopped stays known, because its task may be gone before that one asks.
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
