"""Preferences of users: prompt, models, compaction thresholds, approval rules, debug records, and display.

There is one row for each preference. A missing one has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rookery.domain.chat.approvals import Rule, Rules
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import invisible_characters
from rookery.store.chats import approval_rules as chats_approval_rules
from rookery.store.chats import chat_rows
from rookery.store.db.pool import Connection
from rookery.store.models import config_lock
from rookery.store.people.errors import Disabled
from rookery.store.settings import setting_groups, settings
from rookery.store.settings.limit_settings import DebugSettings
from rookery.store.settings.setting_groups import DEBUG, MAX_NUMBER, MODELS, ModelOverride, ModelSettings

MAX_DISPLAY_BYTES = 16 * 1024
MAX_THRESHOLDS = 1000

LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"

Percent = Annotated[int, Meta(ge=0, le=100)]
# The chats to which a personal model applies: new chats, and the subagents of two built-in kinds.
Kind = Literal["root", "general", "explore"]


class PersonalOverride(Struct, frozen=True):
    """A user's own model. For new chats, `chat_default` means the default of the deployment.

    For subagents, `chat_default` means the model of their parent, and `deployment_default` the administrators' choice
    for the kind.
    """

    mode: Literal["chat_default", "deployment_default", "model"]
    model_config_id: UUID | None = None
    reasoning_effort: Effort | None = None


class Preferences(Struct, frozen=True, kw_only=True):
    custom_prompt: str = ""
    context_auto_refresh: bool = False
    model_overrides: Mapping[Kind, PersonalOverride] = {}
    compaction_thresholds: Mapping[UUID, Percent] = {}
    approval_rules: Rules = ()
    debug: bool = False
    display: Mapping[str, object] = {}


class PreferencesPatch(Struct, frozen=True, kw_only=True):
    """Changes of preferences. UNSET means no change, and None means the default.

    Overrides and thresholds are changed by key, `display` by a merge patch. Rules are replaced.
    """

    custom_prompt: str | UnsetType | None = UNSET
    context_auto_refresh: bool | UnsetType | None = UNSET
    model_overrides: Mapping[Kind, PersonalOverride | None] | UnsetType | None = UNSET
    compaction_thresholds: Mapping[UUID, int | None] | UnsetType | None = UNSET
    approval_rules: Sequence[Rule] | UnsetType | None = UNSET
    debug: bool | UnsetType | None = UNSET
    display: Mapping[str, object] | UnsetType | None = UNSET


async def read(conn: Connection, user_id: UUID) -> Preferences:
    """Return all preferences. A preference that cannot be read has its default."""
    stored = await settings.list_user_settings(conn, user_id)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Preferences):
        if field.name in stored:
            try:
                values[field.name] = msgspec.convert(stored[field.name], type=field.type)
            except msgspec.ValidationError:
                continue
    return Preferences(**values)


class OverridePolicy(Struct, frozen=True):
    """Whether users may choose models, and the administrators' models for subagents."""

    is_allowed: bool
    general: ModelOverride | None
    explore: ModelOverride | None


async def override_policy(conn: Connection) -> OverridePolicy:
    group = setting_groups.read(MODELS, await settings.find_setting(conn, MODELS.name))
    assert isinstance(group, ModelSettings)
    return OverridePolicy(group.allow_personal_overrides, group.general_subagents, group.explore_subagents)


async def may_users_record(conn: Connection) -> bool:
    group = setting_groups.read(DEBUG, await settings.find_setting(conn, DEBUG.name))
    assert isinstance(group, DebugSettings)
    return group.allow_users


