"""Several replicas behind one port as real processes, a client, and a model that waits for the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rookery.domain.access.rights import Role, Scope
from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.people import tokens, users
from rookery.store.people.users import UserDraft
from rookery.testing import fake_completions
from rookery.testing.fake_server import FakeServer, RecordedRequest, Scenario
from tests.cli.serve.server_process import Served, serving
from tests.eventually import until

FIRST, REST = "Once upon a time ", "there was a rook."
WAIT_SECONDS = 60.0

Event = dict[str, Any]


class Storyteller:
    """A model that begins to answer, and continues when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.server = FakeServer(respond=self._respond)

    def _respond(self, request: RecordedRequest) -> Scenario:
        style = fake_completions.Style(piece_chars=len(FIRST))
        events = fake_completions.events(fake_completions.Answer(text=FIRST + REST), style, model="m")
        # After the chunk with the first words.
        middle = next(i for i, event in enumerate(events) if FIRST.strip() in json.dumps(event, default=str)) + 1
        return Scenario(events=[*events[:middle], self.gate, *events[middle:]])


class Follower:
    """A client of one chat, with everything it received."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.events: list[Event] = []
        self._task = asyncio.create_task(self._read())

    @property
    def replica_id(self) -> str:
        (hello,) = self.of("hello")
        found: str = hello["replica_id"]
        return found

    @property
    def close_code(self) -> int | None:
        return self._connection.close_code

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    def preview(self) -> str:
        return "".join(event["part"].get("text", "") for event in self.of("message_part"))

    async def until(self, kind: str) -> None:
        await until(lambda: self.of(kind), timeout=WAIT_SECONDS)

    async def ended(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self._task

    async def close(self) -> None:
        await self._connection.close()
        await self._task

    async def _read(self) -> None:
        try:
            while True:
                self.events.extend(json.loads(await self._connection.recv()))
        except ConnectionClosed:
            return


@dataclass(slots=True)
class ReplicasRig:
    served: Served
    story: Storyteller
    database: asyncpg.Connection
    http: httpx2.AsyncClient
    token: str

    async def replicas(self) -> dict[str, int]:
        """Return the process ids of the replicas in the database, by replica id."""
        return {str(row["id"]): row["pid"] for row in await self.database.fetch("SELECT id, pid FROM replicas")}

    async def start_chat(self) -> UUID:
        answer = await self.http.post("/api/v1/chats", json={"content": [{"type": "text", "text": "Tell me a story."}]})
        assert answer.status_code == 201, answer.text
        return UUID(answer.json()["id"])

    async def status(self, chat_id: UUID) -> str:
        return str(await self.database.fetchval("SELECT status FROM chats WHERE id = $1", chat_id))

    async def owner(self, chat_id: UUID) -> str | None:
        found = await self.database.fetchval("SELECT worker_id FROM chats WHERE id = $1", chat_id)
        return None if found is None else str(found)

    async def until_owned(self, chat_id: UUID, *, not_by: str = "") -> str:
        """Wait until a replica owns the chat and has begun to answer. Return it; `not_by` is the earlier owner."""

        async def is_owned() -> bool:
            row = await self.database.fetchrow("SELECT worker_id, generation_attempt FROM chats WHERE id = $1", chat_id)
            assert row is not None
            return row["worker_id"] is not None and str(row["worker_id"]) != not_by and row["generation_attempt"] > 0

        await until(is_owned, timeout=WAIT_SECONDS)
        owner = await self.owner(chat_id)
        assert owner is not None
        return owner

    async def follow(self, chat_id: UUID) -> Follower:
        url = self.served.url.replace("http:", "ws:")
        connection = await connect(
            f"{url}/api/v1/chats/{chat_id}/stream",
            additional_headers={"Authorization": f"Bearer {self.token}"},
            compression=None,
        )
        follower = Follower(connection)
        await follower.until("synced")
        return follower

    async def follow_elsewhere(self, chat_id: UUID, owner: str) -> Follower:
        """Connect until the client is on another replica than the chat; the kernel chooses the replica."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                follower = await self.follow(chat_id)
                if follower.replica_id != owner:
                    return follower
                await follower.close()


@asynccontextmanager
async def open_fleet(
    url: str, home: Path, *, replicas: int, options: tuple[str, ...] = ()
) -> AsyncIterator[ReplicasRig]:
    """Start the replicas with an external, migrated database."""
    story, ring = Storyteller(), new_key("k1")
    database = await asyncpg.connect(url)
    try:
        async with story.server.listening() as provider:
            token = await _prepare(database, provider, KeyRing.parse(ring))
            arguments = ("--data-dir", str(home / "data"), "--replicas", str(replicas), *options)
            variables = {"ROOKERY_DATABASE_URL": url, "ROOKERY_SECRET_KEYS": ring, "ROOKERY_LOG_FORMAT": "json"}
            context = serving(home, *arguments, **variables)
            served = await asyncio.to_thread(context.__enter__)
            try:
                headers = {"Authorization": f"Bearer {token}"}
                async with httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=30.0) as http:
                    yield ReplicasRig(served, story, database, http, token)
            finally:
                story.gate.set()
                await asyncio.to_thread(context.__exit__, None, None, None)
    finally:
        await database.close()


async def _prepare(conn: asyncpg.Connection, provider_url: str, ring: KeyRing) -> str:
    """Create an administrator with a token, and the model. Titles are disabled."""
    await conn.execute("INSERT INTO settings (key, value) VALUES ('models', '{\"generate_titles\": false}')")
    draft = UserDraft(email="ada@example.test", username="ada", name="Ada", role=Role.ADMIN)
    user = await users.create_user(conn, draft, password_hash=None)
    provider = await providers.create_provider(
        conn,
        ProviderDraft(
            type=ProviderType.OPENAI_COMPAT, name="story", base_url=f"{provider_url}/v1", api_key=SecretStr("sk-test")
        ),
        ring=ring,
    )
    model = ModelConfigDraft(provider_id=provider.id, model="teller", context_limit=100_000)
    await model_configs.create_model_config(conn, model, by=None)
    made = await tokens.create_token(conn, user.id, name="test", scopes=frozenset({Scope.ALL}), now=SystemClock().now())
    return made.secret
