"""Model configs: a model of a provider with limits, options and prices.

Deletion only marks a row, because messages refer to it. Header values are stored sealed (`sealed_headers`). Every write
holds `config_lock` and preserves the invariant: if there are configs, exactly one is the default. The caller publishes
a `ConfigHint(kind="model")` after the commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models import options as models_options
from rookery.domain.models.options import ModelOptions, ProviderType
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock, context_windows, providers, sealed_headers
from rookery.store.models.errors import ModelConfigNotFound, ProviderUnavailable
from rookery.store.models.providers import Provider
from rookery.store.models.sealed_headers import Sealer

TABLE = "model_configs"
DEFAULT_COMPRESSION_THRESHOLD = 70
MAX_CONTEXT_LIMIT = 2**53 - 1
MAX_PRICE = 1_000_000  # USD per million tokens; chosen, far above any real price
PRICES = ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")

COLUMNS = (
    "c.id, c.provider_id, c.model, c.display_name, c.enabled, c.is_default, c.deleted, c.context_limit, "
    "c.compression_threshold, c.options, c.headers_enc, c.price_input, c.price_output, c.price_cache_read, "
    "c.price_cache_write, c.price_cache_write_1h, c.created_by, c.updated_by, c.created_at, c.updated_at"
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
    INSERT INTO model_configs AS c (id, provider_id, model, display_name, enabled, is_default, context_limit,
                                    compression_threshold, options, headers_enc, price_input, price_output,
                                    price_cache_read, price_cache_write, price_cache_write_1h, created_by, updated_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $16)
    RETURNING {COLUMNS}
"""
UPDATE = f"""
    UPDATE model_configs c
       SET provider_id = $2, model = $3, display_name = $4, enabled = $5, is_default = $6, context_limit = $7,
           compression_threshold = $8, options = $9, headers_enc = $10, price_input = $11, price_output = $12,
           price_cache_read = $13, price_cache_write = $14, price_cache_write_1h = $15, updated_by = $16,
           updated_at = clock_timestamp()
     WHERE id = $1
    RETURNING {COLUMNS}
"""
DELETE = """
    UPDATE model_configs
       SET deleted = true, is_default = false, headers_enc = NULL, updated_by = $2, updated_at = clock_timestamp()
     WHERE id = $1
"""
LIST_UNSEALED_HEADERS = f"""
    SELECT {COLUMNS}
      FROM model_configs c
     WHERE c.headers_enc IS NULL
       AND c.options -> 'headers' <> '{{}}'::jsonb
       AND NOT c.deleted
"""
SEAL_HEADERS = "UPDATE model_configs SET options = $2, headers_enc = $3 WHERE id = $1"


class ModelConfig(msgspec.Struct, frozen=True):
    """A model config as stored. `model` is the id exactly as entered: it is never parsed or rewritten."""

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
    headers_enc: str | None
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
    """A config to create. The first config always becomes the default, even if `is_default` is False."""

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
    """Changes to a config. A field that is UNSET keeps its value."""

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
    """Return a config, including a deleted one, because messages refer to it."""
    record = await conn.fetchrow(FIND, model_config_id)
    return None if record is None else _config(record)


async def get_model_config(conn: Connection, model_config_id: UUID) -> ModelConfig:
    """Return a config. Raises `ModelConfigNotFound` if it does not exist or is deleted."""
    config = await find_model_config(conn, model_config_id)
    if config is None or config.deleted:
        raise ModelConfigNotFound(model_config_id)
    return config


async def list_model_configs(conn: Connection, *, with_deleted: bool = False) -> list[ModelConfig]:
    """Return the configs in order of their names. `with_deleted` includes the deleted ones."""
    return [_config(record) for record in await conn.fetch(LIST, with_deleted)]


async def create_model_config(
    conn: Connection, draft: ModelConfigDraft, *, by: UUID | None, ring: Sealer | None = None
) -> ModelConfig:
    """Create a config. `ring` seals the values of its headers, and is needed only if there are headers."""
    model_config_id = uuid4()
    async with config_lock.held(conn):
        provider = await _usable_provider(conn, draft.provider_id)
        options = _checked(draft, provider, await _fallbacks(conn, draft.options))
        check_model(provider, draft.model)
        if draft.is_default and not draft.enabled:
            raise _disabled_default()
        is_default = draft.is_default or not await conn.fetchval(HAS_DEFAULT)
        if is_default:
            await conn.execute(CLEAR_DEFAULT, None)
        headers = sealed_headers.restored(options.headers or {}, {})
        sealed = sealed_headers.seal(headers, table=TABLE, row_id=model_config_id, ring=ring)
        values = _values(draft, with_masks(options), headers_enc=sealed, is_default=is_default)
        record = await conn.fetchrow(INSERT, model_config_id, *values, by)
        assert record is not None
        return _config(record)


