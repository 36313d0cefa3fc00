"""Locked settings: runtime settings that the operator sets by `ROOKERY_PIN_<GROUP>_<KEY>`, as text or JSON.

At each start, locked values are written into their groups. The locked keys are listed in a separate row, so that every
replica refuses to change them. If a start finds a key no longer locked, it restores the former value.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from rookery.domain.access.rights import Resource, SystemActor, SystemName
from rookery.domain.chat.errors import InvalidInput
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock
from rookery.store.people import audit
from rookery.store.people.audit import Event
from rookery.store.settings import setting_groups, settings
from rookery.store.settings.setting_groups import GROUPS

PREFIX = "ROOKERY_PIN_"
ROW = "pinned"


class LockedSettingError(Exception):
    """Raised for invalid variables. `problems` has the name of each variable and its problem."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{name} {text}" for name, text in problems))


def read_environ(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the locked values by group and key. Raises `LockedSettingError`."""
    known = {f"{PREFIX}{name}_{key}".upper(): (group, key) for name, group in GROUPS.items() for key in group.keys}
    found: dict[str, dict[str, object]] = {}
    problems: list[tuple[str, str]] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable not in known:
            problems.append((variable, "is not the name of a runtime setting"))
            continue
        group, key = known[variable]
        try:
            value = _parse(environ[variable], is_text=group.types()[key] is str)
            checked = setting_groups.changed(group, group.kind(), {key: value})
        except InvalidInput as error:
            problems.append((variable, f"cannot be used: {error}"))
            continue
        found.setdefault(group.name, {})[key] = msgspec.to_builtins(getattr(checked, key))
    if problems:
        raise LockedSettingError(problems)
    return found


async def apply(conn: Connection, environ: Mapping[str, str], *, now: datetime) -> bool:
    """Write the locked values of the environment into their groups. Returns whether anything changed.

    If it did, the caller publishes a `ConfigHint(kind="settings")` after the commit.
    """
    wanted = read_environ(environ)
    async with config_lock.held(conn):
        before = await read(conn)
        if not wanted and not before:
            return False
        has_changed, was = False, dict[str, dict[str, list[object]]]()
        for name in sorted({*wanted, *before}):
            stored = await settings.find_setting(conn, name)
            group, kept = _with_locked(stored, wanted.get(name, {}), before.get(name, {}))
            if await settings.write_setting(conn, name, value=group):
                has_changed = True
                keys = {key: audit.CHANGED for key in sorted({*wanted.get(name, {}), *before.get(name, {})})}
                event = Event(action="settings.pin", resource_type=Resource.SETTINGS, resource_id=name, diff=keys)
                await audit.record(conn, event, actor=SystemActor(SystemName.REPLICA), now=now)
            if kept:
                was[name] = kept
        await settings.write_setting(conn, ROW, value=was)
        return has_changed


def _with_locked(
    stored: object, wanted: Mapping[str, object], before: Mapping[str, list[object]]
) -> tuple[dict[str, object], dict[str, list[object]]]:
    """Return the group, and the former values of the locked keys.

    Locked keys have their locked values. Keys that are no longer locked have their former values again.
    """
    group: dict[str, object] = dict(stored) if isinstance(stored, dict) else {}
    for key in before.keys() - wanted.keys():
        group.pop(key, None)
        if before[key]:
            group[key] = before[key][0]
    was = {key: before.get(key, [group[key]] if key in group else []) for key in wanted}
    return {**group, **wanted}, was


async def read(conn: Connection) -> dict[str, dict[str, list[object]]]:
    """Return the locked keys by group. The list for a key contains its former value; it is empty if there was none."""
    return decode(await settings.find_setting(conn, ROW))


def decode(stored: object) -> dict[str, dict[str, list[object]]]:
    try:
        return msgspec.convert(stored or {}, dict[str, dict[str, list[object]]])
    except msgspec.ValidationError:
        return {}


def _parse(text: str, *, is_text: bool) -> object:
    if is_text:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
