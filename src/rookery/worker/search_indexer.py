"""Adds new messages to the search index soon after their commit.

Every replica gets the hint of every commit. Replicas share the work: each skips rows that another replica has locked.
If a hint was lost, the job `search_backfill` indexes the message.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

import asyncpg

from rookery.runtime.clock import Clock
from rookery.store.chats import search
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ChatHint
from rookery.store.db.pubsub import Bus
from rookery.telemetry.log import get_logger

# Chosen: a message is found within two seconds, and a busy replica makes one query a second.
COLLECT_SECONDS = 1.0

log = get_logger("worker.search_indexer")


class SearchIndexer:
    """Indexes pending messages at most once a second, and only after a hint that a chat has changed."""

    def __init__(self, pool: asyncpg.Pool, bus: Bus, *, clock: Clock) -> None:
        self._pool = pool
        self._bus = bus
        self._clock = clock
        self._has_changes = asyncio.Event()

    async def run(self) -> NoReturn:
        """Index messages until cancelled."""
        with self._bus.subscribe(ChatHint, lambda _: self._has_changes.set()):
            while True:
                await self._has_changes.wait()
                await self._clock.sleep(COLLECT_SECONDS, "search-indexer")
                self._has_changes.clear()
                await self._index()

    async def _index(self) -> None:
        try:
            async with self._pool.acquire() as conn:
                await search.backfill(conn)
        except DATABASE_ERRORS as error:
            # The messages stay pending. The next hint or the job indexes them.
            log.warning("messages_not_indexed", error=type(error).__name__)
