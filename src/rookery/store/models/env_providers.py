"""Providers preset by the environment: `ANTHROPIC_API_KEY` and the like create one row each, without the key.

A preset appears only while no other live provider has its type, and keeps its id over restarts, because chats refer to
it. The environment is passed in as a mapping; the keys stay with the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.options import ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, providers
from rookery.telemetry.log import get_logger

log = get_logger("store.models.env_providers")


class Preset(msgspec.Struct, frozen=True):
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
    """Return the key of a preset of this type in this environment."""
    for preset in PRESETS:
        if preset.type == type_:
            return environ.get(preset.key_variable, "").strip() or None
    return None


async def ensure_env_providers(conn: Connection, environ: Mapping[str, str]) -> list[UUID]:
    """Create or move the rows of this environment's presets; returns the ids that changed, for hints.

    A preset whose variable is gone keeps its row and has no key. An invalid base URL is left out and logged.
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
    """Return a free name: a live provider of another type may have the obvious one."""
    number = 1
    name = type_.value.replace("_", "-")
    while not await conn.fetchval(NAME_IS_FREE, name):
        number += 1
        name = f"{type_.value}-{number}"
    return name
