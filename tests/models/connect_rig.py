"""Model configs with keys, as input of a `Connector`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from rookery.domain.models import options as models_options
from rookery.domain.models.options import ProviderOptions, ProviderType
from rookery.models.directory import ReadyModel
from rookery.runtime.secret_str import SecretStr
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import KeySource

KEY = "sk-test-0123456789-secret"
PROVIDER_ID = UUID(int=11)
CONFIG_ID = UUID(int=12)
_THEN = datetime(2026, 11, 15, tzinfo=UTC)


def ready_model(
    type_: str = "anthropic",
    model: str = "claude-opus-5-5",
    *,
    base_url: str | None = None,
    key: str | None = KEY,
    options: Mapping[str, object] = {},
    provider_options: ProviderOptions = ProviderOptions(),  # noqa: B008 - frozen
    send_correlation: bool = False,
    user_hash: str | None = None,
) -> ReadyModel:
    provider = Provider(
        id=PROVIDER_ID,
        type=type_,
        name="acme",
        display_name="Acme",
        icon="",
        base_url=base_url,
        enabled=True,
        deleted=False,
        source="db",
        options=provider_options,
        send_correlation=send_correlation,
        api_key_enc=None,
        headers_enc=None,
        central_key_enabled=True,
        allow_user_key=False,
        allow_central_fallback=True,
        created_at=_THEN,
        updated_at=_THEN,
    )
    prices: dict[str, Any] = dict.fromkeys(
        ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")
    )
    config = ModelConfig(
        id=CONFIG_ID,
        provider_id=PROVIDER_ID,
        model=model,
        display_name="",
        enabled=True,
        is_default=True,
        deleted=False,
        context_limit=200_000,
        compression_threshold=70,
        options=models_options.parse_model_options(ProviderType(type_), options),
        headers_enc=None,
        created_by=None,
        updated_by=None,
        created_at=_THEN,
        updated_at=_THEN,
        **prices,
    )
    return ReadyModel(
        config=config,
        provider=provider,
        key=None if key is None else SecretStr(key),
        key_source=KeySource.CENTRAL,
        user_hash=user_hash,
    )
