"""A rig for the state machine: a real database, a machine, and chats that transitions bring into any state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from uuid import UUID, uuid4

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.chat import Chat, Fence, LastError
from rookery.domain.chat.messages import ChatId, Message, MessageId, NewMessage, NewQueuedMessage, QueuedMessage, Role
from rookery.domain.chat.parts import Part, Text, ToolCall, ToolResult
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.hints import ChatHint, Hint, OwnershipHint, WatchHint
from rookery.store.machine import ChatSpec, Machine, Tx
from rookery.store.machine.bundle import CHAT_COLUMNS

T = TypeVar("T")
P = ParamSpec("P")
Conn: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

CLIENT_TOOL = "pick_colour"
DYNAMIC_TOOLS = f'[{{"name": "{CLIENT_TOOL}", "description": "Lets the user pick a colour."}}]'
FAILED = LastError(message="The provider is down. Try again later.", retryable=True, kind="overloaded")

MESSAGE_COLUMNS = """
    id, chat_id, revision, role, visibility, compressed, deleted, content, content_version, created_by,
    model_config_id, reasoning_effort, client_id, created_at
"""

CREATED_STATES = tuple(state for state in State if state not in (State.N, State.INVALID))


def text(words: str) -> tuple[Part, ...]:
    return (Text(words),)


def assistant(words: str, **fields: object) -> NewMessage:
    return NewMessage(role=Role.ASSISTANT, content=text(words), **fields)  # type: ignore[arg-type]


def call(tool_call_id: str, tool_name: str = CLIENT_TOOL, *, provider_executed: bool = False) -> ToolCall:
    return ToolCall(tool_call_id, tool_name, args=parts.json_raw({}), provider_executed=provider_executed)


def calling(*calls: ToolCall) -> NewMessage:
    return NewMessage(role=Role.ASSISTANT, content=calls)


def result(tool_call_id: str, tool_name: str = CLIENT_TOOL) -> NewMessage:
    answer = ToolResult(tool_call_id, tool_name, result=parts.json_raw({"output": "blue"}))
    return NewMessage(role=Role.TOOL, content=(answer,))


class Recorder:
    """A publisher that records hints. With `failing` it raises an error."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self.failing = False

    def publish(self, hints: Sequence[Hint]) -> None:
        if self.failing:
            raise ConnectionError("the publisher is broken")
        self.hints.extend(hints)

    def chats(self) -> list[ChatHint]:
        return [hint for hint in self.hints if isinstance(hint, ChatHint)]

    def ownership(self) -> list[OwnershipHint]:
        return [hint for hint in self.hints if isinstance(hint, OwnershipHint)]

    def watch(self) -> list[WatchHint]:
        return [hint for hint in self.hints if isinstance(hint, WatchHint)]

    def clear(self) -> None:
        self.hints.clear()


