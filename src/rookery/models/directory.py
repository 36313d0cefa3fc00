"""The model directory: reads providers, model configs and keys through a cache, and returns models ready for a call.

Cached values are at most `TTL_SECONDS` old; a `config` hint drops them earlier. Decrypted keys are `SecretStr` values
and are in the registry of values that logs hide. Only the wires receive them.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.models.context_window import Windows
from rookery.llm.types import Capabilities, ErrorKind, ProviderError, Usage, Wire
from rookery.models import capability_catalog, cost, model_resolution
from rookery.models.config_cache import ConfigCache
from rookery.models.key_ring import KeyRing
from rookery.models.model_resolution import Choice, Models, ModelState
from rookery.runtime.clock import Clock
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pubsub import Bus, Subscription
from rookery.store.models import context_windows, model_configs, preset_providers, providers, user_keys
from rookery.store.models.context_windows import ModelWindow
from rookery.store.models.errors import Unusable
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource
from rookery.store.settings import settings
from rookery.telemetry.redaction import SecretRegistry

PROMPT_TTL_SECONDS = 5.0


class Snapshot(msgspec.Struct, frozen=True):
    """All providers and model configs, including deleted ones, and the decrypted central keys by provider."""

    providers: Mapping[UUID, Provider]
    configs: Mapping[UUID, ModelConfig]
    default_id: UUID | None
    keys: Mapping[UUID, SecretStr]
    windows: Mapping[UUID, ModelWindow] = {}


class ReadyModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model config with everything a call needs. `key` is None for models that need no key.

    `user_hash` is a pseudonym of the chat's owner for the provider. It does not identify a person.
    """

    config: ModelConfig
    provider: Provider
    key: SecretStr | None
    key_source: KeySource
    user_hash: str | None = None
    window: ModelWindow | None = None

    @property
    def provider_name(self) -> str:
        """The display name of the provider, for errors."""
        return self.provider.display_name or self.provider.name

    def capabilities(self, wire: Wire, reported: Capabilities | None = None) -> Capabilities:
        return capability_catalog.capabilities(
            self.provider.type,
            self.config.model,
            wire=wire,
            reported=reported,
            overrides=self.config.options.capabilities,
        )

    def windows(self, *, reported: int | None = None) -> Windows:
        """Return the context windows of the model from all sources. `reported` is a report to this process."""
        found = windows_of(self.config, self.provider.type, self.window)
        return found if reported is None else msgspec.structs.replace(found, reported=reported)

    def prices(self, at: datetime) -> cost.Prices | None:
        return cost.prices_of(self.config, self.provider.type, at=at)

    def usage_entry(
        self, usage: Usage, *, owner_id: UUID, chat_id: ChatId | None, purpose: str, status: CallStatus
    ) -> Entry:
        """Return the row of the usage ledger for a call of this model, without its cost and duration."""
        return Entry(
            owner_id=owner_id,
            chat_id=chat_id,
            purpose=purpose,
            provider_id=self.provider.id,
            model_config_id=self.config.id,
            model=self.config.model,
            key_source=self.key_source,
            status=status,
            input_tokens=usage.input,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
            cache_write_1h_tokens=usage.cache_write_1h,
            output_tokens=usage.output,
            reasoning_tokens=usage.reasoning,
            total_tokens=usage.total,
            web_searches=usage.web_searches,
            context_tokens=usage.context_tokens,
        )


def windows_of(config: ModelConfig, provider_type: str, known: ModelWindow | None) -> Windows:
    """Return the stored and listed context windows of a model. The first lookup in the table takes about 0.2 s."""
    # The table has the default windows, and not larger ones that must be requested.
    listed = None if config.options.context_1m else cost.list_window(provider_type, config.model)
    return Windows(
        configured=config.context_limit,
        catalogued=listed,
        reported=None if known is None else known.reported_tokens,
        learned=None if known is None else known.learned_tokens,
        learned_from=None if known is None else known.learned_from,
    )


