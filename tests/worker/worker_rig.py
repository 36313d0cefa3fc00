"""A rig with one or several complete workers on a real database, with scripted models and tools for tests.

Machine, notifier, leases, runners, tasks and part buffer are real. With `server`, the model client is real as well, and
calls a fake provider on a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.debug.recorder import Limits
from rookery.debug.recording_policy import Policy
from rookery.debug.recording_service import RecordingService
from rookery.debug.turn_recording import Recordings
from rookery.debug.writer import MAX_BYTES
from rookery.domain.chat import parts
from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.messages import ChatId, Message, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall, ToolResult
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.chat.states import Status
from rookery.domain.chat.system_blocks import Mode
from rookery.domain.chat.transitions import BusyBehavior
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Say, Script, Scripts, Step
from rookery.llm.types import Call
from rookery.loop.config import LoopConfig
from rookery.loop.tool import Tool
from rookery.models.connector import Connector, default_scripts
from rookery.models.directory import Directory
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.store import machine
from rookery.store.chats import messages
from rookery.store.chats.step_reads import Step as LoadedStep
from rookery.store.db.pool import Connection, Database, DatabaseConfig
from rookery.store.db.pubsub import Bus, Listener, Notifier
from rookery.store.machine import ChatSpec, Machine
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import settings
from rookery.testing import FakeClock
from rookery.tools.step_tools import PlainToolbox, StepTools, Toolbox
from rookery.worker.config import WorkerConfig
from rookery.worker.worker import Worker, WorkerServices
from tests.eventually import until

LABEL = "Work is done"
# The key of providers that require one.
KEY = "sk-house"
RING = KeyRing.parse(new_key("house"))
# Failed steps are retried immediately. Other tests check the delays.
AT_ONCE = RetryPolicy(first_delay=RetryPolicy().first_delay / 1000, max_delay=RetryPolicy().first_delay / 1000)
# The value of the group `chats` for tests whose agents repeat themselves on purpose.
BRAKE_OFF = {"repeat_notice_after": 0, "repeat_ask_after": 0}
# For tests that advance the clock by minutes: periodic loops must not find that time between two database responses.
LONG = 1e9
STILL = WorkerConfig(
    acquire_interval_seconds=LONG,
    acquire_delay_per_runner_seconds=0.0,
    heartbeat_interval_seconds=LONG,
    self_fence_seconds=LONG,
    sync_interval_seconds=LONG,
    database_seconds=LONG,
    capacity_interval_seconds=LONG,
    archive_interval_seconds=LONG,
    search_interval_seconds=LONG,
    debug_sweep_interval_seconds=LONG,
    disabled_interval_seconds=LONG,
    subagent_interval_seconds=LONG,
)


@dataclass(frozen=True)
class ToolboxNeeds:
    """The parts of one replica from which a toolbox is built."""

    pool: asyncpg.Pool
    machine: Machine
    bus: Bus
    directory: Directory
    notifier: Notifier
    connector: Connector
    clock: Clock
    loop: LoopConfig
    recordings: Recordings | None = None


@dataclass(frozen=True, kw_only=True)
class Records:
    """Debug records of the rig's replicas. `connect` replaces the connection of the writer."""

    is_forced: bool = True
    limits: Limits | None = None
    queue_bytes: int = MAX_BYTES
    connect: Callable[[], Awaitable[asyncpg.Connection]] | None = None


MakeToolbox = Callable[[ToolboxNeeds], Toolbox]


@dataclass(kw_only=True)
class Replica:
    """One worker with its own parts, like a separate process."""

    id: UUID
    bus: Bus
    notifier: Notifier
    worker: Worker
    connector: Connector
    debug: RecordingService | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(kw_only=True)