async def update(conn: Connection, user_id: UUID, *, patch: PreferencesPatch) -> bool:
    """Apply the patch. Returns False if nothing changes.

    This function takes the lock of model configs, so that a model that the patch names stays usable until the commit.
    """
    async with config_lock.held(conn):
        await conn.execute(LOCK_USER, user_id)
        before = await read(conn, user_id)
        after: dict[str, object] = {}
        if patch.custom_prompt is not UNSET:
            text = chat_rows.storable(patch.custom_prompt or "")
            after["custom_prompt"] = invisible_characters.check_prompt(text, field="custom_prompt")
        if patch.context_auto_refresh is not UNSET:
            after["context_auto_refresh"] = bool(patch.context_auto_refresh)
        if patch.model_overrides is not UNSET:
            after["model_overrides"] = await _overrides(conn, before, patch.model_overrides)
        if patch.compaction_thresholds is not UNSET:
            after["compaction_thresholds"] = await _thresholds(conn, before, patch.compaction_thresholds)
        if patch.approval_rules is not UNSET:
            after["approval_rules"] = chats_approval_rules.checked(patch.approval_rules or (), field="approval_rules")
        if patch.debug is not UNSET:
            if patch.debug and not await may_users_record(conn):
                raise Disabled("Debug records are disabled. Ask an administrator.")
            after["debug"] = bool(patch.debug)
        if patch.display is not UNSET:
            after["display"] = _display(before.display, patch.display)
        has_changed = False
        for key, value in after.items():
            if value != getattr(before, key):
                has_changed |= await settings.write_user_setting(conn, user_id, key=key, value=value)
        return has_changed


async def _overrides(
    conn: Connection, before: Preferences, change: Mapping[Kind, PersonalOverride | None] | None
) -> Mapping[Kind, PersonalOverride]:
    if change is None:
        return {}
    kept = dict(before.model_overrides)
    for kind, override in change.items():
        if override is None:
            kept.pop(kind, None)
            continue
        if not (await override_policy(conn)).is_allowed:
            raise Disabled("Personal default models are disabled. Ask an administrator.")
        field = f"model_overrides.{kind}"
        if kind == "root" and override.mode == "deployment_default":
            raise InvalidInput(f"{field}.mode", "New chats have the modes `chat_default` and `model`.")
        if (override.mode == "model") != (override.model_config_id is not None):
            raise InvalidInput(f"{field}.model_config_id", "The mode `model` needs a model, and other modes have none.")
        if override.model_config_id is not None:
            await setting_groups.check_model(conn, override.model_config_id, override.reasoning_effort, field=field)
        elif override.reasoning_effort is not None and (kind == "root" or override.mode != "chat_default"):
            raise InvalidInput(f"{field}.reasoning_effort", "An effort needs a model.")
        kept[kind] = override
    return kept


async def _thresholds(
    conn: Connection, before: Preferences, change: Mapping[UUID, int | None] | None
) -> Mapping[UUID, int]:
    if change is None:
        return {}
    kept = dict(before.compaction_thresholds)
    for model_config_id, percent in change.items():
        if percent is None:
            kept.pop(model_config_id, None)
            continue
        if await setting_groups.find_enabled(conn, model_config_id) is None:
            raise InvalidInput(f"compaction_thresholds.{model_config_id}", "There is no such enabled model.")
        kept[model_config_id] = percent
    if len(kept) > MAX_THRESHOLDS:
        raise InvalidInput("compaction_thresholds", f"At most {MAX_THRESHOLDS} models can have a threshold.")
    return kept


def _display(before: Mapping[str, object], change: Mapping[str, object] | None) -> Mapping[str, object]:
    merged = {} if change is None else _merged(before, change)
    assert isinstance(merged, dict)
    size = len(msgspec.json.encode(merged))
    if size > MAX_DISPLAY_BYTES:
        raise InvalidInput("display", f"`display` can have at most {MAX_DISPLAY_BYTES} bytes of JSON, not {size}.")
    return merged


def _merged(before: object, change: object) -> object:
    """Apply a JSON merge patch (RFC 7396): objects are merged, null removes, other values replace."""
    if not isinstance(change, Mapping):
        return _storable(change)
    kept: dict[str, object] = dict(before) if isinstance(before, Mapping) else {}
    for name, value in change.items():
        key = chat_rows.storable(name)
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _merged(kept.get(key), value)
    return kept


def _storable(value: object) -> object:
    match value:
        case str():
            return chat_rows.storable(value)
        case Mapping():
            return {chat_rows.storable(str(key)): _storable(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable(item) for item in value]
        case int() if abs(value) > MAX_NUMBER:
            raise InvalidInput("display", f"A number in `display` is larger than {MAX_NUMBER}.")
        case _:
            return value
