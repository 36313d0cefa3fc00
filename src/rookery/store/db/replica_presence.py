"""Presence of replicas: each holds a session lock while its process runs, and the others try to take it.

If the lock can be taken, the session of the replica has ended; a crash is noticed within two seconds. The session of a
replica that is cut off ends later. Such a replica is removed when its heartbeat is 15 seconds old. It has stopped its
work by then, because `held` becomes False before the others may act.

The lock is held in shared mode and tried in exclusive mode. Its key is (LOCK_CLASS, 32 bits of the id). Two replicas
with the same 32 bits therefore hold the same lock. If one of them dies, the lock of the other hides the death until the
heartbeat is old.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from uuid import UUID

import asyncpg

from rookery.runtime.clock import Clock
from rookery.store.db.errors import StoreError
from rookery.store.db.pool import Connection, ConnectionLost, explained_refusals, raise_when_lost, reconnect_delays
from rookery.telemetry.log import get_logger

log = get_logger("store.db.replica_presence")

LOCK_CLASS = 0x524F4F4B  # "ROOK"; the two-integer space of advisory locks
BEAT_SECONDS = 5.0
WATCH_SECONDS = 1.0
STALE_SECONDS = 15.0
STATEMENT_TIMEOUT_SECONDS = 5.0

TAKE = "SELECT pg_advisory_lock_shared($1, $2)"

# Inserts the row, or writes its heartbeat. A row that was deleted by mistake is inserted with its old `started_at`.
BEAT = """
    INSERT INTO replicas (id, host_id, hostname, pid, index, relay_unix, relay_url, version, schema_version,
                          lease_ttl, started_at, stopping_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,
            $10, coalesce($11, clock_timestamp()), CASE WHEN $12 THEN clock_timestamp() END)
    ON CONFLICT (id) DO UPDATE
       SET heartbeat_at = clock_timestamp(),
           stopping_at = coalesce(replicas.stopping_at, excluded.stopping_at)
    RETURNING started_at, xmax = 0 AS inserted
"""
PEERS = f"""
    SELECT id,
           stopping_at IS NOT NULL AS stopping,
           heartbeat_at < clock_timestamp() - interval '{STALE_SECONDS} seconds' AS stale
      FROM replicas
     WHERE id <> $1
"""
TRY = """
    SELECT peer.id
      FROM unnest($1::uuid[], $2::integer[]) AS peer (id, key)
     WHERE pg_try_advisory_lock($3, peer.key)
"""
UNLOCK = "SELECT pg_advisory_unlock($2, key) FROM unnest($1::integer[]) AS key"

# `$1`: dead replicas. Their locks are held meanwhile, so they cannot return between the check and the deletion. `$2`:
# stale replicas. They are checked again, because a heartbeat may have arrived.
REMOVE = f"""
    DELETE FROM replicas
     WHERE id = ANY ($1)
        OR (id = ANY ($2) AND heartbeat_at < clock_timestamp() - interval '{STALE_SECONDS} seconds')
    RETURNING id
"""
# Only replicas with a fresh heartbeat, because others may be cut off.
FIND = f"""
    SELECT id, host_id, hostname, pid, index, relay_unix, relay_url, version, schema_version, lease_ttl
      FROM replicas
     WHERE id = $1
       AND heartbeat_at >= clock_timestamp() - interval '{STALE_SECONDS} seconds'
"""
LIST = f"""
    SELECT id, host_id, hostname, pid, index, relay_unix, relay_url, version, schema_version, lease_ttl,
           started_at, heartbeat_at, stopping_at,
           heartbeat_at < clock_timestamp() - interval '{STALE_SECONDS} seconds' AS stale
      FROM replicas
     ORDER BY started_at, id
"""


class ReplicaState(StrEnum):
    ALIVE = "alive"
    STOPPING = "stopping"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica. `id` is new at every start of the process. `lease_ttl` is the duration of its leases."""

    id: UUID
    host_id: str
    hostname: str
    pid: int
    version: str
    schema_version: int
    index: int = 0
    relay_unix: str | None = None
    relay_url: str | None = None
    lease_ttl: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """The row of a replica, with its state."""

    replica: Replica
    started_at: datetime
    heartbeat_at: datetime
    stopping_at: datetime | None
    state: ReplicaState


