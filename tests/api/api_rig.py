"""A whole server for tests of the API: a replica with its own database, on a real socket, with users."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2

from rookery.app import installation
from rookery.app import replica as app_replica
from rookery.app.replica import Choices, Replica
from rookery.domain.access.rights import Role, Scope
from rookery.domain.models.options import ProviderType
from rookery.models import key_ring as sealing
from rookery.runtime.clock import Clock, SystemClock
from rookery.server.listener import serving
from rookery.settings.settings import Settings, load
from rookery.store.db.pool import Database
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.people import tokens, users
from rookery.store.people.passwords import Passwords
from rookery.store.people.users import User, UserDraft
from rookery.store.settings import settings as stored_settings
from rookery.worker import short_texts as worker_titles
from rookery.worker.config import WorkerConfig
from rookery.workspaces.drivers.driver_interface import Driver

PASSWORD = "correct horse battery"


@dataclass(frozen=True, slots=True)
class Person:
    """A user with an account, an API token with the scope `all`, and a client that sends it."""

    user: User
    token: str
    http: httpx2.AsyncClient

    @property
    def id(self) -> UUID:
        return self.user.id


@dataclass(slots=True)
class ApiRig:
    """The server at `url`. Each user from `add` has a client; the client `nobody` has no credentials."""

    url: str
    replica: Replica
    nobody: httpx2.AsyncClient
    clock: Clock
    _clients: list[httpx2.AsyncClient] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.replica.database

    async def add(
        self, name: str, *, role: Role = Role.MEMBER, scopes: frozenset[Scope] = frozenset({Scope.ALL})
    ) -> Person:
        async with self.database.api.acquire() as conn:
            draft = UserDraft(email=f"{name}@example.test", username=name, name=name.title(), role=role)
            hashed = await self.replica.passwords.hash(PASSWORD)
            user = await users.create_user(conn, draft, password_hash=hashed)
            token = await self.token_of(user, scopes=scopes)
        return Person(user, token, self.client(token))

    async def token_of(self, user: User, *, scopes: frozenset[Scope] = frozenset({Scope.ALL})) -> str:
        async with self.database.api.acquire() as conn:
            made = await tokens.create_token(
                conn, user.id, name=f"test {len(self._clients)}", scopes=scopes, now=self.clock.now()
            )
        return made.secret

    def client(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        named = {"Authorization": f"Bearer {token}"} if token else {}
        # Certificates are not needed over plain http, and loading those of the system is slow.
        client = httpx2.AsyncClient(base_url=self.url, headers={**named, **headers}, timeout=20.0, verify=False)
        self._clients.append(client)
        return client

    async def add_model(self, model: str = "guide", *, name: str = "offline", titles: bool = False) -> UUID:
        """Add an offline model; the first one is the default. It writes titles of new chats only if `titles`."""
        async with self.database.api.acquire() as conn:
            provider = await providers.create_provider(
                conn, ProviderDraft(type=ProviderType.SCRIPTED, name=name), ring=None
            )
            draft = ModelConfigDraft(provider_id=provider.id, model=model, context_limit=100_000)
            made = await model_configs.create_model_config(conn, draft, by=None)
            await stored_settings.write_setting(conn, worker_titles.SETTING, value={"generate_titles": titles})
        self.replica.directory.invalidate()
        return made.id

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


@asynccontextmanager
async def open_house(
    database_url: str,
    tmp_path: Path,
    *,
    clock: Clock | None = None,
    takes_chats: bool = False,
    worker: WorkerConfig | None = None,
    overrides: dict[str, Any] | None = None,
    drivers: Mapping[str, Driver] | None = None,
) -> AsyncIterator[ApiRig]:
    """Start a server. Without `takes_chats` no worker runs, so chats keep the state that requests gave them. Without
    `drivers` no workspace is started."""
    settings = settings_for(database_url, tmp_path, overrides)
    choices = Choices(
        ring=sealing.load_ring(None, settings.data_dir),
        clock=clock or SystemClock(),
        passwords=Passwords(memory_kib=64),
        takes_chats=takes_chats,
        drivers=drivers or {},
        worker=worker or WorkerConfig(),
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with (
            await Database.connect(installation.database_config(settings, database_url)) as database,
            app_replica.running_replica(settings, database, choices) as replica,
            serving(replica.application, listening),
            httpx2.AsyncClient(base_url=url, timeout=20.0, verify=False) as nobody,
        ):
            rig = ApiRig(url, replica, nobody, choices.clock)
            try:
                yield rig
            finally:
                await rig.close()


def settings_for(database_url: str, tmp_path: Path, overrides: dict[str, Any] | None = None) -> Settings:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700, exist_ok=True)
    flags = {"data_dir": str(data_dir), "database_url": database_url, **(overrides or {})}
    return load(flags, {}).settings
