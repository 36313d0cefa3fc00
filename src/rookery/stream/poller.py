"""The sync poller: every ten seconds it posts the current state to all streams, to make up for lost hints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import NoReturn
from uuid import UUID

import asyncpg

from rookery.runtime.clock import Clock
from rookery.store.chats import stream_reads
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ChatHint
from rookery.stream.hint_inbox import Registry
from rookery.telemetry.log import get_logger

log = get_logger("stream.poller")

POLL_SECONDS = 10.0
# While hints do not arrive, polling is the only source of changes.
DEAF_POLL_SECONDS = 2.0
JITTER = 0.1
CHUNK = 5000
RECHECK_TICKS = 6


@dataclass(slots=True)
class PollerStats:
    ticks: int = 0
    queries: int = 0
    failed: int = 0


async def _nothing() -> None:
    return


class Poller:
    """`run` polls until canceled. `recheck` is called at every sixth tick to check access."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        registry: Registry,
        *,
        clock: Clock,
        rng: Random,
        recheck: Callable[[], Awaitable[None]] = _nothing,
        is_deaf: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._clock = clock
        self._rng = rng
        self._recheck = recheck
        self._is_deaf = is_deaf
        self._stats = PollerStats()

    def stats(self) -> PollerStats:
        return self._stats

    async def run(self) -> NoReturn:
        while True:
            seconds = DEAF_POLL_SECONDS if self._is_deaf() else POLL_SECONDS
            await self._clock.sleep(seconds * self._rng.uniform(1 - JITTER, 1 + JITTER), "stream-poll")
            try:
                await self.tick()
            except Exception as error:
                # The recheck or a row failed. The next tick polls all streams again.
                self._stats.failed += 1
                log.exception("poller_failed", error)

    async def tick(self) -> None:
        """Post the current state to every stream. The next tick makes up for a failed query."""
        self._stats.ticks += 1
        chat_ids = self._registry.chat_ids()
        try:
            for start in range(0, len(chat_ids), CHUNK):
                await self._poll(chat_ids[start : start + CHUNK])
        except DATABASE_ERRORS as error:
            self._stats.failed += 1
            log.warning("poll_failed", chats=len(chat_ids), error=str(error) or type(error).__name__)
        if self._stats.ticks % RECHECK_TICKS == 0:
            await self._recheck()

    async def _poll(self, chat_ids: list[UUID]) -> None:
        self._stats.queries += 1
        async with self._pool.acquire() as conn:
            found = await stream_reads.poll(conn, chat_ids)
        for hint in found:
            self._registry.post(hint)
        for chat_id in set(chat_ids) - {hint.chat_id for hint in found}:
            self._registry.post(gone(chat_id))


def gone(chat_id: UUID) -> ChatHint:
    """Return the hint for a chat without a row."""
    return ChatHint(
        chat_id=chat_id,
        snapshot_version=0,
        history_version=0,
        queue_version=0,
        retry_state_version=0,
        generation_attempt=0,
        status="",
        archived=False,
        worker_id=None,
        runner_id=None,
        gone=True,
    )
