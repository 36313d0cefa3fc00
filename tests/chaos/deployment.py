"""A deployment for chaos runs: PostgreSQL, replicas as processes behind proxies, providers, and users."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.machine import Machine
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import settings
from tests.chaos.database_watch import Watch, read_chat
from tests.chaos.effect_server import Effects
from tests.chaos.postgres_proxy import PostgresProxy
from tests.chaos.processes import ReplicaProcess
from tests.chaos.providers import KEY, Providers
from tests.chaos.replica import Orders
from tests.chaos.run_results import ChatRecord, Run
from tests.chaos.users import Person
from tests.eventually import until

MODELS = {"anthropic": "claude-opus-5-5", "openai_compat": "gpt-4.1"}
# Only processes are killed and the machine does not lose power, so written data stays even without a sync.
OPTIONS = {"fsync": "off", "full_page_writes": "off", "max_connections": "120", "shared_buffers": "64MB"}


@dataclass(kw_only=True)
class Deployment:
    """A deployment. `doors` is empty if replicas connect to the database directly."""

    seed: int
    pool: asyncpg.Pool
    ring: KeyRing
    user: UUID
    models: tuple[UUID, ...]
    machine: Machine
    watch: Watch
    providers: Providers
    effects: Effects
    replicas: list[ReplicaProcess] = field(default_factory=list)
    doors: list[PostgresProxy] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)

    def person(self, number: int) -> Person:
        """Return the next user, with a chat that does not exist yet. Users alternate between the providers."""
        person = Person(
            self.pool,
            self.machine,
            self.watch,
            chat_id=uuid4(),
            user=self.user,
            model=self.models[number % len(self.models)],
        )
        self.people.append(person)
        return person

    async def owner(self, chat_id: UUID) -> ReplicaProcess | None:
        """Return the replica that owns the chat, according to the database."""
        worker_id = await self.pool.fetchval("SELECT worker_id FROM chats WHERE id = $1", chat_id)
        return next((replica for replica in self.replicas if replica.id == worker_id), None)

    async def read(self, chat_id: UUID) -> ChatRecord:
        async with self.pool.acquire() as conn:
            return await read_chat(conn, chat_id)

    async def record(self, *, database_crashes: int = 0) -> Run:
        """Return everything that the run has left."""
        return Run(
            chats=[await self.read(person.chat_id) for person in self.people if person.accepted],
            accepted=[message for person in self.people for message in person.accepted],
            effects=tuple(self.effects.done),
            tokens={call_id: frozenset(tokens) for call_id, tokens in self.effects.tokens.items()},
            sightings=tuple(self.watch.sightings),
            versions=dict(self.watch.versions),
            refusals=tuple(self.providers.refusals),
            database_crashes=database_crashes,
        )


@asynccontextmanager
async def open_deployment(
    database_url: Callable[[], str],
    folder: Path,
    *,
    seed: int,
    replicas: int,
    is_fast: bool,
    has_doors: bool,
    has_failures: bool = True,
    scripted_model: str | None = None,
) -> AsyncIterator[Deployment]:
    """Open a deployment with a migrated database. No process is left at the end.

    With a scripted model, all chats use it instead of the fake providers, and have the built-in tools.
    """
    ring = new_key("chaos")
    async with AsyncExitStack() as stack:
        config = DatabaseConfig(database_url(), pool_api=12, pool_worker=2, application_name="people")
        pool = (await stack.enter_async_context(await Database.connect(config))).api
        notifier = Notifier(pool, Bus())
        stack.push_async_callback(_cancelled, asyncio.create_task(notifier.run()))
        models_, world = Providers(seed, has_failures=has_failures), Effects(seed)
        urls = await stack.enter_async_context(models_.listening())
        port = await stack.enter_async_context(world.listening())
        watch = Watch(pool, ages_leases=is_fast)
        stack.push_async_callback(_cancelled, asyncio.create_task(watch.run()))
        async with pool.acquire() as conn:
            user = await conn.fetchval("INSERT INTO users (username) VALUES ('people') RETURNING id")
            if scripted_model is None:
                models = [await _model(conn, kind, url, ring=KeyRing.parse(ring)) for kind, url in urls.items()]
            else:
                models = [await _scripted(conn, scripted_model, ring=KeyRing.parse(ring))]
            # Without a limit of slots, which other tests cover.
            await settings.write_setting(conn, "chats", value={"running_roots": 0})
        deployment = Deployment(
            seed=seed,
            pool=pool,
            ring=KeyRing.parse(ring),
            user=user,
            models=tuple(models),
            machine=Machine(pool, notifier),
            watch=watch,
            providers=models_,
            effects=world,
        )
        for number in range(replicas):
            url = database_url()
            if has_doors:
                proxy = PostgresProxy(database_url, Random(f"{seed} proxy {number}"))
                deployment.doors.append(await stack.enter_async_context(proxy.listening()))
                url = proxy.url
            orders = Orders(
                number=number,
                database_url=url,
                effects_port=port if scripted_model is None else None,
                ring=ring,
                data_dir=str(folder),
                is_fast=is_fast,
            )
            replica = ReplicaProcess(orders, folder / f"replica-{number}.log")
            stack.push_async_callback(replica.end)
            deployment.replicas.append(replica)
        await asyncio.gather(*(replica.start() for replica in deployment.replicas))
        yield deployment


async def _model(conn: asyncpg.pool.PoolConnectionProxy, kind: str, url: str, *, ring: KeyRing) -> UUID:
    draft = ProviderDraft(type=ProviderType(kind), name=kind.replace("_", "-"), base_url=url, api_key=SecretStr(KEY))
    provider = await providers.create_provider(conn, draft, ring=ring)
    config = ModelConfigDraft(provider_id=provider.id, model=MODELS[kind], context_limit=1_000_000)
    return (await model_configs.create_model_config(conn, config, by=None)).id


async def _scripted(conn: asyncpg.pool.PoolConnectionProxy, model: str, *, ring: KeyRing) -> UUID:
    draft = ProviderDraft(type=ProviderType.SCRIPTED, name="offline")
    provider = await providers.create_provider(conn, draft, ring=ring)
    config = ModelConfigDraft(provider_id=provider.id, model=model, context_limit=1_000_000)
    return (await model_configs.create_model_config(conn, config, by=None)).id


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def database_server(folder: Path) -> AsyncIterator[EmbeddedServer]:
    """Start a migrated database server that can be killed and restarted. It is removed at the end."""
    server = EmbeddedServer(folder / "data", options=OPTIONS)
    await server.start()
    try:
        connection = await asyncpg.connect(server.url)
        await migrate.migrate(connection)
        await connection.close()
        yield server
    finally:
        await server.stop()
        shutil.rmtree(folder / "data", ignore_errors=True)


async def restart_database(server: EmbeddedServer, how: signal.Signals) -> None:
    """Restart PostgreSQL.

    SIGQUIT ends it immediately; SIGKILL leaves its children to notice. Both recover from the log.
    """
    pid = server.pid
    assert pid is not None
    os.kill(pid, how)
    await until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), timeout=30)
    await server.start()
