"""Opens the database of an installation: data directory, embedded or external server, schema, keys, locked settings.

It is separate from `replica`, because loading a whole server would take most of the time of a short command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from rookery.models import key_ring
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock
from rookery.settings.settings import Problem, Settings, SettingsError
from rookery.store.db import migrate, pool
from rookery.store.db.embedded import server as embedded
from rookery.store.db.embedded.data_dir import DataDirLock, Use, prepare_data_dir, require_database
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.errors import DataDirInUse, EmbeddedServerError
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.models import model_configs, providers
from rookery.store.models.preset_providers import ensure_env_providers, ensure_offline_model
from rookery.store.people.users import repair_emails
from rookery.store.settings import locked_settings
from rookery.telemetry.log import get_logger
from rookery.workspaces.driver_specs import Specs

BUSY_SECONDS = 5.0  # the time that another process may take to start or to finish
BUSY_POLL_SECONDS = 0.05

log = get_logger("app.installation")

Progress = Callable[[str], None]


def database_config(settings: Settings, url: str) -> DatabaseConfig:
    return DatabaseConfig(
        url,
        pool_api=settings.database_pool_api,
        pool_worker=settings.database_pool_worker,
        statement_timeout_seconds=settings.database_statement_timeout.total_seconds(),
    )


@asynccontextmanager
async def locked_data_dir(settings: Settings, on_progress: Progress) -> AsyncIterator[DataDirLock]:
    """Lock the data directory for a server.

    If another server holds the lock, raise `DataDirInUse`. If a command holds it, wait for up to `BUSY_SECONDS`,
    because commands are short.
    """
    lock = DataDirLock(prepare_data_dir(settings.data_dir), Use.STARTING)
    deadline, has_told = time.monotonic() + BUSY_SECONDS, False
    while True:
        try:
            lock.acquire()
            break
        except DataDirInUse:
            holder = lock.holder()
            if holder.use in (Use.STARTING, Use.SERVING) or time.monotonic() > deadline:
                raise
            if not has_told and holder.pid is not None:
                on_progress(f"waiting for process {holder.pid}, which uses {lock.data_dir} for a moment")
                has_told = True
        await asyncio.sleep(BUSY_POLL_SECONDS)
    with lock:
        yield lock


@asynccontextmanager
async def server_database_url(
    settings: Settings, lock: DataDirLock, on_progress: Progress, *, ending: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Return the database URL for the holder of the data directory: external, or embedded and started."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    # The embedded server belongs to this installation, so it is sized for the requested number of replicas.
    needed = settings.replicas * database_config(settings, "").connections + 2 * pool.SPARE_CONNECTIONS
    options = {"max_connections": str(needed)} if needed > int(embedded.SETTINGS["max_connections"]) else {}
    server = EmbeddedServer(settings.data_dir, options=options, lock=lock, on_progress=on_progress)
    await server.start()
    if server.adopted:
        log.info("database_adopted", pid=server.pid)
    async with server.stopped_at_the_end(ending):
        yield server.url


@asynccontextmanager
async def server_database(
    settings: Settings, lock: DataDirLock, on_progress: Progress, *, ending: asyncio.Event | None = None
) -> AsyncIterator[Database]:
    """Return a connected database. See `server_database_url`."""
    async with (
        server_database_url(settings, lock, on_progress, ending=ending) as url,
        await Database.connect(database_config(settings, url)) as database,
    ):
        yield database


@asynccontextmanager
async def command_database(
    settings: Settings, on_progress: Progress, *, may_create: bool = False
) -> AsyncIterator[Database]:
    """Open the database for a command. If no server runs, start the embedded database until the block ends.

    Without `may_create`, a missing database is not created, and `NoDatabase` is raised.
    """
    if settings.database_url is not None:
        async with await Database.connect(database_config(settings, settings.database_url)) as database:
            yield database
        return
    lock = DataDirLock(prepare_data_dir(settings.data_dir, may_create=may_create), Use.VISITING)
    if (running := await _running_url_unless_free(lock)) is not None:
        async with await Database.connect(database_config(settings, running)) as database:
            yield database
        return
    with lock:
        if not may_create:
            require_database(lock.data_dir)
        async with server_database(settings, lock, on_progress) as database:
            yield database


async def _running_url_unless_free(lock: DataDirLock) -> str | None:
    """Return the URL of the database that another process runs. Return None if there is none and this process holds the
    lock.

    Waits for a starting server, and for another command, because that command would stop the database during this one.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            lock.acquire()
        except DataDirInUse:
            holder, running = lock.holder(), embedded.running_url(lock.data_dir)
            is_late = time.monotonic() > deadline
            if running is not None and (holder.use is Use.SERVING or (is_late and holder.use is Use.VISITING)):
                return running
            if is_late and holder.use is Use.STARTING:
                raise EmbeddedServerError(
                    f"The server in {lock.data_dir} (process {holder.pid}) is still starting. Try again in a moment."
                ) from None
            if is_late:
                raise
        else:
            return None
        await asyncio.sleep(BUSY_POLL_SECONDS)


async def prepare_schema(settings: Settings, database: Database) -> None:
    """Bring the schema up to date; without `auto_migrate`, raise if it is not."""
    async with database.api.acquire() as conn:
        # Checked before anything is created, so that a server that is too small for this replica is not changed.
        await pool.check_capacity(conn, database.config, replicas=settings.replicas)
        if not settings.auto_migrate:
            await migrate.check(conn, advice="Run `rookery admin migrate`, or set auto_migrate.")
            return
    await migrate.migrate(database)


async def prepare_accounts(database: Database) -> None:
    """Normalize the fields by which accounts are found. The log names accounts only by their ids."""
    async with database.api.acquire() as conn:
        repair = await repair_emails(conn)
    if repair.rewritten:
        log.info("email_addresses_normalised", count=len(repair.rewritten))
    for user_id in repair.unchanged:
        log.warning("email_address_not_normal", user_id=str(user_id))


async def prepare_models(
    settings: Settings, database: Database, environ: Mapping[str, str], *, with_offline: bool = False
) -> KeyRing | None:
    """Check that the key ring opens the stored keys, and store the providers of the environment. Return the ring.

    A wrong ring would make every stored key look missing, so the server does not start with one. `with_offline` adds
    the offline model if there is no other.
    """
    try:
        ring = key_ring.load_ring(settings.secret_keys, settings.data_dir if settings.database_url is None else None)
        async with database.api.acquire() as conn:
            if ring is not None and not await key_ring.check_ring(conn, ring):
                raise key_ring.SecretsError(
                    "This ring did not seal the keys in the database. Set the one that did, or restore the key file."
                )
            if ring is not None:
                await providers.seal_unsealed_headers(conn, ring)
                await model_configs.seal_unsealed_headers(conn, ring)
                await Specs(ring).seal_clear_parameters(conn)
            await ensure_env_providers(conn, environ)
            if with_offline:
                await ensure_offline_model(conn)
        return ring
    except key_ring.SecretsError as error:
        raise SettingsError([Problem("secret_keys", "the key ring", str(error))], []) from error


async def apply_pins(database: Database, environ: Mapping[str, str], *, clock: Clock) -> None:
    """Apply the runtime settings that the environment locks, and notify running replicas."""
    try:
        async with database.api.acquire() as conn:
            has_changed = await locked_settings.apply(conn, environ, now=clock.now())
    except locked_settings.LockedSettingError as error:
        raise SettingsError([Problem(name, "environment", text) for name, text in error.problems], []) from error
    if has_changed:
        notifier = Notifier(database.worker, Bus())
        notifier.publish([ConfigHint(kind="settings")])
        await notifier.close()
