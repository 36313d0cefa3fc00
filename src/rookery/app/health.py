"""The health of a replica: whether it should get requests and take chats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from rookery.runtime import replica_slots
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.pool import Database
from rookery.store.db.pubsub import Listener
from rookery.store.db.replica_presence import Presence
from rookery.telemetry.loop_lag import LagMonitor
from rookery.worker.config import WorkerConfig

READY_QUERY_SECONDS = 2.0
LISTENER_DOWN_SECONDS = 5.0
LAG_SECONDS = 1.0


class ReplicaHealth:
    """Whether this replica should get requests, and whether its worker should take chats."""

    def __init__(
        self,
        database: Database,
        listener: Listener,
        presence: Presence,
        lag: LagMonitor,
        *,
        data_dir: Path | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._database = database
        self._listener = listener
        self._presence = presence
        self._lag = lag
        self.stopping = False

    async def checks(self) -> Mapping[str, str]:
        listens = self._listener.connected or self._listener.down_seconds() < LISTENER_DOWN_SECONDS
        return {
            "database": await self._query(),
            "listener": "ok" if listens else "not connected",
            "presence": "ok" if self._presence.held else "not held",
            "event_loop": "ok" if self._lag.lag_seconds < LAG_SECONDS else "late",
        }

    async def slots(self) -> Sequence[Mapping[str, object]]:
        if self._data_dir is None:
            return ()
        found = await asyncio.to_thread(replica_slots.read, self._data_dir)
        return [{"index": slot.index, "state": str(slot.state), "deaths": slot.deaths} for slot in found]

    def is_fit(self, limits: WorkerConfig) -> bool:
        """Return whether the replica may take more chats: it is alive, and keeps up with those it has."""
        return (
            self._presence.held
            and self._lag.usual_seconds < limits.max_lag_seconds
            and self._database.worker.waits.current_seconds < limits.max_pool_wait_seconds
        )

    async def _query(self) -> str:
        try:
            async with asyncio.timeout(READY_QUERY_SECONDS):
                await self._database.ping()
        except DATABASE_ERRORS:
            return "no answer"
        return "ok"
