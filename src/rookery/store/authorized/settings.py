"""Providers, models, runtime settings, preferences and provider keys on behalf of an actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.content import agent_kinds as agent_kind_rules
from rookery.domain.content.agent_kinds import KindDefinition
from rookery.store.authorized.rights import AuthorizedMethods, Context, Grant, How, Via, authz
from rookery.store.chats import auto_archive, retention, shares
from rookery.store.db.hints import AccessHint, ConfigHint
from rookery.store.models import config_lock, context_windows, model_configs, providers, usage_ledger, user_keys
from rookery.store.models.context_windows import ModelWindow
from rookery.store.models.model_configs import ModelConfig, ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import Provider, ProviderDraft, ProviderPatch
from rookery.store.models.sealed_headers import Sealer, Secret
from rookery.store.models.user_keys import KeyStatus
from rookery.store.people import audit, preferences
from rookery.store.people.audit import Event
from rookery.store.people.errors import Conflict
from rookery.store.people.preferences import OverridePolicy, PreferencesPatch
from rookery.store.settings import agent_kinds, limit_settings, locked_settings, setting_groups, settings
from rookery.store.settings.agent_kinds import StoredKind
from rookery.store.settings.setting_groups import GROUPS, AdvisorSettings, Group, GroupState


class StaleSetting(Exception):
    """Raised if the group has changed since the caller read it."""

    code = "version_mismatch"

    def __init__(self) -> None:
        super().__init__("These settings have changed meanwhile. Reload them and try again.")


class SettingLocked(Conflict):
    """Raised for keys that the operator has locked in the environment of the server."""

    code = "pinned"

    def __init__(self, group: str, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        named = " and ".join(f"{group}.{key}" for key in keys)
        super().__init__(f"{named} cannot be changed here: the environment of the server sets it.")


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


class Settings(AuthorizedMethods):
    """Runtime settings. `store.settings.setting_groups` defines the groups."""

    __slots__ = ()

    @authz(Resource.SETTINGS, Action.READ)
    async def list(self, at: Grant) -> dict[str, GroupState]:
        """Return all groups with all keys."""
        return await _groups(at, GROUPS.values())

    @authz(Resource.SETTINGS, Action.LIST)
    async def list_public(self, at: Grant) -> dict[str, GroupState]:
        """Return the public keys of the groups that have any."""
        return await _groups(at, (group for group in GROUPS.values() if group.public), public=True)

    @authz(Resource.SETTINGS, Action.ADMINISTER)
    async def require(self, at: Grant) -> None:
        """Check that the actor may change settings."""

    @authz(Resource.SETTINGS, Action.READ)
    async def count_due(
        self, at: Grant, *, auto_archive_days: int, retention_days: int, now: datetime
    ) -> tuple[int, int]:
        """Return the numbers of chats that would be archived and deleted with these settings. 0 days means never."""
        resting = removed = 0
        if auto_archive_days:
            resting = await auto_archive.count_due(at.conn, auto_archive.cutoff(now, auto_archive_days))
        if retention_days:
            removed = await retention.count_due(at.conn, now - timedelta(days=retention_days))
        return resting, removed

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def write(
        self, at: Grant, group: str, change: Mapping[str, object], *, seen: datetime | None = None
    ) -> GroupState:
        """Change some keys of a group. If nothing changes, nothing is published or logged.

        `seen` is the `updated_at` that the caller has read. This method takes the lock of model configs,
        so that a model that a setting names stays usable until the commit.
        """
        known = GROUPS[group]
        async with config_lock.held(at.conn):
            row = await settings.find_setting_row(at.conn, group)
            if seen is not None and (row is None or row.updated_at != seen):
                raise StaleSetting
            pinned = (await locked_settings.read(at.conn)).get(group, {})
            if held := sorted(pinned.keys() & change.keys()):
                raise SettingLocked(group, held)
            before = setting_groups.read(known, row.value if row is not None else None)
            after = setting_groups.changed(known, before, change)
            named = {key: getattr(after, key) for key in change if getattr(after, key) != getattr(before, key)}
            await setting_groups.check_models(at.conn, named)
            if named and isinstance(after, AdvisorSettings):
                await setting_groups.check_advisor(at.conn, after)
            if named:
                await settings.write_setting(at.conn, group, value=after, by=at.by)
                await self._tell(at, group, named)
        return (await _groups(at, (known,)))[group]

    async def _tell(self, at: Grant, group: str, changed: Mapping[str, object]) -> None:
        # Values are not logged, because a group may have prompts, which are users' content.
        diff = {key: audit.CHANGED for key in sorted(changed)}
        await at.log(Event(action="settings.update", resource_type=Resource.SETTINGS, resource_id=group, diff=diff))
        at.tell(ConfigHint(kind="settings", id=group))
        if group in (shares.SETTING, limit_settings.CHATS):  # access to chats depends on both
            at.tell(AccessHint(kind="sharing"))


class Preferences(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.PREFERENCES, Action.READ, via=Via.USER)
    async def get(self, at: Grant, user_id: UUID) -> preferences.Preferences:
        return await preferences.read(at.conn, user_id)

    @authz(Resource.PREFERENCES, Action.READ, via=Via.USER)
    async def override_policy(self, at: Grant, user_id: UUID) -> OverridePolicy:
        """Return whether users may choose models, and the administrators' models for subagents."""
        return await preferences.override_policy(at.conn)

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER)
    async def require(self, at: Grant, user_id: UUID) -> None:
        """Check only the right."""

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def write(self, at: Grant, user_id: UUID, patch: PreferencesPatch) -> preferences.Preferences:
        """Change some preferences. They are not logged in the audit log."""
        if await preferences.update(at.conn, user_id, patch=patch):
            at.tell(ConfigHint(kind="user_prompt", id=str(user_id)))
        return await preferences.read(at.conn, user_id)


