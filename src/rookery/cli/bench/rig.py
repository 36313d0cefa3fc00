"""The processes and data of `rookery bench`: an embedded PostgreSQL, a provider, the floor, and `rookery serve`.

Everything is in a temporary folder. The user's settings, database and keys are not read.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import aiohttp

from rookery.cli.bench import processes
from rookery.cli.bench.conversations import Conversation, a_few_at_once
from rookery.cli.bench.processes import Child
from rookery.cli.exit_codes import Refused
from rookery.domain.access.rights import Role, Scope
from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.clock import SystemClock
from rookery.runtime.secret_str import SecretStr
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import Connection, Database, DatabaseConfig
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.people import tokens, users
from rookery.store.people.users import UserDraft
from rookery.store.settings import limit_settings, settings

PREFIX = "rookery-bench-"
MODELS = ("1@0", "20@0", "0@10", "0@50", "0@100")
CONNECTIONS = "200"
KEEP_ALIVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRig:
    """What all measurements share."""

    folder: Path
    database: Database
    database_url: str
    postgres_pid: int
    provider: Child
    floor: Child
    session: aiohttp.ClientSession
    secret_keys: str
    tokens: tuple[str, ...]  # each of a different user, because some limits apply to each user
    models: dict[str, UUID]

    def serving(self, *, replicas: int) -> AbstractAsyncContextManager[Child]:
        variables = {
            "ROOKERY_DATA_DIR": str(self.folder / "server"),
            "ROOKERY_DATABASE_URL": self.database_url,
            "ROOKERY_SECRET_KEYS": self.secret_keys,
            "ROOKERY_LISTEN": "127.0.0.1:0",
            "ROOKERY_REPLICAS": str(replicas),
            "ROOKERY_LOG_LEVEL": "warning",
            "ROOKERY_DRAIN_TIMEOUT": "1s",  # nothing is lost: the answers are endless
        }
        return processes.running(
            "server",
            *("-m", "rookery.cli.main", "serve"),
            environ=processes.clean_environment(self.folder, **variables),
            folder=self.folder,
        )

    def of_floor(self, count: int, *, is_stored: bool = False) -> list[Conversation]:
        """Return conversations with the floor. `is_stored`: messages and answers are written to the database."""
        query = "?stored" if is_stored else ""
        return [
            Conversation(
                self.session,
                stream_url=f"{self.floor.url.replace('http', 'ws', 1)}/streams/{number}",
                send_url=f"{self.floor.url}/chats/{number}{query}",
                token="none",  # noqa: S106 - the floor has no users
                body=lambda model: {"model": model, "content": "And now?"},
            )
            for number in range(count)
        ]

    async def create_chats(self, server: Child, count: int) -> list[tuple[UUID, str]]:
        """Create chats of different users, each with a short first turn. Return them with the tokens."""
        made: list[tuple[UUID, str]] = []
        body = {
            "content": [{"type": "text", "text": "Hello"}],
            "title": "bench",
            "model_config_id": str(self.models["1@0"]),
        }

        async def create(token: str) -> None:
            headers = {"Authorization": f"Bearer {token}"}
            async with self.session.post(f"{server.url}/api/v1/chats", json=body, headers=headers) as response:
                if response.status != 201:
                    raise Refused(f"A chat was refused with {response.status}: {(await response.text())[:200]}")
                made.append((UUID((await response.json())["id"]), token))

        await a_few_at_once([partial(create, self.tokens[n % len(self.tokens)]) for n in range(count)], 8)
        return made

    def of_server(self, server: Child, chats: Sequence[tuple[UUID, str]]) -> list[Conversation]:
        api = f"{server.url}/api/v1/chats"

        def body(model: str) -> object:
            return {
                "content": [{"type": "text", "text": "And now?"}],
                "model_config_id": str(self.models[model]),
            }

        return [
            Conversation(
                self.session,
                stream_url=f"{api.replace('http', 'ws', 1)}/{chat}/stream?tail=0",
                send_url=f"{api}/{chat}/messages",
                interrupt_url=f"{api}/{chat}/interrupt",
                token=token,
                body=body,
            )
            for chat, token in chats
        ]

    async def provider_requests(self) -> list[tuple[str, float]]:
        """Return (chat, time) of the requests to the provider since the last call."""
        async with self.session.get(f"{self.provider.url}/requests") as response:
            return [(chat, at) for chat, at in await response.json()]

    async def ask_provider(self, model: str) -> None:
        """Wait for the first bytes of an answer."""
        body = json.dumps({"model": model})
        async with self.session.post(f"{self.provider.url}/chat/completions", data=body) as response:
            await response.content.readany()
            async for _ in response.content.iter_any():
                pass


@asynccontextmanager
async def open_rig(*, people: int) -> AsyncIterator[BenchRig]:
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        environ = processes.clean_environment(folder)
        postgres = EmbeddedServer(folder / "database", options={"max_connections": CONNECTIONS})
        try:
            await postgres.start()
            assert postgres.pid is not None
            await migrate.migrate(DatabaseConfig(postgres.url))
            async with AsyncExitStack() as stack:
                database = await stack.enter_async_context(await Database.connect(DatabaseConfig(postgres.url)))
                provider = await stack.enter_async_context(
                    processes.running(
                        "provider", "-m", "rookery.testing.paced_provider", environ=environ, folder=folder
                    )
                )
                floor = await stack.enter_async_context(
                    processes.running(
                        "floor",
                        *("-m", "rookery.cli.bench.floor", provider.url, postgres.url),
                        environ=environ,
                        folder=folder,
                    )
                )
                session = await stack.enter_async_context(
                    aiohttp.ClientSession(
                        # Shorter than the server keeps idle connections, so that no request meets a closed one.
                        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                        timeout=aiohttp.ClientTimeout(total=60.0),
                    )
                )
                secret_keys = new_key("bench")
                async with database.api.acquire() as conn:
                    made = await _create_people(conn, people)
                    models = await _create_models(conn, provider.url, KeyRing.parse(secret_keys))
                yield BenchRig(
                    folder=folder,
                    database=database,
                    database_url=postgres.url,
                    postgres_pid=postgres.pid,
                    provider=provider,
                    floor=floor,
                    session=session,
                    secret_keys=secret_keys,
                    tokens=made,
                    models=models,
                )
        finally:
            await _stop(postgres)


async def _stop(postgres: EmbeddedServer) -> None:
    """Stop the database, even if the caller is canceled meanwhile. Its files are removed next."""
    stopping = asyncio.ensure_future(postgres.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


async def _create_people(conn: Connection, count: int) -> tuple[str, ...]:
    """Create users, and return a token of each. The first is an administrator: without one, a server is not set up."""
    now, made = SystemClock().now(), []
    for number in range(count):
        role = Role.MEMBER if number else Role.ADMIN
        user = await users.create_user(
            conn, UserDraft(email=f"bench-{number}@example.test", username=f"bench-{number}", role=role)
        )
        token = await tokens.create_token(conn, user.id, name="bench", scopes={Scope.ALL}, now=now)
        made.append(token.secret)
    return tuple(made)


async def _create_models(conn: Connection, provider_url: str, ring: KeyRing) -> dict[str, UUID]:
    await settings.write_setting(conn, limit_settings.CHATS, value={"running_roots": 0})
    # Disabled, because titles, labels and summaries would be counted as turns.
    nobody = {"mode": "model", "model_config_id": str(uuid4())}
    await settings.write_setting(conn, "models", value={"title_generation": nobody})
    draft = ProviderDraft(
        type=ProviderType.OPENAI_COMPAT,
        name="bench",
        base_url=provider_url,
        api_key=SecretStr("sk-bench"),
        send_correlation=True,
    )
    provider = await providers.create_provider(conn, draft, ring=ring)
    made = {}
    for name in MODELS:
        config = ModelConfigDraft(provider_id=provider.id, model=name, context_limit=50_000_000)
        made[name] = (await model_configs.create_model_config(conn, config, by=None)).id
    return made