class WorkerRig:
    """A deployment. `script` defines the answers of the model; `calls` records its calls.

    Another model makes titles and labels, so that the script only gets turns and summaries.
    """

    database: Database
    machine: Machine
    user: UUID
    model: UUID
    quick: UUID
    scripts: Scripts
    clock: Clock
    open_replica: Callable[[], Awaitable[Replica]]
    script: Script = ()
    calls: list[Call] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    @property
    def worker(self) -> Worker:
        return self.replicas[0].worker

    async def crash(self) -> None:
        """Kill the first replica: its work stops, its row is deleted, and nothing is released."""
        replica = self.replicas.pop(0)
        replica.worker.stop_acquiring()
        replica.worker.manager.fence_off()
        async with self.database.api.acquire() as conn:
            await conn.execute("DELETE FROM replicas WHERE id = $1", replica.id)

    async def add_replica(self) -> Replica:
        replica = await self.open_replica()
        self.replicas.append(replica)
        self.machine = Machine(self.database.api, replica.notifier)
        return replica

    # Actions

    async def ask(self, words: str = "hello", **fields: object) -> ChatId:
        """Create a chat with this first message."""
        defaults: dict[str, object] = {
            "owner_id": self.user,
            "title": "A chat",
            "model_config_id": self.model,
            "messages": (NewMessage(role=Role.USER, content=(Text(words),), created_by=self.user),),
            "client_type": "ui",
        }
        spec = ChatSpec(**{**defaults, **fields})  # type: ignore[arg-type]
        return (await self.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id

    async def add_user(self) -> UUID:
        found: UUID = await self.sql("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{uuid4().hex[:12]}")
        return found

    async def send(self, chat_id: ChatId, words: str, busy: BusyBehavior = BusyBehavior.QUEUE) -> None:
        message = NewQueuedMessage(content=(Text(words),), created_by=self.user)
        await self.machine.chat(chat_id).update(lambda tx: machine.send_message(tx, message, busy))

    async def interrupt(self, chat_id: ChatId) -> None:
        await self.machine.chat(chat_id).update(machine.interrupt)

    async def edit(self, chat_id: ChatId, message: Message, words: str) -> None:
        await self.machine.chat(chat_id).update(
            lambda tx: machine.edit_message(tx, message.id, content=(Text(words),), edited_by=self.user)
        )

    async def compact(self, chat_id: ChatId) -> None:
        async def request(tx: machine.Tx) -> None:
            await machine.request_compaction(tx)
            await machine.require_compactable(tx)

        await self.machine.chat(chat_id).update(request)

    async def retry(self, chat_id: ChatId) -> None:
        await self.machine.chat(chat_id).update(machine.retry_turn)

    async def set(self, key: str, value: object) -> None:
        """Change a runtime setting as an administrator does."""
        async with self.database.api.acquire() as conn:
            await settings.write_setting(conn, key, value=value)
        self.forget()

    async def summarise_with(self, model_config_id: UUID) -> None:
        """Use another model than the chat's for summaries."""
        named = {"title_generation": self.quick, "compaction": model_config_id}
        await self.set("models", {key: {"mode": "model", "model_config_id": str(each)} for key, each in named.items()})

    async def fall_back_to(self, name: str) -> None:
        """Add another scripted model as the fallback of the chat's model."""
        async with self.database.api.acquire() as conn:
            draft = ProviderDraft(type=ProviderType.SCRIPTED, name=_name("other"))
            other = await _model(conn, draft, name, context_limit=100_000)
            patch = ModelConfigPatch(options={"fallbacks": [str(other.id)]})
            await model_configs.update_model_config(conn, self.model, patch=patch, by=None)
        self.forget()

    def forget(self) -> None:
        """Drop cached configuration, so that the next step reads it again."""
        for replica in self.replicas:
            replica.worker._services.directory.invalidate()

    async def sql(self, statement: str, *arguments: object) -> Any:
        async with self.database.api.acquire() as conn:
            return await conn.fetchval(statement, *arguments)

    # Queries

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
        """Wait for the end of the turn."""
        return await self.until_status(chat_id, Status.WAITING, Status.ERROR)

    async def error(self, chat_id: ChatId) -> LastError:
        """Wait for the turn to fail. Return the error."""
        chat = await self.rested(chat_id)
        assert chat.status == Status.ERROR, await self.story(chat_id)
        assert chat.last_error is not None
        return msgspec.json.decode(chat.last_error, type=LastError)

    async def messages(self, chat_id: ChatId) -> list[Message]:
        async with self.database.api.acquire() as conn:
            return list((await messages.list_oldest(conn, chat_id, limit=200)).messages)

    async def story(self, chat_id: ChatId) -> list[tuple[str, str]]:
        """Return the visible messages as (role, text) pairs."""
        return [(str(message.role), _words(message.parts())) for message in await self.messages(chat_id)]

    async def results(self, chat_id: ChatId) -> list[Any]:
        """Return the results of tools as JSON, in order."""
        return [
            parts.json_value(part.result)
            for message in await self.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolResult) and isinstance(part.result, msgspec.Raw)
        ]

    async def rows(self, chat_id: ChatId, columns: str) -> list[tuple[object, ...]]:
        """Return columns of all rows of the chat, including hidden and deleted ones."""
        async with self.database.api.acquire() as conn:
            records = await conn.fetch(f"SELECT {columns} FROM chat_messages WHERE chat_id = $1 ORDER BY id", chat_id)
        return [tuple(record) for record in records]

    async def usage(self, chat_id: ChatId, columns: str = "purpose, status") -> list[tuple[object, ...]]:
        """Return the ledger rows of the chat's turns and summaries, after all effects have ended."""
        for replica in self.replicas:
            await replica.worker._inflight.wait_idle()
        async with self.database.api.acquire() as conn:
            records = await conn.fetch(
                f"SELECT {columns} FROM model_usage"
                " WHERE chat_id = $1 AND purpose IN ('turn', 'compaction') ORDER BY id",
                chat_id,
            )
        return [tuple(record) for record in records]


