"""Runtime settings and preferences on behalf of an actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from rookery.domain.access.rights import Action, Resource
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import auto_archive, retention, shares
from rookery.store.db.hints import AccessHint, ConfigHint
from rookery.store.models import config_lock
from rookery.store.people import audit, preferences
from rookery.store.people.audit import Event
from rookery.store.people.errors import Conflict
from rookery.store.people.preferences import OverridePolicy, PreferencesPatch
from rookery.store.settings import limit_settings, locked_settings, setting_groups, settings
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