async def update_model_config(
    conn: Connection, model_config_id: UUID, *, patch: ModelConfigPatch, by: UUID | None, ring: Sealer | None = None
) -> ModelConfig:
    """Change a config. The provider and the model are checked again only if one of them changes.

    `ring` opens and seals the values of headers. It is needed only if the patch has options with headers.
    """
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
        sealed = current.headers_enc
        if patch.options is not UNSET:
            known = open_headers(current, ring)
            headers = sealed_headers.restored(options.headers or {}, known)
            if headers != known or sealed is None:
                sealed = sealed_headers.seal(headers, table=TABLE, row_id=model_config_id, ring=ring)
            options = with_masks(options)
        if patch.is_default is True and not draft.enabled:
            raise _disabled_default()
        is_default = draft.is_default and draft.enabled
        if is_default and not current.is_default:
            await conn.execute(CLEAR_DEFAULT, model_config_id)
        values = _values(draft, options, headers_enc=sealed, is_default=is_default)
        await conn.fetchrow(UPDATE, model_config_id, *values, by)
        before = (current.context_limit, current.options, current.headers_enc)
        if moved or (draft.context_limit, options, sealed) != before:
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


def with_masks(options: ModelOptions) -> ModelOptions:
    """Return the options as stored and shown, with masks in place of header values."""
    return msgspec.structs.replace(options, headers=options.headers and sealed_headers.masked(options.headers))


def open_headers(config: ModelConfig, ring: Sealer | None) -> Mapping[str, str]:
    """Return the headers with their values, or no headers if this ring cannot open them."""
    if config.headers_enc is None:
        return config.options.headers or {}  # there are none, or an older version stored them unsealed
    return sealed_headers.unseal(config.headers_enc, table=TABLE, row_id=config.id, ring=ring)


async def seal_unsealed_headers(conn: Connection, ring: Sealer) -> int:
    """Seal headers that an older version stored unsealed. Returns the number of configs."""
    async with config_lock.held(conn):
        found = [_config(record) for record in await conn.fetch(LIST_UNSEALED_HEADERS)]
        for config in found:
            sealed = sealed_headers.seal(config.options.headers or {}, table=TABLE, row_id=config.id, ring=ring)
            await conn.execute(SEAL_HEADERS, config.id, models_options.encode(with_masks(config.options)), sealed)
    return len(found)


def check_model(provider: Provider, model: str) -> None:
    """Check a model id. Raises `InvalidInput`.

    Ids of OpenRouter are refused for providers of type `openai`, whose wire format OpenRouter supports poorly.
    """
    if not model or len(model) > 200 or model != model.strip() or not model.isprintable():
        raise InvalidInput("model", "A model id is 1 to 200 printable characters without white space around them.")
    host = urlsplit(provider.base_url or "").hostname or ""
    is_openrouter = "openrouter" in provider.name or re.search(r"(^|\.)openrouter\.ai$", host)
    if provider.type == ProviderType.OPENAI and is_openrouter and "/" in model:
        raise InvalidInput("model", "This looks like a model of OpenRouter. Add a provider of type openrouter for it.")


def _checked(draft: ModelConfigDraft, provider: Provider, known_fallbacks: set[UUID]) -> ModelOptions:
    """Check all fields except the model id. Returns the parsed options."""
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
        raise InvalidInput(missing, "Set the prices of both input and output, or of neither.")
    if draft.price_input is None and any(getattr(draft, name) is not None for name in PRICES):
        raise InvalidInput("price_input", "Set the prices of input and output before those of the cache.")


async def _fallbacks(conn: Connection, options: Mapping[str, object]) -> set[UUID]:
    """Return the ids that may be fallbacks: those of all configs. Empty if the options name no fallback."""
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
    assert provider is not None, "a foreign key refers to the row"
    return provider


def _patched(current: ModelConfig, patch: ModelConfigPatch) -> ModelConfigDraft:
    given = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    kept = {name: getattr(current, name) for name in ModelConfigDraft.__struct_fields__}
    kept["options"] = msgspec.to_builtins(current.options)
    return ModelConfigDraft(**{**kept, **given})


def _values(
    draft: ModelConfigDraft, options: ModelOptions, *, headers_enc: str | None, is_default: bool
) -> tuple[object, ...]:
    """Return the arguments that `INSERT` and `UPDATE` share, in their order. `options` must have masked headers."""
    return (
        draft.provider_id,
        draft.model,
        draft.display_name,
        draft.enabled,
        is_default,
        draft.context_limit,
        draft.compression_threshold,
        models_options.encode(options),
        headers_enc,
        *(getattr(draft, name) for name in PRICES),
    )


def _disabled_default() -> InvalidInput:
    return InvalidInput("is_default", "A disabled model cannot be the default. Enable it, or choose another.")


def _config(record: asyncpg.Record) -> ModelConfig:
    values: list[Any] = list(record)
    values[_OPTIONS] = models_options.read_model_options(values[_OPTIONS])
    return ModelConfig(*values)


_OPTIONS = ModelConfig.__struct_fields__.index("options")