async def list_replicas(connection: Connection) -> list[ReplicaStatus]:
    """List all replicas that have a row, oldest first."""
    with explained_refusals():
        return [_status(row) for row in await connection.fetch(LIST)]


async def find_replica(connection: Connection, replica_id: UUID) -> Replica | None:
    """Return a replica; None if it has no row, or its heartbeat is old."""
    row = await connection.fetchrow(FIND, replica_id)
    return None if row is None else Replica(**dict(row))


def lock_key(replica_id: UUID) -> int:
    """Return the second integer of the lock: the last 32 bits of the id, which are random."""
    return int.from_bytes(replica_id.bytes[-4:], signed=True)


class Presence:
    """Holds the lock of this replica, writes its heartbeats, and removes dead peers.

    `on_peer_dead` is called once for each peer that has ended without announcing it. It runs in the task of `run`, so
    it must not block.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        replica: Replica,
        *,
        clock: Clock,
        rng: Random,
        on_peer_dead: Callable[[UUID], None] | None = None,
    ) -> None:
        self.replica = replica
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._on_peer_dead = on_peer_dead
        self._connection: asyncpg.Connection | None = None
        self._lost = asyncio.Event()
        self._turn = asyncio.Lock()  # a connection runs one statement at a time
        self._beat_at = -STALE_SECONDS
        self._started_at: datetime | None = None
        self._peers: dict[UUID, bool] = {}  # the peers at the last check, and whether they were stopping
        self._has_looked = False
        self._stopping = False
        self._closed = False

    @property
    def held(self) -> bool:
        """Return whether this process holds the lock, without a query.

        While it is False, do not acquire chats and do not commit: peers may have taken over. It is also False if the
        last heartbeat is old, as in a process that was suspended.
        """
        connected = self._connection is not None and not self._lost.is_set() and not self._closed
        return connected and self._clock.monotonic() - self._beat_at < STALE_SECONDS

    def known(self) -> Counter[ReplicaState]:
        """Return the number of replicas by state, including this one, at the last check."""
        own = ReplicaState.STOPPING if self._stopping else ReplicaState.ALIVE
        stopping = sum(self._peers.values())
        found = {ReplicaState.STOPPING: stopping, ReplicaState.ALIVE: len(self._peers) - stopping}
        return Counter(found) + Counter([own])

    @property
    def live_count(self) -> int:
        """Return the number of replicas that are not stopping, including this one, at the last check."""
        return 1 + sum(not stopping for stopping in self._peers.values())

    @property
    def is_alone(self) -> bool:
        """Return whether there was no other replica at the last check.

        False before the first check, and while `held` is False.
        """
        return self._has_looked and not self._peers and self.held

    async def start(self) -> None:
        """Take the lock and insert the row. Raises if the database cannot be reached or written."""
        with explained_refusals():
            await self._register()

    async def run(self) -> None:
        """Write heartbeats and check peers until `close` is called. Reconnect after a lost connection."""
        delays = reconnect_delays(self._rng)
        while not self._closed:
            try:
                if self._connection is None:
                    await self._register()
                    delays = reconnect_delays(self._rng)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._beat_and_watch(), name="presence-beat")
                    group.create_task(raise_when_lost(self._lost), name="presence-lost")
            except* (ConnectionLost, StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as errors:
                first = errors.exceptions[0]
                self._disconnect()
                if not self._closed:
                    log.warning("presence_lost", error=str(first) or type(first).__name__)
            if not self._closed:
                await self._clock.sleep(next(delays), "presence-reconnect")

    async def stopping(self) -> None:
        """Announce to peers that this replica is about to end. A failure is only logged."""
        self._stopping = True
        if (connection := self._connection) is not None:
            with _tolerated("presence_stopping_not_told"):
                await self._beat(connection)

    async def close(self) -> None:
        """Delete the row, release the lock, and end `run`."""
        self._closed = True
        if (connection := self._connection) is None:
            return
        with _tolerated("presence_row_not_deleted"):
            async with asyncio.timeout(STATEMENT_TIMEOUT_SECONDS), self._turn:
                await connection.execute("DELETE FROM replicas WHERE id = $1", self.replica.id)
                await connection.close()
        self._disconnect()

    async def _register(self) -> None:
        # The lock is taken before the row is inserted: if the lock of a row is free, its replica is dead.
        connection = await self._connect()
        try:
            await connection.execute(TAKE, LOCK_CLASS, lock_key(self.replica.id), timeout=STATEMENT_TIMEOUT_SECONDS)
            await self._beat(connection)
        except BaseException:
            connection.terminate()
            raise
        lost = self._lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._lost.set()
        if connection is not None:
            connection.terminate()

    async def _beat_and_watch(self) -> None:
        while (connection := self._connection) is not None and not self._closed:
            if self._clock.monotonic() - self._beat_at >= BEAT_SECONDS:
                await self._beat(connection)
            await self._watch(connection)
            await self._clock.sleep(WATCH_SECONDS, "presence")

    async def _beat(self, connection: asyncpg.Connection) -> None:
        sent_at = self._clock.monotonic()
        me = self.replica
        identity = (me.id, me.host_id, me.hostname, me.pid, me.index, me.relay_unix, me.relay_url)
        async with self._turn:
            row = await connection.fetchrow(
                BEAT,
                *identity,
                me.version,
                me.schema_version,
                me.lease_ttl,
                self._started_at,
                self._stopping,
                timeout=STATEMENT_TIMEOUT_SECONDS,
            )
        assert row is not None
        if row["inserted"] and self._started_at is not None:
            log.warning("replica_had_been_removed", replica_id=me.id)
        self._started_at = row["started_at"]
        self._beat_at = sent_at  # not the time of the answer, which is later than heartbeat_at

    async def _watch(self, connection: asyncpg.Connection) -> None:
        async with self._turn, asyncio.timeout(STATEMENT_TIMEOUT_SECONDS):
            rows = await connection.fetch(PEERS, self.replica.id)
            peers = {row["id"]: row["stopping"] for row in rows}
            stale = [row["id"] for row in rows if row["stale"]]
            removed = await self._remove_dead(connection, peers, stale) if peers else set()
        vanished = {peer for peer, stopping in self._peers.items() if peer not in peers and not stopping}
        self._peers = {peer: stopping for peer, stopping in peers.items() if peer not in removed}
        self._has_looked = True
        for peer in vanished:
            log.info("replica_vanished", replica_id=peer)
        for peer in removed | vanished:
            self._report_dead(peer)

    async def _remove_dead(self, connection: asyncpg.Connection, peers: Iterable[UUID], stale: list[UUID]) -> set[UUID]:
        """Delete the rows of peers whose lock is free or whose heartbeat is old. Returns the deleted peers.

        A failure ends the session, which releases the locks that were taken here.
        """
        tried = list(peers)
        free = await connection.fetch(TRY, tried, [lock_key(peer) for peer in tried], LOCK_CLASS)
        dead = [row["id"] for row in free]
        if not dead and not stale:
            return set()
        removed = {row["id"] for row in await connection.fetch(REMOVE, dead, stale)}
        await connection.execute(UNLOCK, [lock_key(peer) for peer in dead], LOCK_CLASS)
        for peer in removed:
            log.warning("replica_died", replica_id=peer, reason="lock_gone" if peer in dead else "stale")
        return removed

    def _report_dead(self, peer: UUID) -> None:
        if self._on_peer_dead is None:
            return
        try:
            self._on_peer_dead(peer)
        except Exception as error:
            log.exception("on_peer_dead_failed", error, replica_id=peer)


@contextlib.contextmanager
def _tolerated(event: str) -> Iterator[None]:
    """Log a failure at the end of a process. Peers will delete its row."""
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        log.warning(event, error=str(error) or type(error).__name__)


def _status(row: asyncpg.Record) -> ReplicaStatus:
    values = dict(row)
    seen = {name: values.pop(name) for name in ("started_at", "heartbeat_at", "stopping_at")}
    state = ReplicaState.STALE if values.pop("stale") else ReplicaState.ALIVE
    if state is ReplicaState.ALIVE and seen["stopping_at"] is not None:
        state = ReplicaState.STOPPING
    return ReplicaStatus(replica=Replica(**values), state=state, **seen)
