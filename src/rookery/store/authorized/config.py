"""Providers, models, runtime settings, and what users set for themselves: preferences and keys of their own."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from rookery.chat.rights import Action, Resource
from rookery.store import audit, model_configs, providers, settings, shares, user_keys
from rookery.store.audit import Event
from rookery.store.authz import Context, Grant, How, Part, Via, authz
from rookery.store.hints import AccessHint, ConfigHint
from rookery.store.model_configs import ModelConfig, ModelConfigDraft, ModelConfigPatch
from rookery.store.providers import Provider, ProviderDraft, ProviderPatch, Sealer, Secret
from rookery.store.user_keys import KeyStatus

LOCK_SETTING = "SELECT updated_at FROM settings WHERE key = $1 FOR UPDATE"


class StaleSetting(Exception):
    """Somebody changed the group since it was read. Read it again, then repeat the change."""

    code = "version_mismatch"

    def __init__(self) -> None:
        super().__init__("These settings were changed meanwhile. Load them again, then repeat your change.")


class PublicModel(msgspec.Struct, frozen=True):
    """An enabled model with its provider, as every user may see it."""

    config: ModelConfig
    provider: Provider


class Providers(Part):
    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.PROVIDER, Action.READ)
    async def list(self, at: Grant) -> list[Provider]:
        """Keys are in there only as sealed text; routers show `has_key`."""
        return await providers.list_providers(at.conn)

    @authz(Resource.PROVIDER, Action.READ)
    async def get(self, at: Grant, provider_id: UUID) -> Provider:
        return await providers.get_provider(at.conn, provider_id)

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


class Models(Part):
    __slots__ = ()

    @authz(Resource.MODEL, Action.LIST)
    async def list_enabled(self, at: Grant) -> list[PublicModel]:
        """What pickers offer: enabled models of enabled providers, by name."""
        live = {provider.id: provider for provider in await providers.list_providers(at.conn) if provider.enabled}
        configs = await model_configs.list_model_configs(at.conn)
        return [
            PublicModel(config, live[config.provider_id])
            for config in configs
            if config.enabled and config.provider_id in live
        ]

    @authz(Resource.MODEL, Action.READ)
    async def list(self, at: Grant) -> list[ModelConfig]:
        return await model_configs.list_model_configs(at.conn)

    @authz(Resource.MODEL, Action.READ)
    async def get(self, at: Grant, model_config_id: UUID) -> ModelConfig:
        return await model_configs.get_model_config(at.conn, model_config_id)

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def create(self, at: Grant, draft: ModelConfigDraft) -> ModelConfig:
        made = await model_configs.create_model_config(at.conn, draft, by=at.by)
        await _log_model(at, "model.create", None, made)
        return made

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def update(self, at: Grant, model_config_id: UUID, patch: ModelConfigPatch) -> ModelConfig:
        before = await model_configs.get_model_config(at.conn, model_config_id)
        after = await model_configs.update_model_config(at.conn, model_config_id, patch=patch, by=at.by)
        await _log_model(at, "model.update", before, after)
        return after

    @authz(Resource.MODEL, Action.ADMINISTER, how=How.WRITE)
    async def delete(self, at: Grant, model_config_id: UUID) -> None:
        before = await model_configs.get_model_config(at.conn, model_config_id)
        await model_configs.delete_model_config(at.conn, model_config_id, by=at.by)
        await _log_model(at, "model.delete", before, msgspec.structs.replace(before, deleted=True))


class Settings(Part):
    """Groups of runtime settings as plain JSON: what is in them is checked by who knows the group."""

    __slots__ = ()

    @authz(Resource.SETTINGS, Action.READ)
    async def get(self, at: Grant, group: str) -> settings.Row | None:
        return await settings.find_setting_row(at.conn, group)

    @authz(Resource.SETTINGS, Action.LIST)
    async def get_public(self, at: Grant, group: str) -> settings.Row | None:
        """For members. Which keys of a group they may see is decided by who knows the group."""
        return await settings.find_setting_row(at.conn, group)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def write(self, at: Grant, group: str, value: dict[str, object], *, seen: datetime | None = None) -> bool:
        """Replace a group. False, and nothing told or logged, when it was so already. `seen`: its `updated_at`."""
        if seen is not None and await at.conn.fetchval(LOCK_SETTING, group) != seen:
            raise StaleSetting
        before = await settings.find_setting(at.conn, group)
        if not await settings.write_setting(at.conn, group, value=value, by=at.by):
            return False
        changed = _changed_keys(before if isinstance(before, dict) else {}, value)
        await at.log(Event(action="settings.update", resource_type=Resource.SETTINGS, resource_id=group, diff=changed))
        at.tell(ConfigHint(kind="settings", id=group))
        if group in (shares.SETTING, "chats"):  # both decide who may read chats
            at.tell(AccessHint(kind="sharing"))
        return True


class Preferences(Part):
    __slots__ = ()

    @authz(Resource.PREFERENCES, Action.READ, via=Via.USER)
    async def get(self, at: Grant, user_id: UUID, key: str) -> object | None:
        return await settings.find_user_setting(at.conn, user_id, key=key)

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def write(self, at: Grant, user_id: UUID, key: str, value: object) -> bool:
        written = await settings.write_user_setting(at.conn, user_id, key=key, value=value)
        if written:
            at.tell(ConfigHint(kind="user_prompt", id=str(user_id)))
        return written


class ProviderKeys(Part):
    """The caller's own keys for providers; they are never read back."""

    __slots__ = ("_ring",)

    def __init__(self, context: Context, ring: Sealer | None) -> None:
        super().__init__(context)
        self._ring = ring

    @authz(Resource.PROVIDER_KEY, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[KeyStatus]:
        return await user_keys.list_key_status(at.conn, user_id)

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


def _changed_keys(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """Which keys changed. Values stay out: a group may hold prompts, which are people's own words."""
    return {key: audit.CHANGED for key in sorted({*before, *after}) if before.get(key) != after.get(key)}