class Rig:
    """A database with a machine, and short methods for chats, transitions and reads."""

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        *,
        user: UUID,
        model: UUID,
        worker: UUID,
        is_shared: bool = False,
    ) -> None:
        self.pool = pool
        self.is_shared = is_shared
        self.published = Recorder()
        self.machine = Machine(pool, self.published)
        self.user = user
        self.model = model
        self.worker = worker

    # Making chats

    def spec(self, *messages: NewMessage, **fields: object) -> ChatSpec:
        first = NewMessage(role=Role.USER, content=text("hello"), created_by=self.user)
        defaults: dict[str, object] = {
            "owner_id": self.user,
            "title": "A chat",
            "model_config_id": self.model,
            "messages": messages or (first,),
            "dynamic_tools": DYNAMIC_TOOLS,
        }
        return ChatSpec(**{**defaults, **fields})  # type: ignore[arg-type]

    async def create(self, *messages: NewMessage, **fields: object) -> ChatId:
        spec = self.spec(*messages, **fields)
        return (await self.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id

    async def child(self, root: ChatId, **fields: object) -> ChatId:
        return await self.create(parent_chat_id=root, root_chat_id=root, **fields)

    async def disabled_user(self) -> UUID:
        user_id: UUID = await self.pool.fetchval(
            "INSERT INTO users (username, status) VALUES ($1, 'disabled') RETURNING id", f"gone-{uuid4().hex[:20]}"
        )
        return user_id

    async def chat(self, state: State, *, queued: int = 1, steer: bool = False, owner: UUID | None = None) -> ChatId:
        """Create a chat in `state`, by transitions only. In states with a queue it has `queued` rows."""
        chat_id = await self.create(owner_id=owner or self.user)
        base = State(state.removeprefix("X"))
        if base in (State.A0, State.A1):
            await self.update(chat_id, lambda tx: machine.commit_step(tx, [calling(call("call-1"))]))
            await self.update(chat_id, lambda tx: machine.enter_requires_action(tx, timeout_seconds=0))
        if state.has_queue:
            for index in range(queued):
                await self.send(chat_id, f"queued {index}", BusyBehavior.STEER if steer else BusyBehavior.QUEUE)
        match base:
            case State.W:
                await self.update(chat_id, machine.finish_turn)
            case State.E0 | State.E1:
                await self.update(chat_id, lambda tx: machine.finish_error(tx, FAILED))
            case State.I0 | State.I1:
                await self.update(chat_id, machine.interrupt)
        if state.is_archived:
            await self.update(chat_id, lambda tx: machine.set_archived(tx, True))
        assert (await self.load(chat_id)).state is state
        self.published.clear()
        return chat_id

    async def invalid_chat(self, *, queued: int = 0) -> ChatId:
        """Create a chat in a state that the constraints forbid, as after a restore or manual SQL."""
        chat_id = await self.chat(State.E1, queued=queued) if queued else await self.chat(State.W)
        await self.force(chat_id, "status = 'asleep'")
        self.published.clear()
        return chat_id

    async def force(self, chat_id: ChatId, assignments: str) -> None:
        """Set columns that the constraints would refuse, by dropping all constraints. The database belongs to this
        test.
        """
        assert not self.is_shared, "others rely on the constraints"
        async with self.pool.acquire() as conn, conn.transaction():
            names = await conn.fetch(
                "SELECT conname FROM pg_constraint WHERE conrelid = 'chats'::regclass AND contype = 'c'"
            )
            for record in names:
                await conn.execute(f"ALTER TABLE chats DROP CONSTRAINT {record['conname']}")
            await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", chat_id)
            await conn.execute(f"UPDATE chats SET {assignments} WHERE id = $1", chat_id)

    # Acting

    async def update(self, chat_id: UUID, fn: Callable[[Tx], Awaitable[T]], *, fence: Fence | None = None) -> T:
        return await self.machine.chat(chat_id).update(fn, fence=fence)

    async def run(
        self, chat_id: UUID, fn: Callable[Concatenate[Tx, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one transition in a separate bundle."""
        return await self.update(chat_id, lambda tx: fn(tx, *args, **kwargs))

    def message(self, words: str, **fields: object) -> NewQueuedMessage:
        defaults: dict[str, object] = {"content": text(words), "created_by": self.user}
        return NewQueuedMessage(**{**defaults, **fields})  # type: ignore[arg-type]

    async def send(
        self, chat_id: UUID, words: str, busy: BusyBehavior = BusyBehavior.QUEUE, **fields: object
    ) -> machine.Sent:
        message = self.message(words, **fields)
        return await self.update(chat_id, lambda tx: machine.send_message(tx, message, busy))

    async def commit(self, chat_id: UUID, *messages: NewMessage) -> machine.StepCommitted:
        return await self.update(chat_id, lambda tx: machine.commit_step(tx, messages))

    async def acquire(self, chat_id: UUID) -> Fence:
        """Acquire the chat for this rig's worker, and return the fence of a task that starts now."""
        runner_id = uuid4()
        chat = await self.update(chat_id, lambda tx: machine.acquire(tx, worker_id=self.worker, runner_id=runner_id))
        return self.fence(chat)

    def fence(self, chat: Chat, **fields: object) -> Fence:
        defaults: dict[str, object] = {
            "worker_id": chat.worker_id,
            "runner_id": chat.runner_id,
            "status": Status(chat.status),
            "history_version": chat.history_version,
        }
        return Fence(**{**defaults, **fields})  # type: ignore[arg-type]

    # Looking

    async def load(self, chat_id: UUID) -> Chat:
        async with self.pool.acquire() as conn:
            record = await conn.fetchrow(f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = $1", chat_id)
        assert record is not None
        return Chat(*record)

    async def state(self, chat_id: UUID) -> State:
        return (await self.load(chat_id)).state

    async def history(self, chat_id: UUID, *, deleted: bool = False) -> list[Message]:
        where = "" if deleted else "AND NOT deleted"
        async with self.pool.acquire() as conn:
            records = await conn.fetch(
                f"SELECT {MESSAGE_COLUMNS} FROM chat_messages WHERE chat_id = $1 {where} ORDER BY id", chat_id
            )
        return [Message(*record) for record in records]

    async def last_id(self, chat_id: UUID) -> MessageId:
        return (await self.history(chat_id))[-1].id

    async def queue(self, chat_id: UUID) -> list[QueuedMessage]:
        async with self.pool.acquire() as conn:
            records = await conn.fetch(
                f"SELECT {machine.queue_rows.QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = $1"
                " ORDER BY position, id",
                chat_id,
            )
        return [QueuedMessage(*record) for record in records]

    async def trace(self, chat_id: UUID) -> list[object]:
        """Return everything that a refused transition must leave unchanged."""
        async with self.pool.acquire() as conn:
            tables = (
                "chats",
                "chat_messages",
                "chat_queued_messages",
                "chat_heartbeats",
                "chat_file_links",
                "chat_pins",
            )
            found: list[object] = []
            for table in tables:
                key = "id" if table == "chats" else "chat_id"
                records = await conn.fetch(f"SELECT t::text FROM {table} t WHERE {key} = $1 ORDER BY 1", chat_id)
                found.append([record[0] for record in records])
        return found

    async def sql(self, statement: str, *args: object) -> None:
        async with self.pool.acquire() as conn:
            await conn.execute(statement, *args)

    async def value(self, query: str, *args: object) -> object:
        async with self.pool.acquire() as conn:
            return await conn.fetchval(query, *args)

    async def columns(self, chat_id: UUID) -> dict[str, Any]:
        """Return every column of the chat, including those that `Chat` does not have."""
        async with self.pool.acquire() as conn:
            record = await conn.fetchrow("SELECT * FROM chats WHERE id = $1", chat_id)
        assert record is not None
        return dict(record)

    async def linked_files(self, chat_id: UUID) -> set[UUID]:
        async with self.pool.acquire() as conn:
            records = await conn.fetch("SELECT file_id FROM chat_file_links WHERE chat_id = $1", chat_id)
        return {record["file_id"] for record in records}

    async def add_model(self) -> UUID:
        """Add a second model config."""
        found = await self.value(
            "INSERT INTO model_configs (provider_id, model, context_limit)"
            " SELECT id, 'other', 100000 FROM model_providers LIMIT 1 RETURNING id"
        )
        assert isinstance(found, UUID)
        return found

    async def add_file(self) -> UUID:
        found = await self.value(
            "INSERT INTO chat_files (owner_id, name, mime_type, size_bytes) VALUES ($1, 'a.txt', 'text/plain', 1)"
            " RETURNING id",
            self.user,
        )
        assert isinstance(found, UUID)
        return found


def words(message: Message | QueuedMessage) -> str:
    return parts.plain_text(message.parts())


def _sorted_json(content: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(content), order="deterministic").decode()


def told(messages: Iterable[Message]) -> list[Message]:
    """Return messages as comparable values, because returned and stored JSON are formatted differently."""
    return [msgspec.structs.replace(each, content=_sorted_json(each.content)) for each in messages]


def closure_of(message: Message) -> tuple[str, str]:
    """Return the call id and the reason of a synthetic result. Fail if the row is not one."""
    (part,) = message.parts()
    assert isinstance(part, ToolResult)
    assert part.is_error
    assert isinstance(part.result, Raw)
    return part.tool_call_id, parts.json_value(part.result)["reason"]


@asynccontextmanager
async def make_rig(database_url: str, *, pool_size: int = 16, is_shared: bool = False) -> AsyncIterator[Rig]:
    async def keep(_: object) -> None:
        """The pool keeps no session state that would need a reset."""

    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=pool_size, reset=keep)
    try:
        async with pool.acquire() as conn:
            # Names of its own: a database may be shared.
            name = f"ada-{uuid4().hex[:12]}"
            user = await conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", name)
            provider = await conn.fetchval(
                "INSERT INTO model_providers (type, name) VALUES ('scripted', $1) RETURNING id", name
            )
            model = await conn.fetchval(
                "INSERT INTO model_configs (provider_id, model, context_limit) VALUES ($1, 'scripted', 100000)"
                " RETURNING id",
                provider,
            )
            worker = await add_replica(conn)
        yield Rig(pool, user=user, model=model, worker=worker, is_shared=is_shared)
    finally:
        await asyncio.wait_for(pool.close(), 10)


async def add_replica(conn: Conn) -> UUID:
    worker = uuid4()
    await conn.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version) VALUES ($1, 'h', 'h', 1, '0', 1)",
        worker,
    )
    return worker