class Directory:
    """The model directory. One per process. If `ring` is None, stored keys count as missing."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        ring: KeyRing | None,
        environ: Mapping[str, str],
        clock: Clock,
        registry: SecretRegistry | None = None,
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._environ = environ
        self._registry = registry
        self._snapshots = ConfigCache[None, Snapshot](self._read, clock=clock)
        self._user_keys = ConfigCache[UUID, dict[UUID, SecretStr]](self._read_user_keys, clock=clock)
        # All settings are read together. A turn needs several, and each would be a round trip.
        self._settings = ConfigCache[None, dict[str, object]](self._read_settings, clock=clock)
        self._user_settings = ConfigCache[UUID, dict[str, object]](
            self._read_user_settings, clock=clock, ttl_seconds=PROMPT_TTL_SECONDS
        )
        # The models of owners without own keys, which are the same for all of them.
        self._shared: tuple[Snapshot, Models] | None = None
        self._subscriptions: list[Subscription] = []

    def follow(self, bus: Bus) -> None:
        """Subscribe to hints of this and other replicas, and drop cached values when they report a change."""
        self._subscriptions += [bus.subscribe(ConfigHint, self._on_hint), bus.on_resync(self.invalidate)]

    def invalidate(self) -> None:
        self._snapshots.invalidate()
        self._user_keys.invalidate()
        self._settings.invalidate()
        self._user_settings.invalidate()

    def forget_models(self) -> None:
        """Drop cached models after a change by this process."""
        self._snapshots.invalidate()

    async def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        for cache in (self._snapshots, self._user_keys, self._settings, self._user_settings):
            await cache.close()

    def prefetch(self, owner_id: UUID) -> None:
        """Begin to read what a turn of this owner needs and is not cached."""
        self._snapshots.prefetch(None)
        self._settings.prefetch(None)
        self._user_keys.prefetch(owner_id)
        self._user_settings.prefetch(owner_id)

    async def snapshot(self) -> Snapshot:
        return await self._snapshots.get(None)

    async def setting(self, key: str) -> object:
        return (await self._settings.get(None)).get(key)

    async def user_setting(self, user_id: UUID, key: str) -> object:
        return (await self._user_settings.get(user_id)).get(key)

    async def models(self, owner_id: UUID) -> Models:
        """Return the models of a chat's owner, for the functions of `model_resolution`."""
        snapshot = await self.snapshot()
        own = await self._user_keys.get(owner_id)
        if own:
            return _models(snapshot, own)
        if self._shared is None or self._shared[0] is not snapshot:
            self._shared = (snapshot, _models(snapshot, own))
        return self._shared[1]

    async def for_generation(self, model_config_id: UUID, *, owner_id: UUID) -> ReadyModel | ProviderError:
        """Return the model of a turn with the key for this owner, or the error that ends the turn."""
        chosen = model_resolution.for_generation(await self.models(owner_id), model_config_id)
        return await self.ready(chosen, owner_id=owner_id) if isinstance(chosen, Choice) else chosen

    async def ready(self, choice: Choice, *, owner_id: UUID) -> ReadyModel | ProviderError:
        snapshot = await self.snapshot()
        config = snapshot.configs.get(choice.model_config_id)
        if config is None:
            return _refused("", Unusable.UNKNOWN, ErrorKind.CONFIG)
        provider = snapshot.providers[config.provider_id]
        own = await self._user_keys.get(owner_id)
        source = _choose_key(snapshot, provider, own)
        if isinstance(source, Unusable):
            return _refused(provider.display_name or provider.name, source, ErrorKind.MISSING_KEY)
        key = own[provider.id] if source is KeySource.USER else snapshot.keys.get(provider.id)
        return ReadyModel(
            config=config,
            provider=provider,
            key=key,
            key_source=source,
            user_hash=self._user_hash(provider, owner_id),
            window=snapshot.windows.get(config.id),
        )

    async def is_enabled_now(self, model_config_id: UUID) -> bool:
        """Return whether a model config and its provider are enabled, as the database has them now.

        If the cached models are older, they are dropped, so that `ready` returns this version.
        """
        async with self._pool.acquire() as conn:
            config = await model_configs.find_model_config(conn, model_config_id)
            provider = None if config is None else await providers.find_provider(conn, config.provider_id)
        if config is None or provider is None:
            return False
        cached = await self.snapshot()
        known = cached.configs.get(config.id), cached.providers.get(provider.id)
        if [each and each.updated_at for each in known] != [config.updated_at, provider.updated_at]:
            self._snapshots.invalidate()
        return config.enabled and not config.deleted and provider.is_live

    async def title_candidates(self) -> tuple[UUID, ...]:
        """Return the small enabled models, for `model_resolution.for_title`."""
        snapshot = await self.snapshot()
        candidates: list[tuple[UUID, str, Decimal | None]] = [
            (config.id, config.model, config.price_output)
            for config in snapshot.configs.values()
            if config.enabled and not config.deleted
        ]
        return model_resolution.small_models(candidates)

    async def unavailable(self, provider_id: UUID, *, user_id: UUID) -> Unusable | None:
        """Return why a user cannot use a provider's models now; None if the user can."""
        snapshot = await self.snapshot()
        source = _choose_key(snapshot, snapshot.providers[provider_id], await self._user_keys.get(user_id))
        return source if isinstance(source, Unusable) else None

    def _central_key(self, provider: Provider) -> SecretStr | None:
        if provider.is_env:
            value = preset_providers.env_key(provider.type, self._environ)
            return None if value is None else self._register_secret(SecretStr(value), provider)
        if provider.api_key_enc is None or self._ring is None:
            return None
        key = self._ring.open(
            provider.api_key_enc, table=providers.TABLE, row_id=str(provider.id), column=providers.COLUMN
        )
        return None if key is None else self._register_secret(key, provider)

    def _with_open_headers(self, provider: Provider) -> Provider:
        """Return the provider with its decrypted headers."""
        if provider.headers_enc is None:
            return provider
        headers = providers.open_headers(provider, self._ring)
        for name, value in headers.items():
            self._register_secret(SecretStr(value), provider, what=f"header {name}")
        options = msgspec.structs.replace(provider.options, headers=headers)
        return msgspec.structs.replace(provider, options=options)

    def _config_with_open_headers(self, config: ModelConfig, provider: Provider) -> ModelConfig:
        """Return the config with its decrypted headers."""
        if config.headers_enc is None:
            return config
        headers = model_configs.open_headers(config, self._ring)
        for name, value in headers.items():
            self._register_secret(SecretStr(value), provider, what=f"header {name} of {config.model}")
        return msgspec.structs.replace(config, options=msgspec.structs.replace(config.options, headers=headers))

    def _user_hash(self, provider: Provider, owner_id: UUID) -> str | None:
        """Return the hash of a user, which is the same until the key ring rotates; None without a ring."""
        if self._ring is None or not provider.options.send_user_hash:
            return None
        return hmac.new(self._ring.subkey("user"), owner_id.bytes, "sha256").hexdigest()

    def _register_secret(self, key: SecretStr, provider: Provider, *, what: str = "key") -> SecretStr:
        if self._registry is not None:
            self._registry.add(f"{provider.name} {what}", key.reveal())
        return key

    def _on_hint(self, hint: ConfigHint) -> None:
        match hint.kind:
            case "model" | "provider":
                self._snapshots.invalidate()
                self._user_keys.invalidate()
            case "settings":
                self._settings.invalidate()
            case "user_prompt":
                self._user_settings.invalidate()

    async def _read(self, _: None) -> Snapshot:
        async with self._pool.acquire() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
            found = await providers.list_providers(conn, with_deleted=True)
            configs = await model_configs.list_model_configs(conn, with_deleted=True)
            windows = await context_windows.list_windows(conn)
        by_id = {provider.id: self._with_open_headers(provider) for provider in found}
        return Snapshot(
            by_id,
            {config.id: self._config_with_open_headers(config, by_id[config.provider_id]) for config in configs},
            next((config.id for config in configs if config.is_default), None),
            {provider.id: key for provider in found if (key := self._central_key(provider))},
            windows,
        )

    async def _read_user_keys(self, user_id: UUID) -> dict[UUID, SecretStr]:
        if self._ring is None:
            return {}
        async with self._pool.acquire() as conn:
            sealed = await user_keys.user_keys(conn, user_id)
        opened = {}
        for provider_id, value in sealed.items():
            row_id = user_keys.row_id(user_id, provider_id)
            key = self._ring.open(value, table=user_keys.TABLE, row_id=row_id, column=user_keys.COLUMN)
            if key is not None:
                if self._registry is not None:
                    self._registry.add("user key", key.reveal())
                opened[provider_id] = key
        return opened

    async def _read_settings(self, _: None) -> dict[str, object]:
        async with self._pool.acquire() as conn:
            return await settings.list_settings(conn)

    async def _read_user_settings(self, user_id: UUID) -> dict[str, object]:
        async with self._pool.acquire() as conn:
            return await settings.list_user_settings(conn, user_id)


def _models(snapshot: Snapshot, own: Mapping[UUID, SecretStr]) -> Models:
    states = {}
    for config in snapshot.configs.values():
        provider = snapshot.providers[config.provider_id]
        states[config.id] = ModelState(
            id=config.id,
            provider_name=provider.display_name or provider.name,
            enabled=config.enabled,
            deleted=config.deleted,
            provider_is_live=provider.is_live,
            key=_choose_key(snapshot, provider, own),
        )
    return Models(states, snapshot.default_id)


def _choose_key(snapshot: Snapshot, provider: Provider, own: Mapping[UUID, SecretStr]) -> KeySource | Unusable:
    return model_resolution.choose_key(
        provider, has_user_key=provider.id in own, has_central_key=provider.id in snapshot.keys
    )


def _refused(provider: str, reason: Unusable, kind: ErrorKind) -> ProviderError:
    return ProviderError(kind=kind, message=reason.sentence, retryable=False, provider=provider)
