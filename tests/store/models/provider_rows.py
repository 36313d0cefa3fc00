"""Providers, model configs and keys for tests, and a shared key ring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from rookery.domain.models.options import ProviderType
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfig, ModelConfigDraft
from rookery.store.models.providers import Provider, ProviderDraft

RING = KeyRing.parse(new_key("test"))
KEY = "central-key-0123456789"


class ModelRows:
    """A database without models; `conn` is a connection to it."""

    def __init__(self, url: str, conn: asyncpg.Connection) -> None:
        self.url = url
        self.conn = conn

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        conn = await asyncpg.connect(self.url)
        try:
            yield conn
        finally:
            await conn.close()

    async def user(self) -> UUID:
        name = f"user-{uuid4().hex}"
        return UUID(str(await self.conn.fetchval("INSERT INTO users (username) VALUES ($1) RETURNING id", name)))

    async def provider(self, type_: str = "anthropic", *, key: str | None = KEY, **fields: Any) -> Provider:
        fields.setdefault("name", f"p{uuid4().hex}")
        api_key = None if key is None else SecretStr(key)
        draft = ProviderDraft(type=ProviderType(type_), api_key=api_key, **fields)
        return await providers.create_provider(self.conn, draft, ring=RING)

    async def config(self, provider: Provider, model: str = "m", **fields: Any) -> ModelConfig:
        fields.setdefault("context_limit", 1000)
        draft = ModelConfigDraft(provider_id=provider.id, model=model, **fields)
        return await model_configs.create_model_config(self.conn, draft, by=None, ring=RING)

    async def chat(self, owner_id: UUID, config: ModelConfig, *, parent: UUID | None = None) -> UUID:
        chat_id = await self.conn.fetchval(
            """
            INSERT INTO chats (owner_id, parent_chat_id, root_chat_id, status, title, last_model_config_id)
            VALUES ($1, $2, $2, 'waiting', 'A chat', $3)
            RETURNING id
            """,
            owner_id,
            parent,
            config.id,
        )
        return UUID(str(chat_id))


@asynccontextmanager
async def open_nest(url: str) -> AsyncIterator[ModelRows]:
    conn = await asyncpg.connect(url)
    try:
        yield ModelRows(url, conn)
    finally:
        await conn.close()
