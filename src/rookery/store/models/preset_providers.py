"""Providers that a server creates at its start: one for each API key in the environment, and the offline model.

`ANTHROPIC_API_KEY` and similar variables create one row each. The row does not contain the key. It is created only if
no other live provider has its type, and keeps its id over restarts because chats refer to it. The offline model answers
until a model is configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.options import ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, model_configs, providers
from rookery.store.models.errors import NameTaken
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import Provider, ProviderDraft
from rookery.telemetry.log import get_logger

log = get_logger("store.models.preset_providers")
OFFLINE_NAME = "offline"
OFFLINE_SCRIPT = "guide"
OFFLINE_CONTEXT_LIMIT = 100_000


class Preset(msgspec.Struct, frozen=True):
    """The variables that define a provider of one type."""

    type: ProviderType
    key_variable: str
    base_url_variable: str
    display_name: str


PRESETS = (
    Preset(ProviderType.ANTHROPIC, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "Anthropic"),
    Preset(ProviderType.OPENAI, "OPENAI_API_KEY", "OPENAI_BASE_URL", "OpenAI"),
    Preset(ProviderType.OPENROUTER, "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "OpenRouter"),
    Preset(ProviderType.GOOGLE, "GEMINI_API_KEY", "GEMINI_BASE_URL", "Google"),
)

FIND = "SELECT id, source, base_url FROM model_providers WHERE type = $1 AND NOT deleted ORDER BY source DESC"
NAME_IS_FREE = "SELECT NOT EXISTS (SELECT FROM model_providers WHERE name = $1 AND NOT deleted)"
INSERT = """
    INSERT INTO model_providers (type, name, display_name, base_url, source)
    VALUES ($1, $2, $3, $4, 'env')
    RETURNING id
"""
MOVE = "UPDATE model_providers SET base_url = $2, updated_at = clock_timestamp() WHERE id = $1"


def env_key(type_: str, environ: Mapping[str, str]) -> str | None:
    """Return the API key that the environment has for providers of this type."""
    for preset in PRESETS:
        if preset.type == type_:
            return environ.get(preset.key_variable, "").strip() or None
    return None


async def ensure_env_providers(conn: Connection, environ: Mapping[str, str]) -> list[UUID]:
    """Create the providers of this environment or update their base URLs. Returns the ids that changed, for hints.

    A provider whose variable is gone keeps its row and has no key. An invalid base URL is logged and not used.
    """
    wanted = [preset for preset in PRESETS if env_key(preset.type, environ)]
    if not wanted:
        return []
    changed = []
    async with config_lock.held(conn):
        for preset in wanted:
            base_url = _base_url(preset, environ)
            existing = await conn.fetchrow(FIND, preset.type)
            if existing is None:
                name = await _free_name(conn, preset.type)
                changed.append(await conn.fetchval(INSERT, preset.type, name, preset.display_name, base_url))
            elif existing["source"] == "env" and existing["base_url"] != base_url:
                await conn.execute(MOVE, existing["id"], base_url)
                changed.append(existing["id"])
    return changed


def _base_url(preset: Preset, environ: Mapping[str, str]) -> str | None:
    given = environ.get(preset.base_url_variable, "").strip()
    try:
        return providers.checked_base_url(given or None)
    except InvalidInput:
        log.warning("provider_base_url_ignored", variable=preset.base_url_variable)
        return None


async def _free_name(conn: Connection, type_: ProviderType) -> str:
    """Return the type as a name, with a number if a provider of another type has that name."""
    number = 1
    name = type_.value.replace("_", "-")
    while not await conn.fetchval(NAME_IS_FREE, name):
        number += 1
        name = f"{type_.value}-{number}"
    return name


async def ensure_offline_model(conn: Connection) -> UUID | None:
    """Create the offline model if there is no model at all. Returns its id if it was created."""
    # The lock prevents two servers that start at the same time from creating two offline models.
    async with config_lock.held(conn):
        if await model_configs.list_model_configs(conn):
            return None
        provider = await _offline_provider(conn)
        draft = ModelConfigDraft(
            provider_id=provider.id,
            model=OFFLINE_SCRIPT,
            context_limit=OFFLINE_CONTEXT_LIMIT,
            display_name="Guide (offline)",
        )
        return (await model_configs.create_model_config(conn, draft, by=None)).id


async def _offline_provider(conn: Connection) -> Provider:
    """Return an enabled scripted provider. If there is none, create one under the first free name."""
    for provider in await providers.list_providers(conn):
        if provider.type == ProviderType.SCRIPTED and provider.enabled:
            return provider
    number = 1
    while True:
        name = OFFLINE_NAME if number == 1 else f"{OFFLINE_NAME}-{number}"
        try:
            return await providers.create_provider(
                conn, ProviderDraft(type=ProviderType.SCRIPTED, name=name, display_name="Offline"), ring=None
            )
        except NameTaken:
            number += 1
