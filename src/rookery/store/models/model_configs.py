"""Model configs: a model of a provider with limits, options and prices. Soft-deleted, because history refers to them.

Every write holds `config_lock` and keeps its rule: one default while there is any config. The caller publishes a
`ConfigHint(kind="model")` after the commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models import options as models_options
from rookery.domain.models.options import ModelOptions, ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, context_windows, providers
from rookery.store.models.errors import ModelConfigNotFound, ProviderUnavailable
from rookery.store.models.providers import Provider

DEFAULT_COMPRESSION_THRESHOLD = 70
MAX_CONTEXT_LIMIT = 2**53 - 1
MAX_PRICE = 1_000_000  # USD per million tokens; chosen, far above any real price
PRICES = ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")

COLUMNS = (
    "c.id, c.provider_id, c.model, c.display_name, c.enabled, c.is_default, c.deleted, c.context_limit, "
    "c.compression_threshold, c.options, c.price_input, c.price_output, c.price_cache_read, c.price_cache_write, "
    "c.price_cache_write_1h, c.created_by, c.updated_by, c.created_at, c.updated_at"
)
FIND = f"SELECT {COLUMNS} FROM model_configs c WHERE c.id = $1"
LIST = f"""
    SELECT {COLUMNS}
      FROM model_configs c
     WHERE $1 OR NOT c.deleted
     ORDER BY lower(coalesce(nullif(c.display_name, ''), c.model)), c.id
"""
HAS_DEFAULT = "SELECT EXISTS (SELECT FROM model_configs WHERE is_default)"
CLEAR_DEFAULT = "UPDATE model_configs SET is_default = false WHERE is_default AND id IS DISTINCT FROM $1"
INSERT = f"""
    INSERT INTO model_configs AS c (provider_id, model, display_name, enabled, is_default, context_limit,
                                    compression_threshold, options, price_input, price_output, price_cache_read,
                                    price_cache_write, price_cache_write_1h, created_by, updated_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14)
    RETURNING {COLUMNS}
"""
UPDATE = f"""
    UPDATE model_configs c
       SET provider_id = $2, model = $3, display_name = $4, enabled = $5, is_default = $6, context_limit = $7,
           compression_threshold = $8, options = $9, price_input = $10, price_output = $11, price_cache_read = $12,
           price_cache_write = $13, price_cache_write_1h = $14, updated_by = $15, updated_at = clock_timestamp()
     WHERE id = $1
    RETURNING {COLUMNS}
"""
DELETE = """
    UPDATE model_configs
       SET deleted = true, is_default = false, updated_by = $2, updated_at = clock_timestamp()
     WHERE id = $1
"""


class ModelConfig(msgspec.Struct, frozen=True):
    """A model config as stored. `model` is the id exactly as given, never parsed or rewritten."""

    id: UUID
    provider_id: UUID
    model: str
    display_name: str
    enabled: bool
    is_default: bool
    deleted: bool
    context_limit: int
    compression_threshold: int
    options: ModelOptions
    price_input: Decimal | None
    price_output: Decimal | None
    price_cache_read: Decimal | None
    price_cache_write: Decimal | None
    price_cache_write_1h: Decimal | None
    created_by: UUID | None
    updated_by: UUID | None
    created_at: datetime
    updated_at: datetime


class ModelConfigDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A config to create. The first one becomes the default regardless of `is_default`."""

    provider_id: UUID
    model: str
    context_limit: int
    display_name: str = ""
    enabled: bool = True
    is_default: bool = False
    compression_threshold: int = DEFAULT_COMPRESSION_THRESHOLD
    options: Mapping[str, object] = {}
    price_input: Decimal | None = None
    price_output: Decimal | None = None
    price_cache_read: Decimal | None = None
    price_cache_write: Decimal | None = None
    price_cache_write_1h: Decimal | None = None


class ModelConfigPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a config; UNSET means "leave"."""

    provider_id: UUID | UnsetType = UNSET
    model: str | UnsetType = UNSET
    context_limit: int | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    compression_threshold: int | UnsetType = UNSET
    options: Mapping[str, object] | UnsetType = UNSET
    price_input: Decimal | UnsetType | None = UNSET
    price_output: Decimal | UnsetType | None = UNSET
    price_cache_read: Decimal | UnsetType | None = UNSET
    price_cache_write: Decimal | UnsetType | None = UNSET
    price_cache_write_1h: Decimal | UnsetType | None = UNSET


async def find_model_config(conn: Connection, model_config_id: UUID) -> ModelConfig | None:
    """Return a config, even a deleted one: history refers to it."""
    record = await conn.fetchrow(FIND, model_config_id)
    return None if record is None else _config(record)


async def get_model_config(conn: Connection, model_config_id: UUID) -> ModelConfig:
    """Return a live config. Raises `ModelConfigNotFound`."""
    config = await find_model_config(conn, model_config_id)
    if config is None or config.deleted:
        raise ModelConfigNotFound(model_config_id)
    return config


async def list_model_configs(conn: Connection, *, with_deleted: bool = False) -> list[ModelConfig]:
    """List configs by name; deleted ones, which only history refers to, only on request."""
    return [_config(record) for record in await conn.fetch(LIST, with_deleted)]


async def create_model_config(conn: Connection, draft: ModelConfigDraft, *, by: UUID | None) -> ModelConfig:
    async with config_lock.held(conn):
        provider = await _usable_provider(conn, draft.provider_id)
        options = _checked(draft, provider, await _fallbacks(conn, draft.options))
        check_model(provider, draft.model)
        if draft.is_default and not draft.enabled:
            raise _disabled_default()
        is_default = draft.is_default or not await conn.fetchval(HAS_DEFAULT)
        if is_default:
            await conn.execute(CLEAR_DEFAULT, None)
        record = await conn.fetchrow(INSERT, *_values(draft, options, is_default=is_default), by)
        assert record is not None
        return _config(record)


async def update_model_config(
    conn: Connection, model_config_id: UUID, *, patch: ModelConfigPatch, by: UUID | None
) -> ModelConfig:
    """Change a config. Provider and model are checked again only if one of them changes."""
    async with config_lock.held(conn):
        current = await get_model_config(conn, model_config_id)
        draft = _patched(current, patch)
        moved = (draft.provider_id, draft.model) != (current.provider_id, current.model)
        if moved:
            provider = await _usable_provider(conn, draft.provider_id)
            check_model(provider, draft.model)
        else:
            provider = await _any_provider(conn, draft.provider_id)
        options = _checked(draft, provider, await _fallbacks(conn, draft.options))
        if patch.is_default is True and not draft.enabled:
            raise _disabled_default()
        is_default = draft.is_default and draft.enabled
        if is_default and not current.is_default:
            await conn.execute(CLEAR_DEFAULT, model_config_id)
        await conn.fetchrow(UPDATE, model_config_id, *_values(draft, options, is_default=is_default), by)
        if moved or (draft.context_limit, options) != (current.context_limit, current.options):
            await context_windows.drop(conn, model_config_id)
        if current.is_default and not is_default:
            await config_lock.promote(conn, instead_of=model_config_id)
        return await get_model_config(conn, model_config_id)


async def delete_model_config(conn: Connection, model_config_id: UUID, *, by: UUID | None) -> None:
    async with config_lock.held(conn):
        current = await get_model_config(conn, model_config_id)
        await conn.execute(DELETE, model_config_id, by)
        if current.is_default:
            await config_lock.promote(conn, instead_of=model_config_id)


def check_model(provider: Provider, model: str) -> None:
    """Refuse a model id of OpenRouter at the wrong type: it would be sent on a wire that OpenRouter supports poorly."""
    if not model or len(model) > 200 or model != model.strip() or not model.isprintable():
        raise InvalidInput("model", "A model id is 1 to 200 printable characters without white space around them.")
    host = urlsplit(provider.base_url or "").hostname or ""
    is_openrouter = "openrouter" in provider.name or re.search(r"(^|\.)openrouter\.ai$", host)
    if provider.type == ProviderType.OPENAI and is_openrouter and "/" in model:
        raise InvalidInput("model", "This looks like a model of OpenRouter. Add a provider of type openrouter for it.")


def _checked(draft: ModelConfigDraft, provider: Provider, known_fallbacks: set[UUID]) -> ModelOptions:
    """Check everything but the model id; returns the options to store."""
    if not 0 < draft.context_limit <= MAX_CONTEXT_LIMIT:
        raise InvalidInput("context_limit", "The context limit must be a number of tokens above 0.")
    if not 0 <= draft.compression_threshold <= 100:
        raise InvalidInput("compression_threshold", "The threshold must be between 0 and 100 percent.")
    if len(draft.display_name) > 200 or re.search("[\x00-\x1f\x7f\ud800-\udfff]", draft.display_name):
        raise InvalidInput("display_name", "The name is longer than 200 characters or has control characters.")
    _check_prices(draft)
    if provider.type not in models_options.FAMILIES:
        raise InvalidInput("provider_id", f"This version does not know providers of type {provider.type}.")
    options = models_options.parse_model_options(ProviderType(provider.type), draft.options)
    for fallback in options.fallbacks:
        if fallback not in known_fallbacks:
            raise InvalidInput("options.fallbacks", f"There is no model config {fallback} to fall back to.")
    return options


def _check_prices(draft: ModelConfigDraft) -> None:
    for name in PRICES:
        price: Decimal | None = getattr(draft, name)
        if price is not None and not (price.is_finite() and 0 <= price < MAX_PRICE):
            raise InvalidInput(name, f"A price is in dollars per million tokens, from 0 to below {MAX_PRICE}.")
    if (draft.price_input is None) != (draft.price_output is None):
        missing = "price_input" if draft.price_input is None else "price_output"
        raise InvalidInput(missing, "Set the prices of input and output, or neither.")
    if draft.price_input is None and any(getattr(draft, name) is not None for name in PRICES):
        raise InvalidInput("price_input", "Prices of the cache need those of input and output.")


async def _fallbacks(conn: Connection, options: Mapping[str, object]) -> set[UUID]:
    """Return the existing configs, if the options name any."""
    if not options.get("fallbacks"):
        return set()
    return {config.id for config in await list_model_configs(conn)}


async def _usable_provider(conn: Connection, provider_id: UUID) -> Provider:
    provider = await providers.find_provider(conn, provider_id)
    if provider is None or not provider.is_live:
        raise ProviderUnavailable(provider_id)
    return provider


async def _any_provider(conn: Connection, provider_id: UUID) -> Provider:
    provider = await providers.find_provider(conn, provider_id)
    assert provider is not None, "a foreign key keeps it"
    return provider


def _patched(current: ModelConfig, patch: ModelConfigPatch) -> ModelConfigDraft:
    given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    kept = {name: getattr(current, name) for name in ModelConfigDraft.__struct_fields__}
    kept["options"] = msgspec.to_builtins(current.options)
    return ModelConfigDraft(**{**kept, **given})


def _values(draft: ModelConfigDraft, options: ModelOptions, *, is_default: bool) -> tuple[object, ...]:
    """Return the arguments that both statements share, in their order."""
    return (
        draft.provider_id,
        draft.model,
        draft.display_name,
        draft.enabled,
        is_default,
        draft.context_limit,
        draft.compression_threshold,
        models_options.encode(options),
        *(getattr(draft, name) for name in PRICES),
    )


def _disabled_default() -> InvalidInput:
    return InvalidInput("is_default", "A disabled model cannot be the default. Enable it, or choose another.")


def _config(record: asyncpg.Record) -> ModelConfig:
    values: list[Any] = list(record)
    values[_OPTIONS] = models_options.read_model_options(values[_OPTIONS])
    return ModelConfig(*values)


_OPTIONS = ModelConfig.__struct_fields__.index("options")
