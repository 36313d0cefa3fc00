"""A whole replica with real workspaces and a scripted model."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

from rookery.app import installation
from rookery.app import replica as app_replica
from rookery.app.replica import Choices, Replica
from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Message, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Text, ToolCall, ToolResult
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Scripts
from rookery.models.connector import default_scripts
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import SystemClock
from rookery.settings import settings
from rookery.settings.settings import Settings
from rookery.store import machine
from rookery.store.chats import messages
from rookery.store.db.pool import Database
from rookery.store.machine import ChatSpec
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from tests.eventually import until

PATIENCE = 120.0


class HastyClock(SystemClock):
    """A clock without pauses: the offline model otherwise answers at reading speed."""

    async def sleep(self, seconds: float, tag: str) -> None:
        await super().sleep(0 if tag == "scripted-token" else seconds, tag)


@dataclass
class Said:
    """A tool call of a turn with its result."""

    name: str
    value: Any
    is_error: bool


@dataclass
class ReplicaRig:
    """A replica with a user and a chat. `restart` ends the replica and starts another with the same data."""

    config: Settings
    database: Database
    choices: Choices
    user: UUID
    model: UUID
    replica: Replica
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def restart(self) -> None:
        await self.stack.aclose()
        self.stack = AsyncExitStack()
        self.replica = await self.stack.enter_async_context(
            app_replica.running_replica(self.config, self.database, self.choices)
        )

    async def ask(self, words: str, **fields: Any) -> ChatId:
        spec = ChatSpec(
            owner_id=self.user,
            title="A chat",
            model_config_id=self.model,
            messages=(NewMessage(role=Role.USER, content=(Text(words),), created_by=self.user),),
            **fields,
        )
        chat_id = (await self.replica.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id
        await self.rested(chat_id)
        return chat_id

    async def say(self, chat_id: ChatId, words: str) -> list[Said]:
        """Send a message, wait for the end of the turn, and return its tool calls."""
        before = len(await self.calls(chat_id))
        message = NewQueuedMessage(content=(Text(words),), created_by=self.user)
        await self.replica.machine.chat(chat_id).update(
            lambda tx: machine.send_message(tx, message, BusyBehavior.QUEUE)
        )
        await self.rested(chat_id)
        return (await self.calls(chat_id))[before:]

    async def rested(self, chat_id: ChatId) -> None:
        async def is_over() -> bool:
            query = "SELECT status FROM chats WHERE id = $1"
            return await self.database.api.fetchval(query, chat_id) in (Status.WAITING, Status.ERROR)

        await until(is_over, timeout=PATIENCE)
        error = await self.database.api.fetchval("SELECT last_error FROM chats WHERE id = $1", chat_id)
        assert error is None, error

    async def messages(self, chat_id: ChatId) -> list[Message]:
        async with self.database.api.acquire() as conn:
            return list((await messages.list_oldest(conn, chat_id, limit=200)).messages)

    async def calls(self, chat_id: ChatId) -> list[Said]:
        return [
            Said(part.tool_name, parts.json_value(part.result), part.is_error)
            for message in await self.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolResult) and isinstance(part.result, msgspec.Raw)
        ]

    async def call_ids(self, chat_id: ChatId) -> list[str]:
        return [
            part.tool_call_id
            for message in await self.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolCall)
        ]

    async def last_words(self, chat_id: ChatId) -> str:
        answers = [each for each in await self.messages(chat_id) if each.role is Role.ASSISTANT]
        return parts.plain_text(answers[-1].parts())

    async def sql(self, statement: str, *arguments: object) -> Any:
        return await self.database.api.fetchval(statement, *arguments)


@asynccontextmanager
async def open_replica_rig(
    database_url: str, *, scripts: Scripts | None = None, model: str = "guide", **flags: str
) -> AsyncIterator[ReplicaRig]:
    with tempfile.TemporaryDirectory(prefix="rkh") as folder:
        home = Path(folder)
        given = {"data_dir": str(home / "data"), "database_url": database_url, **flags}
        config = settings.load(given, {"HOME": folder}).settings
        config.data_dir.mkdir(mode=0o700)
        choices = Choices(ring=KeyRing([("test", bytes(32))]), scripts=scripts or default_scripts(), clock=HastyClock())
        async with await Database.connect(installation.database_config(config, database_url)) as database:
            async with database.api.acquire() as conn:
                user = await conn.fetchval(
                    "INSERT INTO users (username) VALUES ($1) RETURNING id", f"user-{uuid4().hex[:8]}"
                )
                provider = await providers.create_provider(
                    conn,
                    ProviderDraft(type=ProviderType.SCRIPTED, name="offline"),
                    ring=choices.ring,
                )
                draft = ModelConfigDraft(provider_id=provider.id, model=model, context_limit=100_000)
                config_id = (await model_configs.create_model_config(conn, draft, by=None)).id
            async with AsyncExitStack() as outer:
                stack = AsyncExitStack()
                replica = await stack.enter_async_context(app_replica.running_replica(config, database, choices))
                stead = ReplicaRig(config, database, choices, UUID(str(user)), config_id, replica, stack)
                outer.push_async_callback(lambda: stead.stack.aclose())
                await until(lambda: database.api.fetchval("SELECT count(*) > 0 FROM templates"), timeout=PATIENCE)
                try:
                    yield stead
                finally:
                    await _end_workspaces(stead)


async def _end_workspaces(stead: ReplicaRig) -> None:
    """Kill the sandboxes of the test, which would outlive the replica."""
    for driver in stead.replica.workspaces.parts.inventories:
        for found in await driver.list_running():
            await driver.stop_stray(found)
