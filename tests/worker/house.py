"""A whole worker, or several, over a real database, with models that read from scripts and tools made for tests.

Everything is real but the model and the tools: machine, notifier, leases, runners, tasks, part buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import UUID, uuid4

import asyncpg

from rookery.chat.chats import Chat
from rookery.chat.messages import ChatId, Message, NewMessage, NewQueuedMessage, Role
from rookery.chat.parts import Part, Text
from rookery.chat.retrying import RetryPolicy
from rookery.chat.states import Status
from rookery.chat.transitions import BusyBehavior
from rookery.clock import Clock, SystemClock
from rookery.llm.connect import Connector, default_scripts
from rookery.llm.directory import Directory
from rookery.llm.scripted import Script, Scripts, Step
from rookery.llm.types import Call
from rookery.loop.config import LoopConfig
from rookery.loop.tools import Tool
from rookery.store import machine, messages, model_configs, providers
from rookery.store.machine import ChatSpec, Machine
from rookery.store.model_configs import ModelConfigDraft
from rookery.store.model_options import ProviderType
from rookery.store.pool import Database, DatabaseConfig
from rookery.store.providers import ProviderDraft
from rookery.store.pubsub import Bus, Listener, Notifier
from rookery.worker.config import WorkerConfig
from rookery.worker.toolbox import PlainToolbox
from rookery.worker.worker import Worker, WorkerParts
from tests.waiting import until


@dataclass(kw_only=True)
class Replica:
    """One worker with everything of its own, as in a process of its own."""

    id: UUID
    bus: Bus
    notifier: Notifier
    worker: Worker
    connector: Connector


@dataclass(kw_only=True)
class House:
    """A deployment. `script` is what the default model says; tests replace it before they send."""

    database: Database
    machine: Machine
    user: UUID
    model: UUID
    scripts: Scripts
    clock: Clock
    script: Script = ()
    replicas: list[Replica] = field(default_factory=list)

    @property
    def worker(self) -> Worker:
        return self.replicas[0].worker

    async def ask(self, words: str = "hello", **fields: object) -> ChatId:
        """A new chat that begins with these words."""
        spec = ChatSpec(
            owner_id=self.user,
            title="A chat",
            model_config_id=self.model,
            messages=(NewMessage(role=Role.USER, content=(Text(words),), created_by=self.user),),
            **fields,  # type: ignore[arg-type]
        )
        return (await self.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id

    async def send(self, chat_id: ChatId, words: str, busy: BusyBehavior = BusyBehavior.QUEUE) -> None:
        message = NewQueuedMessage(content=(Text(words),), created_by=self.user)
        await self.machine.chat(chat_id).update(lambda tx: machine.send_message(tx, message, busy))

    async def interrupt(self, chat_id: ChatId) -> None:
        await self.machine.chat(chat_id).update(machine.interrupt)

    async def chat(self, chat_id: ChatId) -> Chat:
        async def row(view: machine.View) -> Chat:
            return view.chat

        return await self.machine.chat(chat_id).read(row)

    async def until_status(self, chat_id: ChatId, *statuses: Status) -> Chat:
        async def reached() -> bool:
            return (await self.chat(chat_id)).status in statuses

        await until(reached)
        return await self.chat(chat_id)

    async def rested(self, chat_id: ChatId) -> Chat:
        """Wait for the end of the turn, whatever it is."""
        return await self.until_status(chat_id, Status.WAITING, Status.ERROR)

    async def messages(self, chat_id: ChatId) -> list[Message]:
        async with self.database.api.acquire() as conn:
            return list((await messages.list_oldest(conn, chat_id, limit=200)).messages)

    async def story(self, chat_id: ChatId) -> list[tuple[str, str]]:
        """The visible messages as (role, kind and text of the parts), for tests to compare."""
        return [(str(message.role), _words(message.parts())) for message in await self.messages(chat_id)]


def _words(content: Sequence[Part]) -> str:
    from rookery.chat.parts import Reasoning, ToolCall, ToolResult

    said = []
    for part in content:
        match part:
            case Text(text=text):
                said.append(text)
            case Reasoning(text=text):
                said.append(f"({text})")
            case ToolCall(tool_name=name):
                said.append(f"{name}!")
            case ToolResult(tool_name=name, is_error=is_error):
                said.append(f"{name}={'error' if is_error else 'ok'}")
            case _:
                said.append(type(part).__name__)
    return " ".join(said)


@asynccontextmanager
async def open_house(
    database_url: str,
    *,
    script: Script = (),
    tools: Sequence[Tool] = (),
    workers: int = 1,
    clock: Clock | None = None,
    config: WorkerConfig | None = None,
    loop: LoopConfig | None = None,
    retry: RetryPolicy | None = None,
    max_steps: int = 1200,
    context_limit: int = 100_000,
) -> AsyncIterator[House]:
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(await Database.connect(DatabaseConfig(database_url)))
        async with database.api.acquire() as conn:
            user = await conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{uuid4().hex[:12]}")
            provider = await providers.create_provider(
                conn, ProviderDraft(type=ProviderType.SCRIPTED, name=f"p-{uuid4().hex[:8]}"), ring=None
            )
            draft = ModelConfigDraft(provider_id=provider.id, model="test", context_limit=context_limit)
            config_row = await model_configs.create_model_config(conn, draft, by=None)
        scripts = default_scripts()
        house = House(
            database=database,
            machine=Machine(database.api, _Nobody()),
            user=user,
            model=config_row.id,
            scripts=scripts,
            clock=clock,
            script=script,
        )
        stack.enter_context(scripts.registered("test", lambda call: _steps(house.script, call)))
        for _ in range(workers):
            replica = await stack.enter_async_context(
                _replica(
                    house,
                    PlainToolbox(tools),
                    config=config or WorkerConfig(),
                    loop=loop or LoopConfig(),
                    retry=retry or RetryPolicy(),
                    max_steps=max_steps,
                )
            )
            house.replicas.append(replica)
        if house.replicas:
            house.machine = Machine(database.api, house.replicas[0].notifier)
        yield house


def _steps(script: Script, call: Call) -> Sequence[Step]:
    return script(call) if callable(script) else script


class _Nobody:
    def publish(self, hints: object) -> None:
        return


@asynccontextmanager
async def _replica(
    house: House, toolbox: PlainToolbox, *, config: WorkerConfig, loop: LoopConfig, retry: RetryPolicy, max_steps: int
) -> AsyncIterator[Replica]:
    database, clock = house.database, house.clock
    worker_id, bus = uuid4(), Bus()
    notifier = Notifier(database.worker, bus)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=SystemClock(), rng=Random(1))
    directory = Directory(database.worker, ring=None, environ={}, clock=clock)
    connector = Connector(scripts=house.scripts, clock=clock, tokens_per_second=0)
    async with database.worker.acquire() as conn:
        await _appear(conn, worker_id)
    worker = Worker(
        WorkerParts(
            worker_id=worker_id,
            machine=Machine(database.worker, notifier),
            pool=database.worker,
            connect=database.dedicated,
            bus=bus,
            publisher=notifier,
            directory=directory,
            connector=connector,
            toolbox=toolbox,
            clock=clock,
            rng=Random(1),
            config=config,
            loop=loop,
            retry=retry,
            max_steps=max_steps,
        )
    )
    loops = [asyncio.create_task(run()) for run in (listener.run, notifier.run, worker.run)]
    try:
        await listener.wait_connected()
        yield Replica(id=worker_id, bus=bus, notifier=notifier, worker=worker, connector=connector)
    finally:
        await worker.close()
        await notifier.close()
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await connector.close()
        await directory.close()


async def _appear(conn: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], worker_id: UUID) -> None:
    """The row that tells peers that this replica lives; without one its leases do not count."""
    await conn.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
        " VALUES ($1, 'test', 'test', 1, 'test', 1)",
        worker_id,
    )