class AgentKinds(AuthorizedMethods):
    """Kinds of subagents: those of the deployment, and a user's own."""

    __slots__ = ()

    @authz(Resource.PREFERENCES, Action.READ, via=Via.USER)
    async def list(self, at: Grant, user_id: UUID) -> list[StoredKind]:
        """Return the kinds of the deployment, then the user's own."""
        return await agent_kinds.list_kinds(at.conn, user_id)

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER)
    async def require_own(self, at: Grant, user_id: UUID) -> None:
        """Check only the right to change the user's own kinds."""

    @authz(Resource.SETTINGS, Action.ADMINISTER)
    async def require_shared(self, at: Grant) -> None:
        """Check only the right to change kinds of the deployment."""

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def write_own(
        self, at: Grant, user_id: UUID, kind: KindDefinition, model_config_id: UUID | None
    ) -> StoredKind:
        """Create or replace a kind of the user. The change is not audited, because it concerns only this user."""
        return await _write_kind(at, user_id, kind, model_config_id)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def write_shared(self, at: Grant, kind: KindDefinition, model_config_id: UUID | None) -> StoredKind:
        """Create or replace a kind of the deployment."""
        written = await _write_kind(at, None, kind, model_config_id)
        await at.log(Event(action="agent_kind.write", resource_type=Resource.SETTINGS, resource_id=kind.name))
        return written

    @authz(Resource.PREFERENCES, Action.UPDATE, via=Via.USER, how=How.WRITE)
    async def delete_own(self, at: Grant, user_id: UUID, name: str) -> bool:
        return await _delete_kind(at, user_id, name)

    @authz(Resource.SETTINGS, Action.ADMINISTER, how=How.WRITE)
    async def delete_shared(self, at: Grant, name: str) -> bool:
        deleted = await _delete_kind(at, None, name)
        if deleted:
            await at.log(Event(action="agent_kind.delete", resource_type=Resource.SETTINGS, resource_id=name))
        return deleted


async def _write_kind(
    at: Grant, owner_id: UUID | None, kind: KindDefinition, model_config_id: UUID | None
) -> StoredKind:
    async with config_lock.held(at.conn):
        if model_config_id is not None:
            await setting_groups.check_named_model(at.conn, model_config_id, kind.reasoning_effort)
        written = await agent_kinds.write_kind(
            at.conn, owner_id, agent_kind_rules.checked(kind), model_config_id=model_config_id
        )
    at.tell(ConfigHint(kind=agent_kinds.HINT))
    return written


async def _delete_kind(at: Grant, owner_id: UUID | None, name: str) -> bool:
    deleted = await agent_kinds.delete_kind(at.conn, owner_id, name)
    if deleted:
        at.tell(ConfigHint(kind=agent_kinds.HINT))
    return deleted


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


async def _groups(at: Grant, groups: Iterable[Group], *, public: bool = False) -> dict[str, GroupState]:
    known = {group.name: group for group in groups}
    rows = await settings.list_setting_rows(at.conn, [*known, locked_settings.ROW])
    pins = rows.pop(locked_settings.ROW, None)
    pinned = locked_settings.decode(pins.value if pins is not None else None)
    found = {}
    for name, group in known.items():
        row = rows.get(name)
        values = setting_groups.read(group, row.value if row is not None else None)
        keys = [key for key in group.keys if not public or key in group.public]
        found[name] = GroupState(
            {key: getattr(values, key) for key in keys},
            tuple(key for key in keys if key in pinned.get(name, {})),
            row.updated_at if row is not None else None,
        )
    return found
