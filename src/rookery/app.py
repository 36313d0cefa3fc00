"""The composition root: settings in, a running replica out. Every part is built and wired here and nowhere else."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from uuid import UUID, uuid4

import asyncpg
from starlette.types import ASGIApp

from rookery import __version__
from rookery.api.application import create_application
from rookery.clock import Clock, SystemClock
from rookery.lag import LagMonitor
from rookery.log import bind, get_logger
from rookery.settings import Settings
from rookery.store import migrate, replicas
from rookery.store.embedded import server as embedded
from rookery.store.embedded.data_dir import DataDirLock, prepare_data_dir
from rookery.store.embedded.server import EmbeddedServer
from rookery.store.errors import DataDirInUse
from rookery.store.machine import Machine
from rookery.store.pool import Database, DatabaseConfig
from rookery.store.pubsub import Bus, Listener, Notifier, NotifyProbe
from rookery.store.replicas import Presence

READY_QUERY_SECONDS = 2.0
LISTENER_DOWN_SECONDS = 5.0
LAG_SECONDS = 1.0

log = get_logger("app")

Progress = Callable[[str], None]


def database_config(settings: Settings, url: str) -> DatabaseConfig:
    return DatabaseConfig(
        url,
        pool_api=settings.database_pool_api,
        pool_worker=settings.database_pool_worker,
        statement_timeout_seconds=settings.database_statement_timeout.total_seconds(),
    )


@asynccontextmanager
async def served_database(
    settings: Settings, lock: DataDirLock, on_progress: Progress
) -> AsyncIterator[DatabaseConfig]:
    """The database for a server that holds the data directory: the external one, or the embedded one, started."""
    if settings.database_url is not None:
        yield database_config(settings, settings.database_url)
        return
    server = EmbeddedServer(settings.data_dir, lock=lock, on_progress=on_progress)
    await server.start()
    if server.adopted:
        log.info("database_adopted", pid=server.pid)
    try:
        yield database_config(settings, server.url)
    finally:
        await server.stop()


@asynccontextmanager
async def visited_database(settings: Settings, on_progress: Progress) -> AsyncIterator[DatabaseConfig]:
    """The database for a command that looks in: the one that runs already, else the embedded one for a moment."""
    if settings.database_url is not None:
        yield database_config(settings, settings.database_url)
        return
    lock = DataDirLock(prepare_data_dir(settings.data_dir))
    try:
        lock.acquire()
    except DataDirInUse:
        running = embedded.running_url(settings.data_dir)
        if running is None:
            raise
        yield database_config(settings, running)
        return
    with lock:
        async with served_database(settings, lock, on_progress) as config:
            yield config


async def prepare_schema(settings: Settings, config: DatabaseConfig, on_progress: Progress) -> None:
    """Bring the schema up to date, or, without `auto_migrate`, insist that it is."""
    if settings.auto_migrate:
        for migration in await migrate.migrate(config):
            on_progress(f"applied migration {migration}")
        return
    async with await Database.connect(config) as database, database.api.acquire() as conn:
        await migrate.check(conn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running process over one database."""

    id: UUID
    database: Database
    bus: Bus
    notifier: Notifier
    listener: Listener
    probe: NotifyProbe
    presence: Presence
    lag: LagMonitor
    machine: Machine
    application: ASGIApp
    health: ReplicaHealth


class ReplicaHealth:
    """Whether this replica should get requests."""

    def __init__(self, database: Database, listener: Listener, presence: Presence, lag: LagMonitor) -> None:
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

    async def _query(self) -> str:
        try:
            async with asyncio.timeout(READY_QUERY_SECONDS):
                await self._database.ping()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return "no answer"
        return "ok"


@asynccontextmanager
async def running_replica(
    settings: Settings, config: DatabaseConfig, *, clock: Clock | None = None, rng: Random | None = None
) -> AsyncIterator[Replica]:
    """Build a replica and keep its loops running. One that dies ends the process: half a replica helps nobody.

    On the way out the row goes first and the pools last, so that peers take over at once and nothing is cut off.
    """
    clock, rng = clock or SystemClock(), rng or SystemRandom()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(await Database.connect(config))
        replica = _wire(settings, database, clock, rng)
        stack.enter_context(bind(replica=str(replica.id)))
        await replica.presence.start()
        stack.push_async_callback(replica.presence.close)
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(replica.listener.run(), name="listener"),
                group.create_task(replica.notifier.run(), name="notifier"),
                group.create_task(replica.presence.run(), name="presence"),
                group.create_task(replica.lag.run(), name="lag"),
            ]
            try:
                # Whoever uses the replica may rely on hearing hints, and the probe would find it deaf.
                await replica.listener.wait_connected()
                loops.append(group.create_task(replica.probe.run(), name="notify-probe"))
                yield replica
                await replica.presence.stopping()
                await replica.notifier.close()
            finally:
                for loop in loops:
                    loop.cancel()


def _wire(settings: Settings, database: Database, clock: Clock, rng: Random) -> Replica:
    identity = replicas.Replica(
        id=uuid4(),
        host_id=_host_id(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        schema_version=migrate.SCHEMA_VERSION,
    )
    bus = Bus()
    notifier = Notifier(database.worker, bus)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=clock, rng=rng)
    presence = Presence(
        lambda: database.dedicated("presence"),
        identity,
        clock=clock,
        rng=rng,
        on_peer_dead=lambda peer: log.info("peer_gone", peer=peer),
    )
    lag = LagMonitor(clock)
    health = ReplicaHealth(database, listener, presence, lag)
    return Replica(
        id=identity.id,
        database=database,
        bus=bus,
        notifier=notifier,
        listener=listener,
        probe=NotifyProbe(notifier, bus, replica_id=identity.id, clock=clock),
        presence=presence,
        lag=lag,
        machine=Machine(database.api, notifier, clock=clock, rng=rng),
        application=create_application(health, clock=clock, log_access=settings.log_access),
        health=health,
    )


def _host_id() -> str:
    """Tells machines apart whose names are equal; replicas of one machine can talk over its sockets."""
    for source in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if found := Path(source).read_text().strip():
                return found
        except OSError:
            continue
    return socket.gethostname()
