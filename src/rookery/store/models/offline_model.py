"""The offline model: what answers where nobody has set up a model yet, so that a newcomer's first chat works."""

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
    """Make the offline model where there is none at all; its id if it was made."""
    # Under the lock: two first commands at once must not make two.
    async with config_lock.held(conn):
        if await model_configs.list_model_configs(conn):
            return None
        provider = await _offline_provider(conn)
        draft = ModelConfigDraft(
            provider_id=provider.id, model=SCRIPT, context_limit=CONTEXT_LIMIT, display_name="Guide (offline)"
        )
        return (await model_configs.create_model_config(conn, draft, by=None)).id


async def _offline_provider(conn: Connection) -> Provider:
    """A scripted provider that can be used: one that is there, or a new one under the first free name."""
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
