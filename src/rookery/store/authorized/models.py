"""Providers, model configs, and users' own provider keys on behalf of an actor."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.store.authorized.rights import AuthorizedMethods, Context, Grant, How, Via, authz
from rookery.store.db.hints import ConfigHint
from rookery.store.models import context_windows, model_configs, providers, usage_ledger, user_keys
from rookery.store.models.context_windows import ModelWindow
from rookery.store.models.model_configs import ModelConfig, ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import Provider, ProviderDraft, ProviderPatch
from rookery.store.models.sealed_headers import Sealer, Secret
from rookery.store.models.user_keys import KeyStatus
from rookery.store.people import audit
from rookery.store.people.audit import Event


class PublicModel(msgspec.Struct, frozen=True):
    """An enabled model with its provider, for all users."""

    config: ModelConfig
    provider: Provider


class KnownModel(msgspec.Struct, frozen=True):
    """A model config with its provider and the known context windows, for administrators."""

    config: ModelConfig
    provider: Provider
    window: ModelWindow | None


class Providers(AuthorizedMethods):
    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.PROVIDER, Action.READ)
    async def list(self, at: Grant) -> list[Provider]:
        """List the providers. Their keys are encrypted; routers return `has_key` only."""
        return await providers.list_providers(at.conn)

    @authz(Resource.PROVIDER, Action.READ)
    async def get(self, at: Grant, provider_id: UUID) -> Provider:
        return await providers.get_provider(at.conn, provider_id)

    @authz(Resource.PROVIDER, Action.ADMINISTER)
    async def require(self, at: Grant, provider_id: UUID | None = None) -> None:
        """Check that the actor may change providers, and that this one exists."""
        if provider_id is not None:
            await providers.get_provider(at.conn, provider_id)

    @authz(Resource.PROVIDER, Action.ADMINISTER, how=How.WRITE)
    async def record_test(self, at: Grant, provider_id: UUID, call: usage_ledger.Entry | None) -> None:
        """Record the test of a provider. `call` is its usage if a model was called."""
        if call is not None:
            await usage_ledger.record_call(at.conn, call)
        event = Event(action="provider.test", resource_type=Resource.PROVIDER, resource_id=str(provider_id))
        await at.log(event)

    @authz(Resource.PROVIDER, Action.ADMINISTER, how=How.WRITE)
    async def record_try(self, at: Grant, provider_type: str) -> None:
        """Record the try of a provider that is not stored."""
        await at.log(Event(action="provider.try", resource_type=Resource.PROVIDER, resource_id=provider_type))

    @authz(Resource.PROVIDER, Action.ADMINISTER, how=How.WRITE)
    async def create(self, at: Grant, draft: ProviderDraft) -> Provider:
        made = await providers.create_provider(at.conn, draft, ring=self._ring)
        await _log_provider(at, "provider.create", None, made)
        return made

    @authz(Resource.PROVIDER, Action.ADMINISTER, how=How.WRITE)
    async def update(self, at: Grant, provider_id: UUID, patch: ProviderPatch) -> Provider:
        before = await providers.get_provider(at.conn, provider_id)
        after = await providers.update_provider(at.conn, provider_id, patch=patch, ring=self._ring)
        await _log_provider(at, "provider.update", before, after)
        return after

    @authz(Resource.PROVIDER, Action.ADMINISTER, how=How.WRITE)
    async def delete(self, at: Grant, provider_id: UUID) -> None:
        before = await providers.get_provider(at.conn, provider_id)
        await providers.delete_provider(at.conn, provider_id)
        await _log_provider(at, "provider.delete", before, msgspec.structs.replace(before, deleted=True))


class Models(AuthorizedMethods):
    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.MODEL, Action.LIST)
    async def list_enabled(self, at: Grant) -> list[PublicModel]:
        """List the enabled models of enabled providers, by name."""
        live = {provider.id: provider for provider in await providers.list_providers(at.conn) if provider.enabled}
        configs = await model_configs.list_model_configs(at.conn)
        return [
            PublicModel(config, live[config.provider_id])
            for config in configs
            if config.enabled and config.provider_id in live
        ]

    @authz(Resource.MODEL, Action.READ)
    async def list(self, at: Grant) -> list[KnownModel]:
        by_id = {provider.id: provider for provider in await providers.list_providers(at.conn, with_deleted=True)}
        windows = await context_windows.list_windows(at.conn)
        return [
            KnownModel(config, by_id[config.provider_id], windows.get(config.id))
            for config in await model_configs.list_model_configs(at.conn)
        ]

    @authz(Resource.MODEL, Action.READ)
    async def get(self, at: Grant, model_config_id: UUID) -> KnownModel:
        return await _known(at, await model_configs.get_model_config(at.conn, model_config_id))

    @authz(Resource.MODEL, Action.ADMINISTER)
    async def require(self, at: Grant, model_config_id: UUID | None = None) -> None:
        """Check that the actor may change models, and that this one exists."""
        if model_config_id is not None:
            await model_configs.get_model_config(at.conn, model_config_id)

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def create(self, at: Grant, draft: ModelConfigDraft) -> KnownModel:
        made = await model_configs.create_model_config(at.conn, draft, by=at.by, ring=self._ring)
        await _log_model(at, "model.create", None, made)
        return await _known(at, made)

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def forget_window(self, at: Grant, model_config_id: UUID) -> KnownModel:
        """Delete the learned window of a model. If there is none, nothing is published or logged."""
        config = await model_configs.get_model_config(at.conn, model_config_id)
        if await context_windows.forget(at.conn, model_config_id):
            await _log_model(at, "model.forget_window", config, config)
        return await _known(at, config)

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def update(self, at: Grant, model_config_id: UUID, patch: ModelConfigPatch) -> KnownModel:
        before = await model_configs.get_model_config(at.conn, model_config_id)
        after = await model_configs.update_model_config(
            at.conn, model_config_id, patch=patch, by=at.by, ring=self._ring
        )
        await _log_model(at, "model.update", before, after)
        return await _known(at, after)

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def delete(self, at: Grant, model_config_id: UUID) -> None:
        before = await model_configs.get_model_config(at.conn, model_config_id)
        await model_configs.delete_model_config(at.conn, model_config_id, by=at.by)
        await _log_model(at, "model.delete", before, msgspec.structs.replace(before, deleted=True))


class ProviderKeys(AuthorizedMethods):
    """The caller's own keys of providers. A stored key is not returned."""

    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.PROVIDER_KEY, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[KeyStatus]:
        return await user_keys.list_key_status(at.conn, user_id)

    @authz(Resource.PROVIDER_KEY, Action.UPDATE, via=Via.USER)
    async def require(self, at: Grant, user_id: UUID) -> None:
        """Check only the right."""

    @authz(Resource.PROVIDER_KEY, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def put(self, at: Grant, user_id: UUID, provider_id: UUID, *, api_key: Secret) -> None:
        await user_keys.put_user_key(at.conn, user_id, provider_id=provider_id, api_key=api_key, ring=self._ring)
        await _log_key(at, "provider_key.put", provider_id)

    @authz(Resource.PROVIDER_KEY, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete(self, at: Grant, user_id: UUID, provider_id: UUID) -> None:
        await user_keys.delete_user_key(at.conn, user_id, provider_id=provider_id)
        await _log_key(at, "provider_key.delete", provider_id)


async def _log_provider(at: Grant, action: str, before: Provider | None, after: Provider) -> None:
    await at.log(
        Event(
            action=action,
            resource_type=Resource.PROVIDER,
            resource_id=str(after.id),
            diff=audit.diff("model_providers", before, after),
        )
    )
    at.tell(ConfigHint(kind="provider", id=str(after.id)))


async def _known(at: Grant, config: ModelConfig) -> KnownModel:
    provider = await providers.find_provider(at.conn, config.provider_id)
    assert provider is not None, "a foreign key guarantees it"
    return KnownModel(config, provider, await context_windows.find_window(at.conn, config.id))


async def _log_model(at: Grant, action: str, before: ModelConfig | None, after: ModelConfig) -> None:
    await at.log(
        Event(
            action=action,
            resource_type=Resource.MODEL,
            resource_id=str(after.id),
            diff=audit.diff("model_configs", before, after),
        )
    )
    at.tell(ConfigHint(kind="model", id=str(after.id)))


async def _log_key(at: Grant, action: str, provider_id: UUID) -> None:
    await at.log(Event(action=action, resource_type=Resource.PROVIDER_KEY, resource_id=str(provider_id)))
    at.tell(ConfigHint(kind="provider", id=str(provider_id)))