class GatedToolbox:
    """A toolbox that prepares a step only when the test allows it. `waiting` is set while a step waits."""

    def __init__(self, *tools: Tool) -> None:
        self._inner = PlainToolbox(tools)
        self.waiting = asyncio.Event()
        self._let_go = asyncio.Semaphore(0)

    def let_go(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._let_go.release()

    async def open(self, step: LoadedStep, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        self.waiting.set()
        await self._let_go.acquire()
        self.waiting.clear()
        return await self._inner.open(step, mode=mode, stack=stack)


def in_turn(*scripts: Sequence[Step]) -> Script:
    """Return a script: each call uses the next of these scripts; the last one is repeated."""
    left = list(scripts)

    def script(call: Call) -> Sequence[Step]:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def _words(content: Sequence[Part]) -> str:
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
    toolbox: Toolbox | None = None,
    make_toolbox: MakeToolbox | None = None,
    server: str | None = None,
    workers: int = 1,
    clock: Clock | None = None,
    config: WorkerConfig | None = None,
    loop: LoopConfig | None = None,
    retry: RetryPolicy = AT_ONCE,
    max_steps: int = 1200,
    max_output_tokens: int = 32_000,
    context_limit: int = 100_000,
    options: Mapping[str, object] = {},
    threshold: int = 70,
    provider: ProviderType = ProviderType.OPENAI_COMPAT,
    model_name: str = "test",
    records: Records | None = None,
) -> AsyncIterator[WorkerRig]:
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(await Database.connect(DatabaseConfig(database_url)))

        async def open_replica() -> Replica:
            replica = await _open_replica(
                rig,
                make_toolbox or (lambda parts: toolbox or PlainToolbox(tools)),
                config=config or (STILL if isinstance(clock, FakeClock) else WorkerConfig()),
                loop=loop or LoopConfig(),
                retry=retry,
                max_steps=max_steps,
                max_output_tokens=max_output_tokens,
                records=records,
            )
            stack.push_async_callback(_closed, replica, rig.clock)
            return replica

        async with database.api.acquire() as conn:
            user = await conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", f"u{uuid4().hex[:12]}")
            quick = await _model(
                conn, ProviderDraft(type=ProviderType.SCRIPTED, name=_name("quick")), "quick", context_limit=100_000
            )
            draft = ProviderDraft(type=ProviderType.SCRIPTED, name=_name("acme"), display_name="Acme")
            if server is not None:
                draft = ProviderDraft(
                    type=provider,
                    name=_name("acme"),
                    display_name="Acme",
                    base_url=server if provider is ProviderType.ANTHROPIC else f"{server}/v1",
                    api_key=None if provider is ProviderType.OPENAI_COMPAT else SecretStr(KEY),
                )
            model = await _model(
                conn,
                draft,
                model_name,
                context_limit=context_limit,
                options=options,
                compression_threshold=threshold,
            )
            override = {"mode": "model", "model_config_id": str(quick.id)}
            await settings.write_setting(conn, "models", value={"title_generation": override})
        scripts = default_scripts()
        rig = WorkerRig(
            database=database,
            machine=Machine(database.api, _Nobody()),
            user=user,
            model=model.id,
            quick=quick.id,
            scripts=scripts,
            clock=clock,
            open_replica=open_replica,
            script=script,
        )

        def play(call: Call) -> Sequence[Step]:
            rig.calls.append(call)
            return rig.script(call) if callable(rig.script) else rig.script

        stack.enter_context(scripts.registered("test", play))
        stack.enter_context(scripts.registered("quick", (Say(f'{{"label": "{LABEL}"}}'),)))
        for _ in range(workers):
            await rig.add_replica()
        yield rig


def _name(kind: str) -> str:
    """Return a unique name, so that one database can have several rigs one after the other."""
    return f"{kind}-{uuid4().hex[:8]}"


async def _model(conn: Connection, provider: ProviderDraft, name: str, **fields: Any) -> model_configs.ModelConfig:
    created = await providers.create_provider(conn, provider, ring=RING)
    draft = ModelConfigDraft(provider_id=created.id, model=name, **fields)
    return await model_configs.create_model_config(conn, draft, by=None, ring=RING)


class _Nobody:
    def publish(self, hints: object) -> None:
        return


async def _open_replica(
    rig: WorkerRig,
    make_toolbox: MakeToolbox,
    *,
    config: WorkerConfig,
    loop: LoopConfig,
    retry: RetryPolicy,
    max_steps: int,
    max_output_tokens: int,
    records: Records | None,
) -> Replica:
    database, clock = rig.database, rig.clock
    worker_id, bus = uuid4(), Bus()
    notifier = Notifier(database.worker, bus)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=SystemClock(), rng=Random(1))
    directory = Directory(database.worker, ring=RING, environ={}, clock=clock)
    connector = Connector(scripts=rig.scripts, clock=clock, tokens_per_second=0)
    async with database.worker.acquire() as conn:
        await _appear(conn, worker_id)
    driving_machine = Machine(database.worker, notifier)
    debug = None if records is None else _debug_service(database, records, worker_id, directory, bus, notifier, clock)
    worker = Worker(
        WorkerServices(
            worker_id=worker_id,
            machine=driving_machine,
            pool=database.worker,
            connect=database.dedicated,
            bus=bus,
            publisher=notifier,
            directory=directory,
            connector=connector,
            toolbox=make_toolbox(
                ToolboxNeeds(
                    database.worker,
                    driving_machine,
                    bus,
                    directory=directory,
                    notifier=notifier,
                    connector=connector,
                    clock=clock,
                    loop=loop,
                    recordings=None if debug is None else debug.recordings,
                )
            ),
            clock=clock,
            rng=Random(1),
            config=config,
            loop=loop,
            retry=retry,
            max_steps=max_steps,
            max_output_tokens=max_output_tokens,
            recordings=None if debug is None else debug.recordings,
        )
    )
    replica = Replica(id=worker_id, bus=bus, notifier=notifier, worker=worker, connector=connector, debug=debug)
    loops = [asyncio.create_task(run()) for run in (listener.run, notifier.run, worker.run)]
    if debug is not None:
        loops.append(asyncio.create_task(debug.run()))

    async def stop() -> None:
        for task in loops:
            task.cancel()
        for ended in await asyncio.gather(*loops, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError), ended

    replica.stack.push_async_callback(directory.close)
    replica.stack.push_async_callback(connector.close)
    replica.stack.push_async_callback(stop)
    replica.stack.push_async_callback(notifier.close)
    if debug is not None:
        replica.stack.push_async_callback(debug.close)
    replica.stack.push_async_callback(worker.close)
    await listener.wait_connected()
    return replica


def _debug_service(
    database: Database,
    records: Records,
    worker_id: UUID,
    directory: Directory,
    bus: Bus,
    notifier: Notifier,
    clock: Clock,
) -> RecordingService:
    return RecordingService(
        database.worker,
        records.connect or (lambda: database.dedicated("debug")),
        replica_id=worker_id,
        policy=Policy(directory, pool=database.worker, is_forced=records.is_forced),
        bus=bus,
        publish=notifier.publish,
        clock=clock,
        limits=records.limits,
        queue_bytes=records.queue_bytes,
    )


async def _closed(replica: Replica, clock: Clock) -> None:
    """Close the rest. The clock is advanced, because closing waits for it."""
    closing = asyncio.ensure_future(replica.stack.aclose())
    async with asyncio.timeout(20):
        while not closing.done():
            await asyncio.wait({closing}, timeout=0.02)
            if isinstance(clock, FakeClock):
                await clock.advance(1.0)
    await closing


async def _appear(conn: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], worker_id: UUID) -> None:
    """Insert the row that tells peers that this replica lives. Without it, its leases do not count."""
    await conn.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
        " VALUES ($1, 'test', 'test', 1, 'test', 1)",
        worker_id,
    )
