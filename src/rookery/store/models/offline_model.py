"""The offline model: it answers until a model is configured, so that a new user's first chat works."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.models.options import ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, model_configs, providers
from rookery.store.models.errors import NameTaken
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import Provider, ProviderDraft

NAME = "offline"
SCRIPT = "guide"
CONTEXT_LIMIT = 100_000


async def ensure_model(conn: Connection) -> UUID | None:
    """Create the offline model if there is no model at all. Returns its id if it was created."""
    # Under the lock: two first commands at the same time must not create two.
    async with config_lock.held(conn):
        if await model_configs.list_model_configs(conn):
            return None
        provider = await _offline_provider(conn)
        draft = ModelConfigDraft(
            provider_id=provider.id, model=SCRIPT, context_limit=CONTEXT_LIMIT, display_name="Guide (offline)"
        )
        return (await model_configs.create_model_config(conn, draft, by=None)).id


async def _offline_provider(conn: Connection) -> Provider:
    """Return an enabled scripted provider. If there is none, create one under the first free name."""
    for provider in await providers.list_providers(conn):
        if provider.type == ProviderType.SCRIPTED and provider.enabled:
            return provider
    number = 1
    while True:
        name = NAME if number == 1 else f"{NAME}-{number}"
        try:
            return await providers.create_provider(
                conn, ProviderDraft(type=ProviderType.SCRIPTED, name=name, display_name="Offline"), ring=None
            )
        except NameTaken:
            number += 1
